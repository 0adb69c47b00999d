"""The kernels in the order they are tried, and the choice among them for a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.schema import DType
from einsql.core.source_writer import FieldSource, Page, write_of
from einsql.errors import InternalError
from einsql.ir.einsum.graph import TRUE, Call, EinSum, Input, Output, exprs, subexpressions
from einsql.kernels.convolutions import as_windows, compile_windows, is_window_product
from einsql.kernels.kernel import Fields, Kernel, Runner, Tick, WithWriter, share
from einsql.kernels.loops import compile_loops
from einsql.kernels.loops.half_precision import match_floats, stores_half
from einsql.kernels.matmul.contraction import (
    CONTRACTION,
    STREAMED,
    UNCOMPILED,
    compile_parts,
    converts,
    is_contraction,
    is_plain_sum,
    is_streamed,
)
from einsql.kernels.matmul.ranged import over_ranges, without_limits
from einsql.kernels.scalars import failure_of
from einsql.kernels.vectorized.numpy_map import MAPS
from einsql.kernels.vectorized.rare_extremes import compile_rare_extremes
from einsql.kernels.vectorized.vector import VECTOR, is_gather
from einsql.kernels.vectorized.views import VIEWS

SMALL = 1 << 16
"""Points × outputs below which interpreting beats compiling, which costs 0.3 s."""


LONGEST = 256
"""Calls above which expressions are interpreted: Numba's time grows by their square, to 3 s here.

A call that may raise counts five times, for the branches it brings.
"""


def _length(node: EinSum) -> int:
    """How much source the node's expressions make."""
    calls = [e for root in exprs(node) for e in subexpressions(root) if isinstance(e, Call)]
    return len(calls) + 4 * sum(failure_of(e) is not None for e in calls)


def _match_sparse(node: EinSum, jit: str = "auto") -> Runner | None:
    if node.points <= SMALL or not (node.guard != TRUE or _reads_sparse(node)):
        return None
    from einsql.kernels.sparse import compile_sparse  # loaded on first use

    return compile_sparse(
        node, lambda part: compile_node(part, jit)[1], lambda: _compile_whole(node, jit)[1]
    )


def _match_packed(node: EinSum) -> Runner | None:
    from einsql.kernels.packed import compile_packed  # loaded on first use

    return compile_packed(node)


def _match_gather(node: EinSum, jit: str = "auto") -> Runner | None:
    if not _computes_labels(node):
        return None
    from einsql.kernels.segments import compile_gather

    return compile_gather(node, jit != "never")


def _match_segments(node: EinSum) -> Runner | None:
    if not _computes_labels(node):
        return None
    from einsql.kernels.segments import compile_segments

    return compile_segments(node)


def _match_windows(node: EinSum) -> Runner | None:
    if not _computes_labels(node):
        return None
    return compile_windows(node)


def _computes_labels(node: EinSum) -> bool:
    return any(a.define is not None for a in node.axes)


WINDOWS = Kernel(
    "windows",
    "a float product of an operand read through affine labels is register tiles",
    _match_windows,
)
GATHER = Kernel("gather", "rows found by number are copied", _match_gather)
SEGMENTS = Kernel(
    "segments", "reductions by a key found in data add rows up, or sort them first", _match_segments
)
SPARSE = Kernel(
    "sparse",
    "a float sum of products over present elements skips absent tiles, or those not stored",
    _match_sparse,
)
PACKED = Kernel(
    "packed", "a reduction over two sides with keys of their own is register tiles", _match_packed
)
LOOPS = Kernel(
    "loops",
    "any node, by compiled loops that fuse everything",
    lambda node: compile_loops(node) if _length(node) <= LONGEST else None,
)

KERNELS: tuple[Kernel, ...] = (
    VIEWS,
    SPARSE,
    CONTRACTION,
    WINDOWS,
    GATHER,
    SEGMENTS,
    PACKED,
    MAPS,
    VECTOR,
    LOOPS,
)
"""Every kernel, the cheapest first."""

_TAKES_HALF = frozenset({VIEWS.name, GATHER.name, VECTOR.name, LOOPS.name})
"""Kernels that take operands and results of two bytes an element as they are."""


def compile_node(node: EinSum, jit: str = "auto") -> tuple[str, Runner]:
    """Chooses kernels for a node and compiles it.

    Args:
        node: A node with well-typed expressions.
        jit: "auto" compiles loops where the domain is large; "never" does not import
            Numba; "always" compiles nodes that are neither views nor contractions.

    Returns:
        The kernels' names, joined by "+", and the runner.

    Raises:
        InternalError: No kernel takes the node.
    """
    seldom = compile_rare_extremes(node, lambda part: compile_node(part, jit))
    if seldom is not None:
        return seldom
    ranged = _ranged(node, jit)
    if ranged is not None:
        return ranged
    contractions = [
        o
        for o in node.outputs
        if (is_contraction(node, o) and not _streams(node, o, jit)) or _windows(node, o)
    ]
    rest = tuple(o for o in node.outputs if o not in contractions)
    if not contractions or (len(contractions) == 1 and not rest):
        return _compile(node, jit)
    groups = [(o,) for o in contractions] + ([rest] if rest else [])
    return _combined([_compile(replace(node, outputs=g), jit) for g in groups])


def _ranged(node: EinSum, jit: str) -> tuple[str, Runner] | None:
    """Sums of products over ranges that end at scalars, and the node's other outputs."""
    if node.guard == TRUE or not any(not o.labels for o in node.operands):
        return None
    split = without_limits(node)
    if split is None or split[0].guard != TRUE:
        return None
    bare, limits = split
    sums = tuple(o for o in node.outputs if is_contraction(bare, o))
    if not sums:
        return None
    parts: list[tuple[str, Runner]] = []
    for o in sums:
        part = replace(bare, outputs=(o,))
        name, run = compile_node(part, jit)
        if limits:
            run = over_ranges(part, limits, _of_parts(part, jit))
        parts.append((name, run))
    rest = tuple(o for o in node.outputs if o not in sums)
    if rest:
        parts.append(compile_node(replace(node, outputs=rest), jit))
    return parts[0] if len(parts) == 1 else _combined(parts)


def _of_parts(node: EinSum, jit: str) -> Callable[[EinSum], Runner]:
    """Makes runners for parts of a node's domain; a kernel that all would have is chosen once."""
    if not (_reads_sparse(node) or stores_half(node)):
        compiled = compile_parts(node, jit != "never")
        if compiled is not None:
            return compiled
    return lambda part: compile_node(part, jit)[1]


def _streams(node: EinSum, output: Output, jit: str) -> bool:
    """True for long plain sums where loops may be compiled, and shorter ones that convert."""
    least = SMALL if output.args[0].dtype is DType.DOUBLE and converts(output) else STREAMED
    return jit != "never" and node.points >= least and is_plain_sum(node, output)


def _windows(node: EinSum, output: Output) -> bool:
    """True if an output is a sum of products of an operand read through computed labels."""
    if not _computes_labels(node):
        return False
    return is_window_product(node, output)


def _compile(node: EinSum, jit: str) -> tuple[str, Runner]:
    sparse = _match(replace(SPARSE, match=lambda part: _match_sparse(part, jit)), node, jit)
    return _compile_whole(node, jit) if sparse is None else (SPARSE.name, sparse)


def _reads_sparse(node: EinSum) -> bool:
    return any(isinstance(o.source, Input) and o.source.sparse for o in node.operands)


def _compile_whole(node: EinSum, jit: str) -> tuple[str, Runner]:
    """Kernels that read every element of the operands within the domain."""
    if _reads_sparse(node):
        from einsql.kernels.sparse import narrowed, over_parts  # as in `_match_sparse`

        part = narrowed(node)
        if part is not None:
            name, run = _compile_whole(part, jit)
            return name, over_parts(node, run)
    compiled = jit == "always" or (jit == "auto" and node.points > SMALL)
    for kernel in (WINDOWS, SEGMENTS) if compiled else ():
        special = _match(kernel, node, jit)
        if special is not None:
            return kernel.name, special
    contraction = UNCOMPILED if jit == "never" else CONTRACTION
    windows = None
    if _computes_labels(node):
        windows = as_windows(node)
    if windows is None:
        gather = replace(GATHER, match=lambda node: _match_gather(node, jit))
        if compiled and (is_streamed(node) or all(_streams(node, o, jit) for o in node.outputs)):
            return _first((LOOPS, contraction), node, jit)
        return _first((VIEWS, contraction, gather, *_general(node, jit)), node, jit)
    kernels = _general(windows.node, jit)
    if not windows.overlap:  # a contraction might copy elements as often as they are read
        kernels = (VIEWS, contraction, *kernels)
    name, run = _first(kernels, windows.node, jit)
    return name, windows.over(run)


def _first(kernels: Sequence[Kernel], node: EinSum, jit: str) -> tuple[str, Runner]:
    for kernel in kernels:
        runner = _match(kernel, node, jit)
        if runner is not None:
            return kernel.name, runner
    raise InternalError("No kernel takes a node.")


def _match(kernel: Kernel, node: EinSum, jit: str) -> Runner | None:
    if kernel.name in _TAKES_HALF or not stores_half(node):
        return kernel.match(node)
    if kernel is MAPS:
        return None  # loops fuse the conversion
    return match_floats(kernel, node, jit != "never")


def _general(node: EinSum, jit: str) -> tuple[Kernel, ...]:
    """The kernels for nodes with arithmetic, the preferred one first."""
    if jit == "never":
        return (MAPS, VECTOR)
    if jit == "auto" and (node.points * len(node.outputs) <= SMALL or is_gather(node)):
        return (MAPS, VECTOR)
    if jit == "auto" and not _repeats(node):
        return (PACKED, MAPS, LOOPS, VECTOR)
    return (PACKED, LOOPS, VECTOR)


def _repeats(node: EinSum) -> bool:
    """True if an operand is repeated over many keys: NumPy has a short loop for each of them."""
    repeated = (0 < len(o.labels) < len(node.keys) for o in node.operands)
    return node.points >= STREAMED and any(repeated)


def _combined(parts: Sequence[tuple[str, Runner]]) -> tuple[str, Runner]:
    """One runner for parts that compute different outputs."""
    runners = [runner for _, runner in parts]

    def run(operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        fields: dict[str, np.ndarray] = {}
        for n, runner in enumerate(runners):
            fields |= runner(operands, share(tick, n, len(runners)))
        return fields

    def lines(page: Page, operands: Sequence[FieldSource]) -> dict[str, str] | None:
        names: dict[str, str] = {}
        for write in map(write_of, runners):
            written = None if write is None else write(page, operands)
            if written is None:
                return None
            names |= written
        return names

    return "+".join(dict.fromkeys(name for name, _ in parts)), WithWriter(run, lines)
