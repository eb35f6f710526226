"""The target model: the only package that touches the inside of transformers' models."""

from clover.target.fingerprint import tensors_fingerprint, weights_fingerprint
from clover.target.model import HIDDEN_STATES, TargetModel, TargetOutput
from clover.target.structure import LogitsHead

__all__ = [
    "HIDDEN_STATES",
    "LogitsHead",
    "TargetModel",
    "TargetOutput",
    "tensors_fingerprint",
    "weights_fingerprint",
]
