"""Report the work and the results of a command: progress, tables, figures, JSON, and the provenance of results."""
