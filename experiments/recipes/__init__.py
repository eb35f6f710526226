"""Recipes: the embedded target with its drafts, from a corpus to the card; and drafts for any chat model."""
