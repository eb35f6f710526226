"""How the tokens of requests are chosen: parameters, logits processors, and random numbers that belong to a request."""

from clover.sampling.coupling import GumbelNoise as GumbelNoise
from clover.sampling.params import SamplingParams as SamplingParams
from clover.sampling.sampler import Sampler as Sampler
from clover.sampling.states import GrammarState as GrammarState
