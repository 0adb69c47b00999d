"""Source text of segment kernels, which reduce rows one by one in the order of segments."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, Expr, Output, Value
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.loops.expressions import CARRIERS, Builder, literal, typed

FOLDED = 1024
"""Rows of a segment whose DOUBLE values are added without compensation; a power of two."""
FEW, TOGETHER = 256, 1984
"""Greatest number of running values that are folded together, and the rows between folds: 2,048
additions less 64 for the threads' sums. A common row count is cheaper than one per value."""

_OPERATIONS = frozenset({"add", "sub", "mul", "div"})
"""Functions that the kernels compute, over floats of one type."""
_COMBINE = {
    "sum": "plus({0}, {1})",
    "product": "{0} * {1}",
    "min": "minimum({0}, {1})",
    "max": "maximum({0}, {1})",
}

_NUMBERS = "Array(int64, 1, 'C', readonly=True)"

ORDER = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back


@njit("boolean(Array(int64, 1, 'C', readonly=True), int64, int64[::1], int64[::1])")
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
    room = borrow(8 * count)
    free = at(room, np.int64)
    for s in range(count):
        free[s] = starts[s]
    for e in range(segments.shape[0]):
        s = segments[e]
        if np.uint64(s) < np.uint64(count):
            order[np.uintp(free[np.uintp(s)])] = e
            free[np.uintp(s)] += 1
    give_back(room)
    return False
"""
"""A stable counting sort."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The reading of a value: by row number or at the row itself, with or without features.

    Attributes:
        found: Whether the row is read by a computed number.
        wide: Whether the row has one element per feature.
    """

    value: Value
    found: bool
    wide: bool


INTEGERS = (DType.TINYINT, DType.INTEGER, DType.BIGINT)


def can_spell(expr: Expr) -> bool:
    """True for float arithmetic on values and constants of one type, and for integer values."""
    if isinstance(expr, Value | Const):
        return expr.dtype in (DType.FLOAT, DType.DOUBLE, *INTEGERS)
    if expr.dtype in INTEGERS:
        (arg,) = expr.args[:1] if isinstance(expr, Call) and expr.fn == "cast" else (None,)
        return isinstance(arg, Value) and arg.dtype in INTEGERS and _widens(arg.dtype, expr.dtype)
    return (
        isinstance(expr, Call)
        and expr.fn in _OPERATIONS
        and all(a.dtype is expr.dtype for a in expr.args)
        and all(map(can_spell, expr.args))
    )


def _widens(source: DType, target: DType) -> bool:
    return source.range[1] <= target.range[1]


class _Row(Builder):
    """The statements that compute expressions at feature `f` of row `e`."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__()
        self.leaves = leaves

    def load(self, e: Value) -> str:
        n = next(n for n, x in enumerate(self.leaves) if x.value == e)
        return f"a{n}[np.uintp(i{n} + f)]" if self.leaves[n].wide else f"x{n}"


def running(o: Output) -> DType:
    """The type of an output's running values."""
    if o.dtype.is_float and o.reduction in ("sum", "product"):
        return DType.DOUBLE
    return o.dtype


def sorting_source(outputs: Sequence[Output], leaves: Sequence[Leaf]) -> str:
    """Writes the kernel that reduces the sorted rows of a range of segments.

    Its arguments are the first segment and the exclusive end, the segments' starts, the sorted
    rows, the number of features, three arguments per leaf, and the flat results. A leaf has the
    row numbers (empty if the row itself is read), the elements between rows and the flat values.
    It returns whether a sum of integers exceeded its type.
    """
    names = ["lo", "hi", "starts", "order", "width"]
    types = ["int64", "int64", "int64[::1]", "int64[::1]", "int64"]
    _name_leaves(leaves, names, types)
    for n, o in enumerate(outputs):
        names.append(f"o{n}")
        types.append(f"{CARRIERS[o.dtype]}[::1]")
    long = [n for n, o in enumerate(outputs) if is_compensated(o)]
    carriers = {f"r{n}": CARRIERS[running(o)] for n, o in enumerate(outputs)}
    carriers |= {f"{x}{n}": "float64" for n in long for x in "hk"}
    body = [f"room_{x} = borrow(8 * width)" for x in carriers]
    body += [f"{x} = at(room_{x}, np.{carrier})" for x, carrier in carriers.items()]
    body += ["for s in range(lo, hi):", "    for f in range(width):"]
    for n, o in enumerate(outputs):
        start = literal(running(o), REDUCTIONS[o.reduction or ""].identity(o.dtype))
        body.append(f"        r{n}[f] = {start}")
    body += [f"        {x}{n}[f] = 0.0" for n in long for x in "hk"]
    rows = "range(starts[np.uintp(s)], starts[np.uintp(s + 1)])"
    pad = " " * 4
    if long:
        body += [
            "    last = starts[np.uintp(s + 1)]",
            f"    for v in range(starts[np.uintp(s)], last, {FOLDED}):",
        ]
        rows, pad = f"range(v, min(v + {FOLDED}, last))", " " * 8
    body += [f"{pad}for p in {rows}:", f"{pad}    e = order[np.uintp(p)]"]
    body += _at_row(leaves, f"{pad}    ")
    body.append(f"{pad}    for f in range(width):")
    body += _combined(outputs, leaves, "f", f"{pad}        ")
    if long:
        body.append(f"{pad}for f in range(width):")
        body += [f"{pad}    {line}" for n in long for line in _folded(n, "f")]
    body.append("    for f in range(width):")
    for n, o in enumerate(outputs):
        done = (
            f"h{n}[f] + k{n}[f] if np.isfinite(h{n}[f]) else h{n}[f]" if n in long else f"r{n}[f]"
        )
        body.append(f"        o{n}[np.uintp(s * width + f)] = np.{CARRIERS[o.dtype]}({done})")
    body += [f"give_back(room_{x})" for x in carriers]
    return _assembled(names, types, body)


def is_compensated(o: Output) -> bool:
    """True for sums of DOUBLE: partial sums of `FOLDED` rows are added with compensation."""
    return o.reduction == "sum" and o.dtype is DType.DOUBLE


def _folded(n: int, at: str) -> list[str]:
    """Adds the sum of the last rows at an index to the total, and records its rounding error."""
    return [
        f"y = h{n}[{at}] + r{n}[{at}]",
        f"k{n}[{at}] += rounded_off(h{n}[{at}], r{n}[{at}], y)",
        f"h{n}[{at}] = y",
        f"r{n}[{at}] = 0.0",
    ]


def scattering_source(
    outputs: Sequence[Output], leaves: Sequence[Leaf], sizes: tuple[int, int]
) -> str:
    """Writes the kernel that adds rows to the running values of their segments.

    Its arguments are the first row and the exclusive end, the segment of each row, the numbers of
    segments and of features, the arguments of each leaf, the row count of each segment, and the
    flat running values. Leaves are as in the kernel over sorted rows. A sum of DOUBLE has three
    running values: up to `FOLDED` last rows, all rows before, and their rounding error. The
    kernel returns whether a sum of integers exceeded its type.

    Args:
        outputs: The outputs.
        leaves: The operand fields.
        sizes: The numbers of segments and features. The text depends on whether there is one
            feature, and whether there are few running values.
    """
    narrow, few = sizes[1] == 1, sizes[0] * sizes[1] <= FEW
    names = ["lo", "hi", "at", "count", "width"]
    types = ["int64", "int64", _NUMBERS, "int64", "int64"]
    _name_leaves(leaves, names, types)
    names.append("counts")
    types.append("int64[::1]")
    long = [n for n, o in enumerate(outputs) if is_compensated(o)]
    for n, o in enumerate(outputs):
        for x in "rhk" if n in long else "r":
            names.append(f"{x}{n}")
            types.append(f"{CARRIERS[running(o)]}[::1]")
    body = [
        "    s = at[np.uintp(e)]",
        "    if np.uint64(s) < np.uint64(count):",
        "        counts[np.uintp(s)] += 1",
        *_at_row(leaves, " " * 8),
    ]
    at = "np.uintp(s)" if narrow else "np.uintp(s * width + f)"
    if long and not few:
        body.append(f"        if counts[np.uintp(s)] & {FOLDED - 1} == 0:")
        body += ["            f = 0"] if narrow else ["            for f in range(width):"]
        pad = " " * (12 if narrow else 16)
        body += [f"{pad}{line}" for n in long for line in _folded(n, at)]
    if narrow:
        body += ["        f = 0", *_combined(outputs, leaves, at, " " * 8)]
    else:
        body.append("        for f in range(width):")
        body += _combined(outputs, leaves, at, " " * 12)
    if not (long and few):
        return _assembled(names, types, ["for e in range(lo, hi):", *body])
    folded = [line for n in long for line in _folded(n, "np.uintp(m)")]
    return _assembled(
        names,
        types,
        [
            f"for v in range(lo, hi, {TOGETHER}):",
            f"    for e in range(v, min(v + {TOGETHER}, hi)):",
            *(f"    {line}" for line in body),
            "    for m in range(count * width):",
            *(f"        {line}" for line in folded),
        ],
    )


def _name_leaves(leaves: Sequence[Leaf], names: list[str], types: list[str]) -> None:
    for n, x in enumerate(leaves):
        names += [f"n{n}", f"s{n}", f"a{n}"]
        carrier = CARRIERS[x.value.dtype]
        types += [_NUMBERS, "int64", f"Array({carrier}, 1, 'C', readonly=True)"]


def _at_row(leaves: Sequence[Leaf], pad: str) -> list[str]:
    """Writes the values of row `e` that do not depend on the feature."""
    lines = []
    for n, x in enumerate(leaves):
        row = f"n{n}[np.uintp(e)]" if x.found else "e"
        lines.append(f"{pad}i{n} = {row} * s{n}")
        if not x.wide:
            lines.append(f"{pad}x{n} = a{n}[np.uintp(i{n})]")
    return lines


def _combined(outputs: Sequence[Output], leaves: Sequence[Leaf], at: str, pad: str) -> list[str]:
    """Accumulates feature `f` of a row into the running values at an index."""
    row = _Row(leaves)
    for n, o in enumerate(outputs):
        run, new = f"r{n}[{at}]", typed(running(o), row.value(o.args[0]))
        if o.reduction == "sum" and o.dtype.is_integer:
            new = row.temp(new)
            row.emit(f"bad |= add_overflows({run}, {new})")
        row.emit(f"{run} = {_COMBINE[o.reduction or ''].format(run, new)}")
    return [pad + line for line in row.lines]


def _assembled(names: Sequence[str], types: Sequence[str], body: Sequence[str]) -> str:
    head = f'@njit("boolean({", ".join(types)})")'
    return "\n".join(
        [
            "from einsql.kernels.runtime.compiled_functions import (",
            "    add_overflows, at, borrow, give_back, maximum, minimum, plus, rounded_off)",
            "",
            "",
            head,
            f"def kernel({', '.join(names)}):",
            "    bad = False",
            *(f"    {line}" for line in body),
            "    return bad",
            "",
        ]
    )
