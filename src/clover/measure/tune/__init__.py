"""`clover tune`: count what trees accept, time their steps, save the fastest."""
