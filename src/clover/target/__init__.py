"""The target model. Only this package uses the internals of transformers' models."""

from clover.target.fingerprint import norms_fingerprint as norms_fingerprint
from clover.target.fingerprint import tensors_fingerprint as tensors_fingerprint
from clover.target.fingerprint import tokens_fingerprint as tokens_fingerprint
from clover.target.fingerprint import weights_fingerprint as weights_fingerprint
from clover.target.model import TargetModel as TargetModel
from clover.target.protocol import HIDDEN_STATES as HIDDEN_STATES
from clover.target.protocol import HiddenStates as HiddenStates
from clover.target.protocol import Target as Target
from clover.target.protocol import TargetOutput as TargetOutput
from clover.target.protocol import TargetSession as TargetSession
from clover.target.protocol import TargetWeights as TargetWeights
from clover.target.structure import LogitsHead as LogitsHead
