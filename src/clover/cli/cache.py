"""``clover cache``: show or clear the converted weights of targets."""

from dataclasses import dataclass
from typing import Annotated

from clover.options import option, takes_options


@dataclass(frozen=True)
class CacheOptions:
    """The options of `clover cache`."""

    clear: Annotated[bool, option("Remove all stored weights.", "--clear")] = False


@takes_options
def cache(options: CacheOptions) -> None:
    """Show or remove the stored converted weights, with which targets load faster."""
    from clover.target import weight_cache

    kept = weight_cache.sizes()
    for name, size in kept.items():
        print(f"{size / 1e9:6.1f} GB  {name}")
    print(f"{sum(kept.values()) / 1e9:6.1f} GB  in {weight_cache.place()}; {weight_cache.describe_limit()}")
    if options.clear:
        weight_cache.clear()
        print("all stored weights were removed")
