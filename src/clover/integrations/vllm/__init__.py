"""Clover drafts on vLLM: a plugin that registers them as architectures of vLLM's own EAGLE driver.

vLLM loads `register` by its entry point in every process it starts. Only `base`, `systems` and `recall` import vLLM.
"""

from clover.integrations.vllm.names import ARCHITECTURES

_PLACES = {
    "clover1": f"{__name__}.systems:Clover1ForCausalLM",
    "clover2": f"{__name__}.systems:Clover2ForCausalLM",
    "recall": f"{__name__}.recall:RecallForCausalLM",
}


def register() -> None:
    """Make the drafts known to vLLM; the entry point of the group `vllm.general_plugins`."""
    from clover.integrations.vllm.base import register_models

    register_models({ARCHITECTURES[system]: place for system, place in _PLACES.items()})
