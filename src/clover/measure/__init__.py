"""Measure how fast, how well accepted and how costly drafts are: bench, demo, evaluate, tune and cost."""
