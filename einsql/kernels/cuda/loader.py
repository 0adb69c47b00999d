"""Generated CUDA modules, compiled once per process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1024)
def load(source: str) -> Any:
    """The dispatcher `kernel` of a generated module; it compiles on its first launch."""
    module: dict[str, Any] = {"__name__": "einsql_cuda_kernel"}
    exec(compile(source, "<einsql CUDA kernel>", "exec"), module)
    return module["kernel"]
