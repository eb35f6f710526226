"""`python -m experiments.compare`: draft systems side by side, trained and measured alike, from a suite to a report."""
