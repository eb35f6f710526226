"""Choose the tokens of requests: parameters, logits processors, and random numbers of each request."""

from clover.sampling.coupling import GumbelNoise as GumbelNoise
from clover.sampling.params import SamplingParams as SamplingParams
from clover.sampling.sampler import Sampler as Sampler
from clover.sampling.states import GrammarState as GrammarState
