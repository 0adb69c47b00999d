"""Compiles the text of a kernel to object code by Numba.

Importing this module imports Numba, so processes import it where they compile: in the compiler
process, or in this one if no other process can be started.
"""

from __future__ import annotations

import ast
import os
import re
from types import ModuleType
from typing import Any

os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # its symbols would be missing later

from numba import njit, types
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic

from einsql.errors import InternalError
from einsql.kernels.runtime.machine_code import ObjectCode
from einsql.kernels.runtime.translated_expressions import Text, Typed, Unsupported
from einsql.kernels.runtime.translator import Module

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
    try:
        compiled = _translated(name, source)
    except Exception:  # a text beyond the translator, or an error that Numba explains
        module = ModuleType(name)
        exec(compile(source, f"<einsql {name}>", "exec"), module.__dict__)
        compiled = module.__dict__["kernel"]
    overload = compiled.overloads[compiled.signatures[0]]
    _, _, (code, _) = overload.library.serialize_using_object_code()
    missing = _MISSING.search(code)
    if missing is not None:
        raise InternalError(f"a kernel calls {missing[1].decode()}")
    returns = overload.signature.return_type
    return ObjectCode(
        entry=overload.fndesc.llvm_func_name,
        parameters=tuple(map(_parameter, overload.signature.args)),
        returns=None if returns == types.none else _dtype(returns),
        code=code,
    )


def is_translated(name: str, source: str) -> bool:
    """Whether the translator takes a text; see `object_code`."""
    try:
        _translated(name, source)
    except Exception:  # see `_translated`
        return False
    return True


def _translated(name: str, source: str) -> Any:
    """Compiles a kernel whose body is the translated text.

    Raises:
        Exception: The text is beyond the translator, or wrong.
    """
    tree = ast.parse(source)
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.decorator_list]
    tree.body = [statement for statement in tree.body if statement not in functions]
    names: dict[str, Any] = {}
    exec(compile(tree, f"<einsql {name}>", "exec"), names)
    names |= {f.name: Text(f, names) for f in functions}
    kernel: Text = names["kernel"]
    (decorator,) = kernel.tree.decorator_list
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.args[0], ast.Constant)):
        raise Unsupported("a kernel without a signature")
    arguments, returns = normalize_signature(decorator.args[0].value)  # type: ignore[no-untyped-call]  # Numba's own

    def typed(_: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = [Typed(t, a) for t, a in zip(signature.args, args, strict=True)]
            returned = Module(context, builder.module).call(builder, kernel, given)
            if returns == types.none:
                return context.get_dummy_value()
            return context.cast(builder, returned.code, returned.type, returns)

        return returns(*given), generate

    listed = ", ".join(f"a{n}" for n in range(len(arguments)))
    space: dict[str, Any] = {"typed": typed}
    exec(f"def body(context, {listed}): return typed(context, {listed})", space)
    space["body"] = intrinsic(space["body"])
    exec(f"def kernel({listed}): return body({listed})", space)
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    compile_function: Any = njit  # Numba's stub lacks these options
    return compile_function(returns(*arguments), **options)(space["kernel"])


def _parameter(kind: Any) -> tuple[str, int | None]:
    if isinstance(kind, types.Array):
        return _dtype(kind.dtype), kind.ndim
    if kind not in _NUMBERS:
        raise InternalError(f"a kernel takes {kind}")
    return str(kind), None


def _dtype(kind: Any) -> str:
    return "bool" if kind == types.boolean else str(kind)
