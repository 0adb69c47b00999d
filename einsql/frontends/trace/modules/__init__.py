"""PyTorch modules: torch.export gives their graph of ATen operators, which `graph` plays.

What each operator means is said in NumPy's functions of traced arrays: `elements` (one element
at a time), `places` (shapes and indexes), `layers` (products, norms, attention, windows).
"""
