"""The choice of this process's device: a GPU or the simulator."""

from __future__ import annotations

from functools import lru_cache

from einsql.core import forks
from einsql.errors import OperationalError
from einsql.kernels.cuda.device import WAY_OUT, Device, simulated

_inherited = False
"""Whether a parent process has used the GPU, which disables CUDA in a forked child."""


@lru_cache(maxsize=1)
def device() -> Device:
    """The device of this process.

    Raises:
        OperationalError: There is no device, or a package or the driver is missing.
    """
    if simulated():
        from einsql.kernels.cuda.simulator import Simulator

        return Simulator()
    if _inherited:
        raise OperationalError(
            f"This process was forked from process {forks.parent()}, which has used the GPU, so it "
            "cannot use it",
            hint="Start it by multiprocessing's 'spawn' or 'forkserver'.",
        )
    try:
        from einsql.kernels.cuda.gpu import Gpu  # imports CuPy and numba-cuda

        return Gpu()
    except ImportError as error:
        raise OperationalError(
            f"device = 'cuda' needs CuPy and numba-cuda: {error}", hint=WAY_OUT
        ) from error


def _forget() -> None:
    global _inherited
    if device.cache_info().currsize and not simulated():
        forks.never_destroy(device())
        _inherited = True
        device.cache_clear()


forks.at_fork(_forget)
