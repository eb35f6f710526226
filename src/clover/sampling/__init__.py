"""How the tokens of requests are chosen: parameters, logits processors, and random numbers that belong to a request."""

from clover.sampling.params import SamplingParams
from clover.sampling.sampler import GumbelNoise, Sampler

__all__ = ["GumbelNoise", "Sampler", "SamplingParams"]
