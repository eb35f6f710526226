"""The command ``clover``: thin commands that import the heavy modules only when they run."""
