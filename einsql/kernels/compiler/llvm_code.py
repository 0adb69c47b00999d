"""Parts of LLVM code that several functions of kernels write."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


def alloca_once(builder: Any, kind: Any, name: str = "") -> Any:
    """Reserves memory on the stack once for a call of the function, not at each pass of a loop."""
    with builder.goto_entry_block():
        return builder.alloca(kind, name=name)


def external(builder: Any, name: str, result: Any, arguments: list[Any], pure: bool) -> Any:
    """A function of the C library."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, arguments), name)
        function.attributes.add("nounwind")
        if pure:
            function.attributes.add("readonly")
    return function
