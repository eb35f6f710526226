"""The recipe of the embedded default: corpus, tokenizer, target, text the target writes, drafts, model card."""

from clover.recipe.run import RecipeOptions, run_recipe

__all__ = ["RecipeOptions", "run_recipe"]
