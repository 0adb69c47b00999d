"""The registered kernels in the order of preference, and the choice for a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.source_writer import FieldSource, Page, write_of
from einsql.errors import InternalError
from einsql.ir.einsum.conditional_outputs import always, beside
from einsql.ir.einsum.graph import TRUE, Call, EinSum, Output, exprs, subexpressions
from einsql.ir.einsum.partial_states import has_holistic, is_holistic
from einsql.ir.einsum.reasons import Reason
from einsql.ir.einsum.states import has_states, point_merges, state_name
from einsql.ir.functions import REDUCTIONS
from einsql.ir.functions.python_functions import shown_name
from einsql.kernels.kernel import Arrays, CompiledNode, Kernel, Runner, Tick, WithWriter, share
from einsql.kernels.loops import compile_loops
from einsql.kernels.loops.half_precision import match_floats, stores_half
from einsql.kernels.matmul.contraction import (
    CONTRACTION,
    STREAMED,
    UNCOMPILED,
    compile_parts,
    is_contraction,
)
from einsql.kernels.matmul.match import product_of, refused_product
from einsql.kernels.scalars import failure_of, opaque_functions
from einsql.kernels.tiers import Tiered
from einsql.kernels.vectorized.views import VIEWS

if TYPE_CHECKING:
    from einsql.kernels import convolutions, packed, segments, sparse
    from einsql.kernels.matmul import ranged
    from einsql.kernels.vectorized import best, holistic, rare_extremes, running, vector
else:  # loaded when a node needs one of these modules
    convolutions, packed, segments, sparse = lazy_modules(
        "einsql.kernels", "convolutions", "packed", "segments", "sparse"
    )
    (ranged,) = lazy_modules("einsql.kernels.matmul", "ranged")
    best, holistic, rare_extremes, running, vector = lazy_modules(
        "einsql.kernels.vectorized", "best", "holistic", "rare_extremes", "running", "vector"
    )

SMALL = 1 << 16
"""Points × outputs below which interpretation is faster than compilation, which takes 0.3 s."""
LONG_TERMS = 2**12
"""Terms of an inner product from which loops on all threads are faster than calls of BLAS, which
use one (benchmark `contractions`: `ij,ij->` of 3000² FLOAT)."""
SLOW = {"erf": 8, "lgamma": 8}
"""Functions that NumPy lacks: for how many points each one counts. SciPy's ERF takes 17 ns a value,
a compiled one 2 ns (`python -m benchmarks.encoder --only 1x6`)."""

LONGEST = 256
"""Calls above which expressions are interpreted: the compiler's time is quadratic, 3 s for 256.

A call that may raise counts five times because of its branches.
"""


LONGEST_STATE = 512
"""The same for states of several fields, whose merges by NumPy take ten times as long."""


def _longest(node: EinSum) -> int:
    return LONGEST_STATE if has_states(node) else LONGEST


def _length(node: EinSum) -> int:
    """The approximate length of the source for the node's expressions, in calls."""
    roots = [*exprs(node), *point_merges(node)]
    calls = [e for root in roots for e in subexpressions(root) if isinstance(e, Call)]
    return len(calls) + 4 * sum(failure_of(e) is not None for e in calls)


def _match_sparse(node: EinSum, jit: str = "wait") -> Runner | None:
    if node.points <= SMALL or not (node.guard != TRUE or _reads_sparse(node)):
        return None
    return sparse.compile_sparse(
        node, lambda part: compile_node(part, jit).run, lambda: _compile_whole(node, jit).run
    )


def _match_sort(node: EinSum, jit: str = "wait") -> Runner | None:
    if not all(map(is_holistic, node.outputs)):
        return None
    compile_part = partial(compile_node, jit=jit)
    if all(map(_takes_place, node.outputs)):
        return best.compile_best(node, compile_part)
    return holistic.compile_holistic(node, compile_part)


def _takes_place(o: Output) -> bool:
    return o.reduction is not None and REDUCTIONS[o.reduction].places


def _match_running(node: EinSum, jit: str = "wait") -> Runner | None:
    if node.points <= SMALL or node.guard == TRUE:
        return None
    return running.compile_running(node, lambda part: compile_node(part, jit).run)


def _match_segments(node: EinSum) -> Runner | None:
    return segments.compile_segments(node) if _computes_labels(node) else None


def _match_windows(node: EinSum) -> Runner | None:
    return convolutions.compile_windows(node) if _computes_labels(node) else None


def _computes_labels(node: EinSum) -> bool:
    return any(a.define is not None for a in node.axes)


SORT = Kernel(
    "sort",
    "reductions that need all values of a group sort the values of all groups",
    lambda node: _match_sort(node),
    takes_half=True,
)
WINDOWS = Kernel(
    "windows",
    "a float product of an operand read through affine labels is register tiles",
    _match_windows,
)
SEGMENTS = Kernel(
    "segments", "reductions by a key found in data add rows up, or sort them first", _match_segments
)
SPARSE = Kernel(
    "sparse",
    "a float sum of products over present elements skips absent tiles, or those not stored",
    _match_sparse,
)
RUNNING = Kernel(
    "running",
    "reductions over a label up to a key, or from it, are running reductions of linear time",
    _match_running,
)
PACKED = Kernel(
    "packed",
    "a reduction over two sides with keys of their own is register tiles",
    lambda node: packed.compile_packed(node),
)
VECTOR = Kernel(
    "vector",
    "any node, by whole-array NumPy over blocks of points",
    lambda node: vector.compile_vector(node),
    takes_half=True,
)
LOOPS = Kernel(
    "loops",
    "any node, by compiled loops that fuse everything",
    lambda node: compile_loops(node) if _length(node) <= _longest(node) else None,
    takes_half=True,
)

KERNELS: tuple[Kernel, ...] = (
    VIEWS,
    SORT,
    RUNNING,
    SPARSE,
    CONTRACTION,
    WINDOWS,
    SEGMENTS,
    PACKED,
    VECTOR,
    LOOPS,
)
"""Every kernel, the cheapest first."""


def compile_node(node: EinSum, jit: str = "wait") -> CompiledNode[Runner]:
    """Chooses kernels for a node.

    Args:
        node: A node with well-typed expressions.
        jit: "auto" uses compiled kernels where the domain is large, and runs on NumPy while they
            are being compiled; "wait" uses the same kernels and waits for them; "never" compiles
            nothing; "always" compiles nodes that are neither views nor contractions.

    Raises:
        InternalError: No kernel supports the node.
    """
    functions = opaque_functions(node)
    if functions:
        return _compile_opaque(always(node), functions)
    if _reads_sparse(node) and node.points > SMALL and not _is_running(node, jit):
        over = _over_elements(node, jit)
        if over is not None:
            return over
    compiled = _chosen(node, jit)
    if not compiled.calls_blas:
        refusal = refused_product(node)
        if refusal is not None:
            compiled = replace(compiled, reason=Reason(compiled.kernel, (refusal,)))
    if jit != "auto" or compiled.views or write_of(compiled.run) is not None:
        return compiled
    return replace(compiled, run=Tiered(compiled.run, lambda: _chosen(node, "never").run))


def _is_running(node: EinSum, jit: str) -> bool:
    """True for running reductions: pairs of stored elements would take quadratic time."""
    return _match_running(node, jit) is not None


def _over_elements(node: EinSum, jit: str) -> CompiledNode[Runner] | None:
    """Compiles a node over the stored elements of sparse operands, if it is no product with a
    dense operand, which has a kernel of its own.
    """
    shift = sparse.over_shift(node, lambda: _chosen(node, jit).run)
    if shift is not None:
        return replace(SPARSE.compiled(node, shift), may_be_sparse=True)
    keyed = sparse.with_constant_keys(node)
    if keyed is not None:
        compiled_keyed = _over_elements(keyed, jit)
        if compiled_keyed is None:
            return None
        run_keyed = sparse.without_constant_keys(node, compiled_keyed.run)
        return replace(compiled_keyed, run=run_keyed)
    free = sparse.with_free_labels(node)

    def compiled(has_loops: bool) -> Runner | None:
        functions = (
            lambda part: compile_node(part, jit).run,
            lambda part: compile_node(part, "never").run,
            lambda: _chosen(node, jit).run,
        )
        return sparse.over_elements(free, *functions, has_loops) or sparse.over_filled(
            free, *functions
        )

    run = compiled(jit != "never" and _length(node) <= _longest(node))
    if run is None:
        return None
    if jit == "auto":
        run = Tiered(run, lambda: compiled(False) or _chosen(node, "never").run)
    return replace(SPARSE.compiled(node, run), may_be_sparse=free.sparse)


def _compile_opaque(node: EinSum, functions: Sequence[str]) -> CompiledNode[Runner]:
    """Compiles a node with Python functions, which have no code for kernels."""
    if has_holistic(node):
        return _sorted(node, "never")
    part = sparse.narrowed(node) if _reads_sparse(node) else None
    run = vector.compile_vector(node if part is None else part)
    if part is not None:
        run = sparse.over_parts(node, run)
    names = " and ".join(map(shown_name, functions))
    what = "is a Python function" if len(functions) == 1 else "are Python functions"
    compiled = VECTOR.compiled(node, run)
    return replace(compiled, reason=Reason("no kernel", (f"{names} {what}",)))


def _chosen(node: EinSum, jit: str) -> CompiledNode[Runner]:
    if any(map(beside, node.outputs)):
        return rare_extremes.compile_rare_extremes(node, lambda part: compile_node(part, jit))
    if has_holistic(node):
        return _sorted(node, jit)
    within_limits = _ranged(node, jit)
    if within_limits is not None:
        return within_limits
    runs = _match(replace(RUNNING, match=lambda part: _match_running(part, jit)), node, jit)
    if runs is not None:
        return runs
    if has_states(node) and _is_compiled(node, jit):
        apart = _apart(node.outputs)
        if len(apart) > 1:
            return _combined([_chosen(replace(node, outputs=g), jit) for g in apart])
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


def _sorted(node: EinSum, jit: str) -> CompiledNode[Runner]:
    """Compiles holistic reductions, and the node's other outputs."""
    placed = tuple(o for o in node.outputs if _takes_place(o))
    others = tuple(o for o in node.outputs if is_holistic(o) and o not in placed)
    rest = tuple(o for o in node.outputs if not is_holistic(o))
    kernel = replace(SORT, match=lambda part: _match_sort(part, jit))
    parts = [_first((kernel,), replace(node, outputs=g), jit) for g in (placed, others) if g]
    if rest:
        parts.append(compile_node(replace(node, outputs=rest), jit))
    return parts[0] if len(parts) == 1 else _combined(parts)


def _apart(outputs: Sequence[Output]) -> list[tuple[Output, ...]]:
    """The outputs of states and the others: states are merged in lanes, which others are not."""
    states = tuple(o for o in outputs if state_name(o) is not None)
    return [g for g in (states, tuple(o for o in outputs if o not in states)) if g]


def _ranged(node: EinSum, jit: str) -> CompiledNode[Runner] | None:
    """Compiles sums of products over ranges that scalars bound, and the node's other outputs."""
    if node.guard == TRUE or not any(not o.labels for o in node.operands):
        return None
    split = ranged.without_limits(node)
    if split is None or split[0].guard != TRUE:
        return None
    bare, limits = split
    sums = tuple(o for o in node.outputs if is_contraction(bare, o))
    if not sums:
        return None
    parts: list[CompiledNode[Runner]] = []
    for o in sums:
        part = replace(bare, outputs=(o,))
        compiled = compile_node(part, jit)
        if limits:
            compiled = replace(compiled, run=ranged.over_ranges(part, limits, _of_parts(part, jit)))
        parts.append(compiled)
    rest = tuple(o for o in node.outputs if o not in sums)
    if rest:
        parts.append(compile_node(replace(node, outputs=rest), jit))
    return parts[0] if len(parts) == 1 else _combined(parts)


def _of_parts(node: EinSum, jit: str) -> Callable[[EinSum], Runner]:
    """Returns a compiler for parts of a node's domain; a common kernel is chosen once."""
    if not (_reads_sparse(node) or stores_half(node)):
        compiled = compile_parts(node, jit != "never")
        if compiled is not None:
            return compiled
    return lambda part: compile_node(part, jit).run


def _streams(node: EinSum, output: Output, jit: str) -> bool:
    """True if loops may be compiled that run an output at memory bandwidth.

    These are sums of one operand, products without a sum, and sums of products of two arrays
    that are added row by row, or whose sums have many terms.
    """
    product = product_of(node, output)
    if product is None or jit == "never":
        return False
    if not product.right:
        return node.points > SMALL
    left, right = (node.operands[f[0].operand].labels for f in (product.left, product.right))
    by_rows = left == right and any(x in node.keys for x in left[-1:])
    keys = prod(node.axis(k).extent for k in node.keys)
    long = left == right and node.points >= LONG_TERMS * keys
    return node.points >= STREAMED and (by_rows or long or len(node.keys) == len(node.axes))


def _windows(node: EinSum, output: Output) -> bool:
    """True if an output is a sum of products of an operand read through computed labels."""
    if not _computes_labels(node):
        return False
    return convolutions.is_window_product(node, output)


def _compile(node: EinSum, jit: str) -> CompiledNode[Runner]:
    sparse = _match(replace(SPARSE, match=lambda part: _match_sparse(part, jit)), node, jit)
    return _compile_whole(node, jit) if sparse is None else sparse


def _reads_sparse(node: EinSum) -> bool:
    return any(o.source.sparse for o in node.operands)


def _compile_whole(node: EinSum, jit: str) -> CompiledNode[Runner]:
    """Compiles a node with kernels that read every element of the operands within the domain."""
    if _reads_sparse(node):
        part = sparse.narrowed(node)
        if part is not None:
            narrow = _compile_whole(part, jit)
            return replace(narrow, run=sparse.over_parts(node, narrow.run))
    compiled = _is_compiled(node, jit)
    for kernel in (WINDOWS, SEGMENTS) if compiled else ():
        special = _match(kernel, node, jit)
        if special is not None:
            return special
    contraction = UNCOMPILED if jit == "never" else CONTRACTION
    looked = convolutions.as_windows(node) if _computes_labels(node) else None
    if looked is None:
        if compiled and all(_streams(node, o, jit) for o in node.outputs):
            return _first((LOOPS, contraction), node, jit)
        return _first((VIEWS, contraction, *_general(node, jit)), node, jit)
    kernels = _general(looked.node, jit)
    if not looked.overlap:  # a contraction might copy overlapping elements repeatedly
        kernels = (VIEWS, contraction, *kernels)
    first = _first(kernels, looked.node, jit)
    return replace(first, run=looked.over(first.run))


def _is_compiled(node: EinSum, jit: str) -> bool:
    """True if kernels may be compiled for a node."""
    return jit == "always" or (jit != "never" and node.points > SMALL)


def _first(kernels: Sequence[Kernel], node: EinSum, jit: str) -> CompiledNode[Runner]:
    for kernel in kernels:
        compiled = _match(kernel, node, jit)
        if compiled is not None:
            return compiled
    raise InternalError("No kernel takes a node.")


def _match(kernel: Kernel, node: EinSum, jit: str) -> CompiledNode[Runner] | None:
    if kernel.takes_half or not stores_half(node):
        runner = kernel.match(node)
    else:
        runner = match_floats(kernel, node, jit != "never")
    return None if runner is None else kernel.compiled(node, runner)


def _general(node: EinSum, jit: str) -> tuple[Kernel, ...]:
    """The kernels for nodes with arithmetic, the preferred one first."""
    if jit == "never":
        return (VECTOR,)
    if jit != "always" and (_interpreted(node) <= SMALL or _moves(node)):
        return (VECTOR,)
    return (PACKED, LOOPS, VECTOR)


def _moves(node: EinSum) -> bool:
    """True if a node copies rows by number, of which one block has all."""
    return vector.is_gather(node) and node.points <= vector.GATHER_BLOCK


def _interpreted(node: EinSum) -> int:
    """The work of interpreting a node, in points of one output."""
    calls = (e for root in exprs(node) for e in subexpressions(root) if isinstance(e, Call))
    slowest = max((SLOW.get(e.fn, 1) for e in calls), default=1)
    return node.points * len(node.outputs) * slowest


def _combined(parts: Sequence[CompiledNode[Runner]]) -> CompiledNode[Runner]:
    """Combines the runners of parts that compute different outputs."""
    runners = [p.run for p in parts]

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
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

    return CompiledNode(
        kernel="+".join(dict.fromkeys(p.kernel for p in parts)),
        run=WithWriter(run, lines),
        views=frozenset().union(*(p.views for p in parts)),
        calls_blas=any(p.calls_blas for p in parts),
    )
