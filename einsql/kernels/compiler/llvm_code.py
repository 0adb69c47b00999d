"""Parts of LLVM code that several functions of kernels write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir


def alloca_once(builder: Any, kind: Any, name: str = "") -> Any:
    """Reserves memory on the stack once for a call of the function, not at each pass of a loop."""
    with builder.goto_entry_block():
        return builder.alloca(kind, name=name)


@contextmanager
def for_range(builder: Any, count: Any) -> Iterator[Any]:
    """Emits a loop from 0 up to a count, which is not inclusive; gives the counter."""
    before = builder.block
    head, body, end = (builder.append_basic_block(x) for x in ("for", "for.body", "for.end"))
    builder.branch(head)
    builder.position_at_end(head)
    counter = builder.phi(count.type)
    counter.add_incoming(count.type(0), before)
    builder.cbranch(builder.icmp_signed("<", counter, count), body, end)
    builder.position_at_end(body)
    yield counter
    counter.add_incoming(builder.add(counter, count.type(1), flags=("nsw",)), builder.block)
    builder.branch(head)
    builder.position_at_end(end)


def external(builder: Any, name: str, result: Any, arguments: list[Any], pure: bool) -> Any:
    """A function of the C library."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, arguments), name)
        function.attributes.add("nounwind")
        if pure:
            function.attributes.add("readonly")
    return function
