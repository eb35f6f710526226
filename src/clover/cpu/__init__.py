"""Kernels that are fast on CPUs: linear layers and attention of few rows, and the Muon optimizer."""
