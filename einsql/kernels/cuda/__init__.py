"""Kernels of a GPU: the same nodes, on relations that stay in the device's memory.

`device.py` says what a device is, and there are two: `gpu.py` and, for tests, `simulator.py`.
`operators.py` chooses a kernel for a node: a view (nothing moves), `products.py`, `tiles.py`,
or the generated grid of `generated.py` and `source.py`. `memory.py`, `slabs.py` and `shortage.py`
say what is on the device, and what happens where it does not fit.
"""

from einsql.kernels.cuda.memory import Handle, Memory
from einsql.kernels.cuda.operators import compile_on_device
from einsql.kernels.cuda.process_device import device

__all__ = ["Handle", "Memory", "compile_on_device", "device"]
