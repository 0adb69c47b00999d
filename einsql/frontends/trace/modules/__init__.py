"""PyTorch modules: torch.export returns a graph of ATen operators, which `graph` interprets.

The operators are defined by NumPy's functions of traced arrays: `elements` (one element
at a time), `places` (shapes and indexes), `layers` (products, norms, attention, windows).
"""
