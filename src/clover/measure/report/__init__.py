"""Report what a command does and what it found: progress, tables, figures, JSON, and where a result came from."""
