"""Innermost loops in strips: text that takes many terms at a time.

All take the number of the innermost loop, whose variable is `l`, the names of its ends, and
the lines of its body.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum, Output
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.loops.expressions import literal
from einsql.kernels.loops.loop_nest import Mode, Nest, expensive

SCANNED = 64
"""Points looked through at a time for an extreme that beats the one before."""
JAMMED = 8
"""Terms that running values in memory take each time they are read and written."""
FOLDED = 1024
"""Terms of a DOUBLE sum that are added one after another, by several lanes; twice as many rows."""
_CHECKS = 8
"""Pairs of arrays of which a vectorised loop may test whether they overlap."""
_SHORT = 12
"""Lines of a loop's body that are worth repeating."""


Ends = tuple[str, str]
"""Where a loop begins and ends."""


def scanned(
    n: int, ends: Ends, o: Output, lines: Sequence[str], pick: int, new: str, best: str, seen: str
) -> list[str]:
    """A loop that looks for an argument: strips are looked through for their extreme first.

    Args:
        n: The loop.
        ends: Where it begins and ends.
        o: The output with an argument.
        lines: Its body.
        pick: The line from which on a point is compared.
        new: The point's value.
        best: The extreme so far.
        seen: The variable that says whether there is one.
    """
    dtype = o.args[1].dtype
    lowest = o.reduction == "arg_min"
    if dtype.is_float:
        # A strip of NaN counts as infinite: it is looked through in vain, if at all.
        start = literal(dtype, math.inf if lowest else -math.inf)
        update = f"lowest(w, number({new}))" if lowest else f"highest(w, {new})"
    else:
        start = literal(dtype, dtype.range[1 if lowest else 0])
        update = f"{'minimum' if lowest else 'maximum'}(w, {new})"
    worse = f"less({best}, w)" if lowest else f"less(w, {best})"
    loop = f"for l{n} in range(v{n}, min(v{n} + {SCANNED}, {ends[1]})):"
    return [
        f"for v{n} in range({ends[0]}, {ends[1]}, {SCANNED}):",
        f"    w = {start}",
        f"    {loop}",
        *(f"        {line}" for line in lines[:pick]),
        f"        w = {update}",
        f"    if not {seen} or not {worse}:",
        f"        {loop}",
        *(f"            {line}" for line in lines),
    ]


def terms_at_once(node: EinSum, nest: Nest, lines: Sequence[str], arrays: int) -> int:
    """How many terms a row of running values takes at once; 1 where that does not pay.

    A running value costs a load and a store, and most terms just a load.

    Args:
        node: The node.
        nest: Its loops.
        lines: The bodies of the last two.
        arrays: How many arrays they read.
    """
    if nest.mode is Mode.REGISTERS or len(nest.loops) < 2:
        return 1
    term, key = nest.loops[-2:]
    outputs = node.outputs
    if (
        any(o.reduction is None or REDUCTIONS[o.reduction].better is not None for o in outputs)
        or key not in node.keys
        or term in node.keys
        or any(node.axis(k).define is not None for k in node.keys)
        or len(lines) > _SHORT
        or any("continue" in line or line.startswith(("if ", " ")) for line in lines)
        or any(expensive(a) for o in outputs for a in o.args)
        or any(o.dtype is DType.BOOLEAN for o in outputs)
    ):
        return 1
    pairs = arrays * len(outputs)
    return next((n for n in (JAMMED, JAMMED // 2, JAMMED // 4) if n * pairs <= _CHECKS), 1)


def jammed(
    n: int,
    ends: Ends,
    outer: Sequence[str],
    inner: Sequence[str],
    cells: Sequence[str],
    count: int,
) -> list[str]:
    """The two innermost loops, with several terms for each running value.

    Args:
        n: The innermost loop; the one around it runs over terms.
        ends: Where that one begins and ends.
        outer: The body of that one, but for the loop inside.
        inner: The body of the innermost.
        cells: The running values, as they are written there.
        count: How many terms.
    """
    body: list[str] = []
    for term in range(count):
        body += [f"l{n - 1} = u + {term}", *outer, *inner]
    for m, cell in enumerate(cells):
        body = [line.replace(cell, f"z{m}") for line in body]
    loop = f"for l{n} in range(b{n}, e{n}):"
    return [
        f"for u in range({ends[0]}, {ends[1]}, {count}):",
        f"    if u + {count} <= {ends[1]}:",
        f"        {loop}",
        *(f"            z{m} = {cell}" for m, cell in enumerate(cells)),
        *(f"            {line}" for line in body),
        *(f"            {cell} = z{m}" for m, cell in enumerate(cells)),
        "    else:",
        f"        for l{n - 1} in range(u, {ends[1]}):",
        *(f"            {line}" for line in outer),
        f"            {loop}",
        *(f"                {line}" for line in inner),
    ]


def folded_rows(ends: Ends, loop: Sequence[str], fold: Sequence[str]) -> list[str]:
    """A loop over rows that are added to each other, whose strips have sums of their own.

    Args:
        ends: Where it begins and ends.
        loop: Code that adds the rows from `v` to `g`.
        fold: Code that adds the sums of the last rows to those of all. `since` counts these rows.
    """
    return [
        f"for v in range({ends[0]}, {ends[1]}, {FOLDED}):",
        f"    g = min(v + {FOLDED}, {ends[1]})",
        *(f"    {line}" for line in loop),
        "    since += g - v",
        f"    if since >= {FOLDED}:",
        "        since = 0",
        *(f"        {line}" for line in fold),
    ]


def folded(n: int, ends: Ends, lines: Sequence[str], sums: Sequence[int]) -> list[str]:
    """A loop whose strips have sums of their own, which are added without loss.

    The rounding error of a sum `h` is added to `k`, so long sums are as accurate as pairwise
    ones.

    Args:
        n: The loop.
        ends: Where it begins and ends.
        lines: Its body.
        sums: The numbers of the outputs that are such sums; the body adds to `s`.
    """
    text = [
        f"for v{n} in range({ends[0]}, {ends[1]}, {FOLDED}):",
        *(f"    s{m} = np.float64(0)" for m in sums),
        f"    for l{n} in range(v{n}, min(v{n} + {FOLDED}, {ends[1]})):",
        *(f"        {line}" for line in lines),
    ]
    for m in sums:
        text += [
            f"    y = h{m} + s{m}",
            f"    z = y - h{m}",
            f"    k{m} += (h{m} - (y - z)) + (s{m} - z)",
            f"    h{m} = y",
        ]
    return text
