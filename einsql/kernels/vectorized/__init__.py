"""Kernels that are NumPy calls over whole arrays or blocks."""
