"""Clover inside other libraries, one file each. Only these files use the internals of those libraries."""
