"""What of the processor decides how packed kernels are written."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Machine:
    """What of the processor decides a tile.

    Attributes:
        width: Bytes of a vector register.
        registers: How many there are.
        fma: Whether it multiplies and adds in one instruction.
    """

    width: int
    registers: int
    fma: bool


@lru_cache(maxsize=1)
def machine() -> Machine:
    """The processor that Numba compiles for."""
    from llvmlite import binding
    from numba.core import config

    name = platform.machine().lower()
    named = getattr(config, "CPU_FEATURES", None)  # what the user restricts Numba to, if anything
    found = dict(binding.get_host_cpu_features()) if named is None else {
        x[1:]: x[0] == "+" for x in named.split(",") if x
    }  # fmt: skip
    if name in ("x86_64", "amd64"):
        wide = 64 if found.get("avx512f") else 32 if found.get("avx2") else 16
        if not getattr(config, "ENABLE_AVX", True):
            wide = 16
        return Machine(wide, 32 if wide == 64 else 16, wide > 16 and bool(found.get("fma")))
    return Machine(16, 32, name in ("arm64", "aarch64"))
