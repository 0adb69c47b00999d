"""The vector registers of the processor, which determine the tiles of kernels."""

from __future__ import annotations

import os
import platform
from functools import lru_cache

from einsql.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """The features of a processor that decide the size of a register tile.

    Attributes:
        width: Bytes of a vector register.
        registers: The number of vector registers.
        fma: Whether it multiplies and adds in one instruction.
    """

    width: int
    registers: int
    fma: bool


@lru_cache(maxsize=1)
def machine() -> Machine:
    """The processor that kernels are compiled for."""
    name = platform.machine().lower()
    features = {x[1:]: x[0] == "+" for x in allowed().split(",") if x}
    if name in ("x86_64", "amd64"):
        wide = 64 if features.get("avx512f") else 32 if features.get("avx2") else 16
        return Machine(wide, 32 if wide == 64 else 16, wide > 16 and bool(features.get("fma")))
    return Machine(16, 32, name in ("arm64", "aarch64"))


def allowed() -> str:
    """The features that kernels may use, as LLVM reads them.

    Numba's environment variables NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX restrict those of the
    processor.
    """
    named = os.environ.get("NUMBA_CPU_FEATURES")
    if named is not None:
        return named
    has_avx = os.environ.get("NUMBA_ENABLE_AVX") != "0"
    features = ((x, on and (has_avx or not x.startswith("avx"))) for x, on in _features().items())
    return ",".join(f"{'+' if on else '-'}{x}" for x, on in sorted(features))


def host() -> tuple[str, ...]:
    """The name and the features of this machine's processor."""
    from llvmlite import binding  # 30 ms, and only compiled kernels need it

    name: str = binding.get_host_cpu_name()
    return name, *(f"{'+' if on else '-'}{x}" for x, on in sorted(_features().items()))


@lru_cache(maxsize=1)
def _features() -> dict[str, bool]:
    from llvmlite import binding

    return dict(binding.get_host_cpu_features())
