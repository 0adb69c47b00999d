"""Source text of segment kernels: rows in the order of their segments, reduced one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einsql.algebra import REDUCTIONS
from einsql.einsum import Call, Const, Expr, Output, Value
from einsql.kernels.expressions import CARRIERS
from einsql.schema import DType

_OPERATIONS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMBINE = {"sum": "{0} + {1}", "product": "{0} * {1}", "min": "minimum({0}, {1})",
            "max": "maximum({0}, {1})"}  # fmt: skip

_NUMBERS = "Array(int64, 1, 'C', readonly=True)"

ORDER = """\
import numpy as np
from numba import njit, types


@njit("boolean(Array(int64, 1, 'C', readonly=True), int64, int64[::1], int64[::1])", cache=True,
      nogil=True)
def kernel(segments, count, starts, order):
    '''Counts the rows of each segment and sorts rows by segment, in their order.

    Rows outside [0, count) are left out. Returns whether rows were in order, and all in
    a segment; `order` is not written then.
    '''
    least = np.int64(0)
    ordered = True
    for e in range(segments.shape[0]):
        s = segments[e]
        ordered &= least <= s
        least = s
        if np.uint64(s) < np.uint64(count):
            starts[np.uintp(s + 1)] += 1
        else:
            ordered = False
    for s in range(count):
        starts[s + 1] += starts[s]
    if ordered:
        return True
    free = starts[:count].copy()
    for e in range(segments.shape[0]):
        s = segments[e]
        if np.uint64(s) < np.uint64(count):
            order[np.uintp(free[np.uintp(s)])] = e
            free[np.uintp(s)] += 1
    return False
"""
"""A stable counting sort."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """How a value is read: by row number or at the row itself, with features or without.

    Attributes:
        found: Whether the row's place is a number of its own.
        wide: Whether there is one element per feature.
    """

    value: Value
    found: bool
    wide: bool


def can_spell(expr: Expr) -> bool:
    """True for float arithmetic on values and constants of one type."""
    if isinstance(expr, Value | Const):
        return expr.dtype in (DType.FLOAT, DType.DOUBLE)
    return (
        isinstance(expr, Call)
        and expr.fn in _OPERATIONS
        and all(a.dtype is expr.dtype for a in expr.args)
        and all(map(can_spell, expr.args))
    )


def _spell(expr: Expr, leaves: Sequence[Leaf]) -> str:
    if isinstance(expr, Value):
        n = next(n for n, x in enumerate(leaves) if x.value == expr)
        return f"a{n}[np.uintp(i{n} + f)]" if leaves[n].wide else f"x{n}"
    if isinstance(expr, Const):
        return f"np.{CARRIERS[expr.dtype]}({_literal(float(expr.value))})"
    assert isinstance(expr, Call)
    first, second = (_spell(a, leaves) for a in expr.args)
    return f"({first} {_OPERATIONS[expr.fn]} {second})"


def _literal(value: float) -> str:
    text = repr(value)
    return f"np.{text}" if text in ("inf", "nan") else "-np.inf" if text == "-inf" else text


def running(o: Output) -> DType:
    """The type of an output's running values."""
    return DType.DOUBLE if o.reduction in ("sum", "product") else o.dtype


def source_of(outputs: Sequence[Output], leaves: Sequence[Leaf]) -> str:
    """The kernel that reduces the rows of some segments.

    Its arguments are the first segment and the one behind the last, the segments' starts,
    the rows in their order, the number of features, for each leaf the row's numbers (empty
    where it is the row itself), the elements from one row to the next and the flat values,
    and the flat results.
    """
    names = ["lo", "hi", "starts", "order", "width"]
    types = ["int64", "int64", "int64[::1]", "int64[::1]", "int64"]
    for n, x in enumerate(leaves):
        names += [f"n{n}", f"s{n}", f"a{n}"]
        carrier = CARRIERS[x.value.dtype]
        types += [_NUMBERS, "int64", f"Array({carrier}, 1, 'C', readonly=True)"]
    for n, o in enumerate(outputs):
        names.append(f"o{n}")
        types.append(f"{CARRIERS[o.dtype]}[::1]")
    body: list[str] = []
    for n, o in enumerate(outputs):
        body.append(f"    r{n} = np.empty(width, np.{CARRIERS[running(o)]})")
    body += ["    for s in range(lo, hi):", "        for f in range(width):"]
    for n, o in enumerate(outputs):
        identity = float(REDUCTIONS[o.reduction or ""].identity(o.dtype))
        start = f"np.{CARRIERS[running(o)]}({_literal(identity)})"
        body.append(f"            r{n}[f] = {start}")
    body.append("        for p in range(starts[np.uintp(s)], starts[np.uintp(s + 1)]):")
    body.append("            e = order[np.uintp(p)]")
    for n, x in enumerate(leaves):
        row = f"n{n}[np.uintp(e)]" if x.found else "e"
        body.append(f"            i{n} = {row} * s{n}")
        if not x.wide:
            body.append(f"            x{n} = a{n}[np.uintp(i{n})]")
    body.append("            for f in range(width):")
    for n, o in enumerate(outputs):
        new = f"np.{CARRIERS[running(o)]}({_spell(o.args[0], leaves)})"
        body.append(
            f"                r{n}[f] = {_COMBINE[o.reduction or ''].format(f'r{n}[f]', new)}"
        )
    body.append("        for f in range(width):")
    for n, o in enumerate(outputs):
        body.append(f"            o{n}[np.uintp(s * width + f)] = np.{CARRIERS[o.dtype]}(r{n}[f])")
    head = f'@njit("void({", ".join(types)})", cache=True, nogil=True, error_model="numpy")'
    return "\n".join(
        [
            "import numpy as np",
            "from numba import njit, types",
            "from einsql.kernels.runtime import maximum, minimum",
            "",
            "",
            head,
            f"def kernel({', '.join(names)}):",
            *body,
            "",
        ]
    )
