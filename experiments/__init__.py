"""Trainings and tables: how the drafts of this repository were made and compared. Not part of the package.

Run from a clone: ``python -m experiments.compare quick`` and ``python -m experiments.recipes embedded --output DIR``.
"""
