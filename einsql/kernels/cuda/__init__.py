"""Kernels of a GPU, over relations that stay in the device's memory.

`device.py` is the protocol of a device. `gpu.py` implements it, and `simulator.py` for tests;
`process_device.py` chooses between them. `operators.py` chooses a kernel for a node: a view
(without a copy), `products.py`, `tiles.py`, or the generated grid of `generated.py` and
`source.py`. `memory.py` and `slabs.py` manage the memory of the device.
"""

from einsql.kernels.cuda.memory import Handle, Memory
from einsql.kernels.cuda.operators import compile_on_device
from einsql.kernels.cuda.process_device import device

__all__ = ["Handle", "Memory", "compile_on_device", "device"]
