"""``clover recipe``: make the embedded target and drafts again, from source code on this machine."""

from clover.options import takes_options
from clover.recipe.options import RecipeOptions


@takes_options
def recipe(options: RecipeOptions) -> None:
    """Train a small code model and its drafts offline, as the embedded ones were made."""
    from clover.recipe.run import run_recipe

    run_recipe(options)
