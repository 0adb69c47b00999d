"""Result types of the operations of the implementation algebra.

A physical relation is a set of (key, array, site) (TRA §3). Its type records the sites of
every array. So the matches of a local join, the sites that share a group, and the moved bytes
are known exactly before a plan runs.

Several arrays under one key are *parts*, which ⊕ will merge. The functions reject local
operations that would compute wrong results on the arrays of their sites.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from math import prod
from typing import Any, ParamSpec, TypeVar

import numpy as np

from einsql.core.schema import DType
from einsql.errors import IntegrityError
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Value, relabel
from einsql.ir.functions import REDUCTIONS
from einsql.ir.ia.placement import Held, Placement, Sites, law_of
from einsql.ir.tra import kernel_typing
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import BlockSchema, Cuts, KeyTuple, matches, over_keys, shown


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalSchema:
    """The type of a physical relation.

    Attributes:
        blocks: The relation's keys and the shapes of its arrays, independent of sites.
        placement: The sites of the arrays as a distribution over a grid.
        held: The sites of each array.
        merge: The reduction that merges parts under one key; None without parts.
    """

    blocks: BlockSchema
    placement: Placement
    held: Held
    merge: str | None = None

    @property
    def sites(self) -> int:
        """The number of sites."""
        return self.placement.sites

    def nbytes(self, key: KeyTuple) -> int:
        """Bytes of the array under a key."""
        return prod(self.blocks.shape(key)) * self.blocks.dtype.numpy.itemsize

    @property
    def holders(self) -> np.ndarray:
        """The sites of every copy of every part, int64 (keys, parts, copies).

        Keys are in the order of `blocks.each_key`; -1 stands for a part or a copy that a key lacks.
        """
        held = [self.held[k] for k in self.blocks.each_key()]
        most = max((len(parts) for parts in held), default=1)
        copies = max((len(c) for parts in held for c in parts), default=1)
        sites = np.full((len(held), most, copies), -1, np.int64)
        for row, parts in zip(sites, held, strict=True):
            for n, at in enumerate(parts):
                row[n, : len(at)] = at
        return sites

    def at(self, site: int) -> list[tuple[KeyTuple, int]]:
        """The copies at a site: the key and the part's number of each."""
        return [
            (key, n)
            for key, parts in self.held.items()
            for n, copies in enumerate(parts)
            if site in copies
        ]


_P = ParamSpec("_P")
_T = TypeVar("_T")
_KNOWN: ContextVar[dict[Hashable, Any] | None] = ContextVar("_KNOWN", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Context in which types are cached: equal operations on the same types share one type.

    A search builds the same operations repeatedly, in plans that differ elsewhere.
    """
    known = _KNOWN.get()
    token = _KNOWN.set({} if known is None else known)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def _remembered(function: Callable[_P, _T]) -> Callable[_P, _T]:
    @wraps(function)
    def typed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        known = _KNOWN.get()
        if known is None:
            return function(*args, **kwargs)
        call = (function, args, *kwargs.items())
        if call not in known:
            known[call] = function(*args, **kwargs)
        remembered: _T = known[call]
        return remembered

    return typed


# ---- repartition


@_remembered
def moved(source: PhysicalSchema, placement: Placement) -> PhysicalSchema:
    """BCAST and SHUF: the same arrays at other sites, with parts unmerged."""
    sites_by_key = {k: (placement.at(k),) * len(parts) for k, parts in source.held.items()}
    return PhysicalSchema(source.blocks, placement, sites_by_key, source.merge)


@_remembered
def recut(source: PhysicalSchema, cuts: Cuts, placement: Placement) -> PhysicalSchema:
    """Π with a shuffle: the same tensor in other blocks and at other sites.

    Raises:
        IntegrityError: Keys are missing, or parts are not merged.
        ProgrammingError: The keys do not cut the axes, or the cuts do not fit.
    """
    _whole(source, "Repartition")
    blocks = tra_typing.repartition_schema(source.blocks, cuts)
    return PhysicalSchema(blocks, placement, {k: (placement.at(k),) for k in blocks.each_key()})


# ---- local operations on one relation


@dataclass(frozen=True, slots=True)
class Tiled:
    """A local map emits each array in tiles of `size` along `dim`; the last may be smaller."""

    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A local map emits each array `count` times."""

    count: int


Emit = Tiled | Duplicate


@_remembered
def filtered(source: PhysicalSchema, condition: Expr) -> PhysicalSchema:
    """σᴸ: the pairs whose keys satisfy a condition.

    Raises:
        ProgrammingError: The condition is not a BOOLEAN.
    """
    blocks = tra_typing.filter_schema(source.blocks, condition)
    return _described(blocks, {k: source.held[k] for k in blocks.each_key()}, source.merge, source)


@_remembered
def mapped(
    source: PhysicalSchema,
    emit: Emit | None,
    keys: tuple[Expr, ...] | None,
    kernels: tuple[EinSum, ...],
) -> PhysicalSchema:
    """λᴸ: emits every array once or more, applies kernels to it, and renames its key.

    Args:
        source: The relation.
        emit: The emission of several pairs per pair; the emission's number is a new last key.
        keys: The new key over the old key and that number; None keeps the keys.
        kernels: The kernels, applied in order.

    Raises:
        IntegrityError: Two new keys are equal, or a kernel that needs merged arrays reads parts.
        ProgrammingError: A kernel does not fit.
    """
    if source.merge is not None and not all(distributes(k, source.merge) for k in kernels):
        raise IntegrityError(f"A local map needs merged arrays, not parts of a {source.merge}")
    blocks = chained(emitted(source.blocks, emit), kernels)
    old = [k[: len(source.blocks.bounds)] for k in blocks.each_key()]
    new = renamed(list(blocks.each_key()), keys)
    if keys is not None:
        blocks = tra_typing.rekey_schema(blocks, keys)
    sites_by_key = {n: source.held[o] for n, o in sorted(zip(new, old, strict=True))}
    return _described(blocks, sites_by_key, source.merge, source)


def emitted(source: BlockSchema, emit: Emit | None) -> BlockSchema:
    """The relation after the emission of a local map, with its additional last key."""
    if emit is None:
        return source
    if isinstance(emit, Tiled):
        return tra_typing.tile_schema(source, emit.dim, emit.size)
    existing = source.existing
    if existing is not None:
        existing = frozenset((*k, n) for k in existing for n in range(emit.count))
    return replace(source, bounds=(*source.bounds, emit.count), existing=existing)


def chained(blocks: BlockSchema, kernels: Iterable[EinSum]) -> BlockSchema:
    """The relation after a chain of kernels."""
    for kernel in kernels:
        blocks = kernel_typing.transform_schema(blocks, kernel)
    return blocks


@_remembered
def aggregated(
    source: PhysicalSchema,
    group_by: tuple[int, ...],
    reduce: str,
    inner: tuple[EinSum, ...],
    finish: tuple[EinSum, ...],
    where: Expr,
) -> PhysicalSchema:
    """Σᴸ: merges the arrays of a group at each site; returns parts if sites share a group.

    Args:
        source: The relation.
        group_by: The result's keys.
        reduce: The reduction ⊕.
        inner: Kernels applied to every array before the merge.
        finish: Kernels applied to every merged array.
        where: A condition on the result's keys; other groups are skipped.

    Raises:
        IntegrityError: Parts have another reduction, or a kernel that needs merged arrays
            reads parts.
        ProgrammingError: Keys, reduction or kernels do not fit.
    """
    if source.merge not in (None, reduce):
        raise IntegrityError(f"Parts of a {source.merge} cannot be merged by {reduce}")
    before = source.blocks
    if where != TRUE:
        before = tra_typing.filter_schema(before, over_groups(where, group_by))
    blocks = tra_typing.aggregate_schema(chained(before, inner), group_by, (reduce,))
    sites_by_key = _shared(source, before, group_by)
    merge = reduce if any(len(parts) > 1 for parts in sites_by_key.values()) else None
    late = [*(finish if merge else ()), *(inner if source.merge else ())]
    if not all(distributes(k, reduce) for k in late):
        raise IntegrityError(f"A kernel of a local aggregation would read parts of a {reduce}")
    return _described(chained(blocks, finish), sites_by_key, merge, source)


def over_groups(where: Expr, group_by: Sequence[int]) -> Expr:
    """A condition on the keys of groups as a condition on the operand's keys."""
    return relabel(where, {f"k{n}": f"k{g}" for n, g in enumerate(group_by)})


def _shared(source: PhysicalSchema, before: BlockSchema, group_by: Sequence[int]) -> Held:
    """For every group its parts: one for each set of sites with equal members."""
    groups: dict[KeyTuple, dict[int, list[tuple[KeyTuple, int]]]] = {}
    for key in before.each_key():
        sites = groups.setdefault(tuple(key[g] for g in group_by), {})
        for n, copies in enumerate(source.held[key]):
            for site in copies:
                sites.setdefault(site, []).append((key, n))
    sites_by_key: dict[KeyTuple, tuple[Sites, ...]] = {}
    for group, at in sorted(groups.items()):
        parts: dict[tuple[tuple[KeyTuple, int], ...], list[int]] = {}
        for site, members in at.items():
            parts.setdefault(tuple(members), []).append(site)
        # On grids, also after joins across grids, two arrays share all their sites or none.
        assert sum(map(len, parts)) == len({m for members in parts for m in members})
        sites_by_key[group] = tuple(sorted(tuple(sorted(sites)) for sites in parts.values()))
    return sites_by_key


@_remembered
def stacked(source: PhysicalSchema, key: int, dim: int) -> PhysicalSchema:
    """Stack: concatenates the arrays of groups, which must share a site.

    Raises:
        IntegrityError: A group's arrays share no site, keys are missing, or parts are not
            merged.
        ProgrammingError: There is no such key or axis, or arrays differ in another axis.
    """
    _whole(source, "Stack")
    blocks = tra_typing.stack_schema(source.blocks, key, dim)
    common: dict[KeyTuple, set[int]] = {}
    for k, (copies,) in source.held.items():
        group = tra_typing.without(k, key)
        common[group] = common.get(group, set(copies)) & set(copies)
    apart = next((k for k, sites in common.items() if not sites), None)
    if apart is not None:
        raise IntegrityError(
            f"No site holds all of the group {shown(apart)} that is stacked",
            hint="Shuffle on the other keys first.",
        )
    sites_by_key = {k: (tuple(sorted(common[k])),) for k in blocks.each_key()}
    return _described(blocks, sites_by_key, None, source)


def _whole(source: PhysicalSchema, what: str) -> None:
    if source.merge is not None:
        raise IntegrityError(
            f"{what} needs merged arrays, not parts of a {source.merge}",
            hint="Shuffle and aggregate the relation first.",
        )


def distributes(kernel: EinSum, reduce: str) -> bool:
    """True if f(x ⊕ y) = f(x) ⊕ f(y) for a kernel f of one array."""
    (output,) = kernel.outputs
    plain = kernel.guard == TRUE and output.where == TRUE
    if not plain or len(kernel.operands) != 1 or any(a.define for a in kernel.axes):
        return False
    if output.reduction not in (None, reduce):
        return False
    (value,) = output.args
    if isinstance(value, Call) and value.fn in REDUCTIONS[reduce].over:
        # Integers may overflow in one order and not in the other.
        exact = value.dtype.is_float or value.dtype is DType.BOOLEAN
        constants = [a for a in value.args if isinstance(a, Const)]
        return exact and len(constants) == 1 and any(isinstance(a, Value) for a in value.args)
    return isinstance(value, Value)


# ---- local operations on several relations


def holds(condition: Expr, keys: Sequence[KeyTuple]) -> list[bool]:
    """For each key whether it satisfies a condition."""
    if condition == TRUE or not keys:
        return [True] * len(keys)
    array = np.array(keys, np.int64).reshape(len(keys), len(keys[0]))
    return list(map(bool, over_keys(condition, array).tolist()))


def renamed(keys: Sequence[KeyTuple], to: tuple[Expr, ...] | None) -> list[KeyTuple]:
    """New keys by functions of the old keys; None keeps the keys."""
    if to is None or not keys:
        return list(keys)
    array = np.array(keys, np.int64).reshape(len(keys), len(keys[0]))
    columns = [over_keys(e, array).tolist() for e in to]
    return list(zip(*columns, strict=True)) if columns else [()] * len(keys)


@_remembered
def joined(
    sources: tuple[PhysicalSchema, ...],
    places: tuple[tuple[int, ...], ...],
    kernels: tuple[EinSum, ...],
    where: Expr,
    keys: tuple[Expr, ...] | None,
) -> tuple[PhysicalSchema, bool]:
    """⋈ᴸ: applies kernels to every match whose arrays share a site.

    Args:
        sources: The operands.
        places: For each key dimension of each operand the result's key dimension.
        kernels: The first takes the arrays of a match, each later one the previous result.
        where: A condition on the keys of a match; other matches are skipped.
        keys: The new keys; None keeps the match's keys.

    Returns:
        The result, and whether the arrays of every selected match share a site.

    Raises:
        IntegrityError: An operand has unmerged parts, or two new keys are equal.
        ProgrammingError: Joined keys differ in their bounds, or a kernel does not fit.
    """
    for source in sources:
        _whole(source, "A local join")
    kernel_typing.join_bounds([s.blocks for s in sources], places)
    matched = matches([s.held for s in sources], places)
    matched = [
        m for m, on in zip(matched, holds(where, [k for k, _ in matched]), strict=True) if on
    ]
    sites_by_key: dict[KeyTuple, tuple[Sites, ...]] = {}
    for key, operands in matched:
        first, *rest = (s.held[k][0] for s, k in zip(sources, operands, strict=True))
        sites = tuple(s for s in first if all(s in copies for copies in rest))
        if sites:
            sites_by_key[key] = (sites,)
    blocks = kernel_typing.join_schema(
        [s.blocks for s in sources], places, kernels[0], frozenset(sites_by_key)
    )
    blocks = chained(blocks, kernels[1:])
    if keys is not None:
        blocks = tra_typing.rekey_schema(blocks, keys)
        sites_by_key = dict(
            sorted(zip(renamed(list(sites_by_key), keys), sites_by_key.values(), strict=True))
        )
    return _described(blocks, sites_by_key, None, *sources), len(sites_by_key) == len(matched)


def _described(
    blocks: BlockSchema, held: Held, merge: str | None, *sources: PhysicalSchema
) -> PhysicalSchema:
    """The type with the most precise placement for the sites of its arrays."""
    grids = dict.fromkeys(s.placement.grid for s in sources)
    placement = law_of(held, len(blocks.bounds), merge, sources[0].sites, grids)
    return PhysicalSchema(blocks, placement, held, merge)
