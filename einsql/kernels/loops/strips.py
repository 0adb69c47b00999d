"""Source of innermost loops in strips, which process many terms at a time.

Each function takes the number of the innermost loop, whose variable is `l`, the names of its
ends, and the lines of its body.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum, Output
from einsql.ir.einsum.states import point_merges
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.loops.expressions import literal
from einsql.kernels.loops.loop_nest import Mode, Nest, expensive

SCANNED = 64
"""Points of a strip whose extreme is compared with the preceding one."""
JAMMED = 8
"""Terms added per load and store of running values in memory."""
FOLDED = 1024
"""Terms of a DOUBLE sum between compensations, in several lanes; for rows twice as many."""
_NEAR, _AHEAD, _LINE = 2**10, 2**12, 2**6
"""Bytes of a strip that is requested at once, their distance from the current element, and bytes of
a cache line. One thread then sums 15 GB/s of FLOAT instead of 11 (benchmark `reductions`, Intel
Xeon with AVX-512)."""
_STREAMS = 8
"""Greatest number of streams whose data is requested."""
_CHECKS = 8
"""Greatest number of array pairs that a vectorised loop tests for overlap."""
_SHORT = 12
"""Greatest number of lines of a loop body that is unrolled."""


Ends = tuple[str, str]
"""The names of a loop's start and exclusive end."""


def scanned(
    n: int, ends: Ends, o: Output, lines: Sequence[str], pick: int, new: str, best: str, seen: str
) -> list[str]:
    """Writes a loop that finds an argument; each strip's extreme is computed first.

    Args:
        n: The loop.
        ends: Where it begins and ends.
        o: The output with an argument.
        lines: Its body.
        pick: The index of the first line that compares a point.
        new: The point's value.
        best: The current extreme.
        seen: The variable that is set once an extreme exists.
    """
    dtype = o.args[1].dtype
    lowest = o.reduction == "arg_min"
    if dtype.is_float:
        # The extreme of a strip of NaN is infinite; at most its points are compared in vain.
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
    """The number of terms that a row of running values adds at once; 1 if more do not pay.

    A running value costs a load and a store, and most terms only a load.

    Args:
        node: The node.
        nest: Its loops.
        lines: The bodies of the two innermost loops.
        arrays: The number of arrays that the bodies read.
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
        or any(expensive(e) or e.dtype is DType.BOOLEAN for e in point_merges(node))
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
    """Writes the two innermost loops, with several terms for each running value.

    Args:
        n: The number of the innermost loop; the enclosing loop runs over terms.
        ends: The start and end of the enclosing loop.
        outer: The body of the enclosing loop without the innermost loop.
        inner: The body of the innermost loop.
        cells: The running values as the body spells them.
        count: The number of terms.
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


def streamed(
    n: int,
    ends: Ends,
    lines: Sequence[str],
    sizes: Mapping[str, int],
    *,
    until: str = "",
) -> list[str]:
    """Writes a loop that requests memory before it reads it.

    The processor requests what follows in memory by itself, but not soon enough, and not beyond
    a page. Nothing beyond the loop is requested, since it may be far from what is read next.

    Args:
        n: The loop.
        ends: Where it begins and ends.
        lines: Its body.
        sizes: The bytes of an element of each array; none if nothing is to be requested.
        until: The end of the adjacent elements, if it is beyond the loop's.
    """
    head, body = f"for l{n} in range", [f"    {line}" for line in lines]
    reads = _streams(n, lines, sizes)
    if not 0 < len(reads) <= _STREAMS:
        return [f"{head}({ends[0]}, {ends[1]}):", *body]
    strip = _NEAR // max(sizes[array] for array, _ in reads)
    far = strip + max(_AHEAD // sizes[array] for array, _ in reads)
    return [
        f"for w{n} in range({ends[0]}, {ends[1]}, {strip}):",
        f"    if w{n} + {far} <= {until or ends[1]}:",
        *(f"        {x}" for read in reads for x in _request(n, *read, sizes, strip)),
        f"    {head}(w{n}, min(w{n} + {strip}, {ends[1]})):",
        *(f"    {line}" for line in body),
    ]


def _streams(n: int, lines: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """The arrays that a loop's body reads one element after another.

    Returns:
        Each array, and its index without the loop's variable.
    """
    streams: dict[tuple[str, str], None] = {}
    for line in lines:
        for array, index in re.findall(r"\b(a\d+)\[([^\[\]]*)\]", line):
            before, variable, after = index.rpartition(f"l{n}")
            alone = not after and f"l{n}" not in before and before[-2:] in ("", "+ ")
            if variable and alone and array in sizes:
                streams[array, before] = None
    return list(streams)


def _request(n: int, array: str, before: str, sizes: Mapping[str, int], strip: int) -> list[str]:
    """Requests the data of a later strip; in `prefetch` an array's name is its address."""
    start = f"{array} + {sizes[array]} * ({before}w{n}) + {_AHEAD}"
    return [
        f"for line in range(0, {sizes[array] * strip}, {_LINE}):",
        f"    prefetch({start} + line)",
    ]


def added(total: str, lost: str, term: str) -> list[str]:
    """Adds a term to a sum, and the rounding error of the addition to another sum."""
    return [
        f"y = {total} + {term}",
        f"{lost} += rounded_off({total}, {term}, y)",
        f"{total} = y",
    ]


def folded_rows(ends: Ends, loop: Sequence[str], fold: Sequence[str]) -> list[str]:
    """Writes a loop over rows that are added to each other, with a sum per strip.

    Args:
        ends: Where it begins and ends.
        loop: The code that adds the rows from `v` to `g`.
        fold: The code that adds the last rows' sums to the totals; `since` counts these rows.
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


def folded(
    n: int, ends: Ends, lines: Sequence[str], sums: Sequence[int], sizes: Mapping[str, int]
) -> list[str]:
    """Writes a loop with a sum per strip; the strips' sums are added with compensation.

    The rounding error of a sum `h` is added to `k`, so long sums are as accurate as pairwise
    sums.

    Args:
        n: The loop.
        ends: Where it begins and ends.
        lines: Its body.
        sums: The numbers of the summed outputs; the body adds to `s`.
        sizes: See `streamed`.
    """
    strip = f"v{n}", f"min(v{n} + {FOLDED}, {ends[1]})"
    text = [
        f"for v{n} in range({ends[0]}, {ends[1]}, {FOLDED}):",
        *(f"    s{m} = np.float64(0)" for m in sums),
        *(f"    {line}" for line in streamed(n, strip, lines, sizes, until=ends[1])),
    ]
    for m in sums:
        text += [
            f"    y = h{m} + s{m}",
            f"    z = y - h{m}",
            f"    k{m} += (h{m} - (y - z)) + (s{m} - z)",
            f"    h{m} = y",
        ]
    return text
