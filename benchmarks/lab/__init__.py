"""The stages of `benchmarks/gpu_lab.py`."""
