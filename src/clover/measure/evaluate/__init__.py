"""How good a draft is: accuracy of its heads, what the engine accepts of it, and where it is weak."""
