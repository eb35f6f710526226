"""Layers and an optimizer for CPUs. `fast_copy` and `speed_up` put the layers into a model."""

from clover.cpu.apply import fast_copy as fast_copy
from clover.cpu.apply import plain_parts as plain_parts
from clover.cpu.apply import shared_copy as shared_copy
from clover.cpu.apply import speed_up as speed_up
from clover.cpu.apply import versions as versions
from clover.cpu.linear import is_plain as is_plain
from clover.cpu.threads import WAITING as WAITING
