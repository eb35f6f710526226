"""The target model: the only package that touches the inside of transformers' models."""

from clover.target.fingerprint import signs_fingerprint as signs_fingerprint
from clover.target.fingerprint import tensors_fingerprint as tensors_fingerprint
from clover.target.fingerprint import weights_fingerprint as weights_fingerprint
from clover.target.model import HIDDEN_STATES as HIDDEN_STATES
from clover.target.model import TargetModel as TargetModel
from clover.target.model import TargetOutput as TargetOutput
from clover.target.structure import LogitsHead as LogitsHead
