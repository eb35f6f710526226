"""Names and colors of draft systems, and of other ways to decode, in tables and figures."""

from typing import Any

from clover.drafts.base import SYSTEMS

# All colors are from the palette of Okabe and Ito, or near it, so that color-blind readers can distinguish them.
_OTHERS = {"plain": ("plain decoding", "#9aa5b1"), "transformers": ("transformers' generate", "#cbd2d9")}


def system_name(system: str) -> str:
    """Return the name in reports of a draft system or another way to decode; other names are returned unchanged."""
    if system in _OTHERS:
        return _OTHERS[system][0]
    return SYSTEMS[system].label if system in SYSTEMS else system


def draft_kind(config: Any) -> str:
    """Return the system of a draft with this configuration, and the options that differ from the defaults."""
    changed = [f"{name.replace('_', ' ')} {value}" for name, value in config.changed.items()]
    return ", ".join([system_name(str(config.model_type)), *changed])


def system_color(system: str, number: int = 0) -> str:
    """Return the color "#rrggbb" of a draft system or another way to decode; for other names, the color at `number`."""
    colors = {name: kind.color for name, kind in reversed(SYSTEMS.items()) if kind.color is not None}
    free = [*colors.values(), _OTHERS["plain"][1]]
    if system in _OTHERS:
        return _OTHERS[system][1]
    return colors.get(system, free[number % len(free)])
