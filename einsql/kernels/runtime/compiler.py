"""Compiles the text of a kernel to object code by Numba.

Importing this module imports Numba, so processes import it where they compile: in the compiler
process, or in this one if no other process can be started.
"""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # its symbols would be missing later

from numba import types

from einsql.errors import InternalError
from einsql.kernels.runtime.machine_code import ObjectCode

_MISSING = re.compile(rb"\0((?:NRT_MemInfo_alloc|numba_|__svml_|Py)\w+)\0")
"""Symbols that only a process with Numba has."""

_NUMBERS = (types.int64, types.int32, types.float64, types.float32)


def object_code(name: str, source: str) -> ObjectCode:
    """Compiles the function `kernel` of a generated module.

    Args:
        name: The name of the module in tracebacks.
        source: The module's text; the function has one signature.

    Raises:
        InternalError: The function needs Numba while it runs.
        Exception: Any other one, if the text does not compile.
    """
    module = ModuleType(name)
    exec(compile(source, f"<einsql {name}>", "exec"), module.__dict__)
    compiled: Any = module.__dict__["kernel"]
    result = compiled.overloads[compiled.signatures[0]]
    _, _, (code, _) = result.library.serialize_using_object_code()
    missing = _MISSING.search(code)
    if missing is not None:
        raise InternalError(f"a kernel calls {missing[1].decode()}")
    returns = result.signature.return_type
    return ObjectCode(
        entry=result.fndesc.llvm_func_name,
        parameters=tuple(map(_parameter, result.signature.args)),
        returns=None if returns == types.none else _dtype(returns),
        code=code,
    )


def _parameter(kind: Any) -> tuple[str, int | None]:
    if isinstance(kind, types.Array):
        return _dtype(kind.dtype), kind.ndim
    if kind not in _NUMBERS:
        raise InternalError(f"a kernel takes {kind}")
    return str(kind), None


def _dtype(kind: Any) -> str:
    return "bool" if kind == types.boolean else str(kind)
