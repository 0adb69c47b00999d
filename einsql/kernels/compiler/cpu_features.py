"""The vector registers of the processor, which determine the tiles of kernels."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from itertools import takewhile

from einsql.core.records import dataclass

_MODEL = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""Lines of Linux's description of a processor that list its instruction sets."""


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
    if name in ("x86_64", "amd64"):
        on = _present()
        wide = 64 if "avx512f" in on else 32 if "avx2" in on else 16
        return Machine(wide, 32 if wide == 64 else 16, wide > 16 and "fma" in on)
    return Machine(16, 32, name in ("arm64", "aarch64"))


def _present() -> set[str]:
    """The features that kernels may use; names of LLVM's, which Linux has for those of vectors."""
    flags = _described().get("flags")
    if flags is None or os.environ.get("NUMBA_CPU_FEATURES") is not None:
        return {x[1:] for x in allowed().split(",") if x.startswith("+")}
    has_avx = os.environ.get("NUMBA_ENABLE_AVX") != "0"
    return {x for x in flags.split() if has_avx or not x.startswith("avx")}


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
    """The identity of this machine's processor: its model and its features."""
    described = _described()
    if described:
        return tuple(described.get(name, "") for name in _MODEL)
    from llvmlite import binding  # 30 ms, which a first statement has not to wait for on Linux

    name: str = binding.get_host_cpu_name()
    return name, *(f"{'+' if on else '-'}{x}" for x, on in sorted(_features().items()))


@lru_cache(maxsize=1)
def _features() -> dict[str, bool]:
    from llvmlite import binding

    return dict(binding.get_host_cpu_features())


@lru_cache(maxsize=1)
def _described() -> dict[str, str]:
    """Linux's description of the first processor, if it is an x86; else nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = takewhile(str.strip, file)
            described = {x.strip(): y.strip() for x, _, y in (k.partition(":") for k in lines)}
    except OSError:
        return {}
    return described if "flags" in described else {}
