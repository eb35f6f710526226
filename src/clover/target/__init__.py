"""The target model: the only package that touches the inside of transformers' models."""

from clover.target.model import TargetModel, TargetOutput

__all__ = ["TargetModel", "TargetOutput"]
