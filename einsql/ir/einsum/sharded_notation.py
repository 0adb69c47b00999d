"""The notation of EINSUM with mesh axes: 'b_data s e_model, e_model f -> b_data s f _model'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from einsql.core.records import dataclass
from einsql.errors import NotSupportedError, ProgrammingError, suggest
from einsql.ir.einsum.notation import Spec, parse_spec
from einsql.ir.hints import GridAxis
from einsql.ir.layout import Mesh, Shard, placement

Axes = tuple[tuple[str, ...], ...]
"""For each label of a tensor the mesh axes that shard it, the outer one first."""


@dataclass(frozen=True, slots=True)
class Unreduced:
    """The mesh axes along which a tensor is a sum that keeps its parts, `_model`.

    Attributes:
        axes: The names of the axes.
        at: The offset of the first of them in the text.
    """

    axes: tuple[str, ...] = ()
    at: int = 0


@dataclass(frozen=True, slots=True)
class ShardedSpec:
    """A parsed expression with the placements of its tensors.

    Attributes:
        spec: The expression without mesh axes.
        inputs: The mesh axes of each label of each operand.
        output: The mesh axes of each label of the output.
        unreduced_inputs: The axes along which each operand is unreduced.
        unreduced: The axes along which the output stays unreduced.
    """

    spec: Spec
    inputs: tuple[Axes, ...]
    output: Axes
    unreduced_inputs: tuple[Unreduced, ...]
    unreduced: Unreduced


_Term = tuple[dict[str, tuple[str, ...]], Unreduced]
"""The mesh axes of the labels of a tensor, and those along which it is unreduced."""


def parse_sharded(text: str, ranks: Sequence[int], mesh: Sequence[str]) -> ShardedSpec:
    """Parses an expression whose labels are followed by mesh axes, `label_axis_axis`.

    Labels are separated by spaces. A mesh axis is a name, or its number from 0 in the mesh. A mesh
    axis without a label, `_axis`, says that the tensor is a sum whose parts are on the sites of the
    axis.

    Args:
        text: The expression.
        ranks: The ranks of the operands.
        mesh: The names of the mesh axes; empty without a mesh, where every axis is accepted.

    Raises:
        ProgrammingError: The expression does not fit the operands, an axis is unknown, or a tensor
            has two labels on one axis. The position is the offset in the text.
        NotSupportedError: A label that occurs twice in an operand is sharded.
    """
    spec = parse_spec(re.sub(r"_[^\s,>-]*", "", text), ranks, words=True)
    bounds = [m.start() for m in re.finditer(r",|->", text)]
    starts = [0, *(n + 1 for n in bounds), len(text) + 1]
    terms = [_shards(text, first, last - 1, mesh) for first, last in pairwise(starts)]
    inputs = tuple(
        tuple(shards.get(label, ()) for label in labels)
        for labels, (shards, _) in zip(spec.inputs, terms, strict=False)
    )
    shards, unreduced = terms[-1] if len(terms) > len(inputs) else ({}, Unreduced())
    return ShardedSpec(
        spec,
        inputs,
        tuple(shards.get(label, ()) for label in spec.output),
        tuple(unreduced for _, unreduced in terms[: len(inputs)]),
        unreduced,
    )


def _shards(text: str, first: int, last: int, mesh: Sequence[str]) -> _Term:
    """The mesh axes of one term, which is a part of the text."""
    shards: dict[str, tuple[str, ...]] = {}
    taken: dict[str, str] = {}
    unreduced = Unreduced()
    words = list(re.finditer(r"[^\s>]+", text[first:last]))
    labels = [word[0].partition("_")[0] for word in words]
    for word, label in zip(words, labels, strict=True):
        axes: list[str] = []
        for part in re.finditer(r"(?<=_)[^_]*", word[0]):
            at = first + word.start() + part.start()
            axis = _axis(part[0], mesh, at)
            if axis in taken:
                both = f'shards "{taken[axis]}" and "{label}" of one tensor'
                if "" in (label, taken[axis]):
                    both = f'stands alone and at "{label or taken[axis]}" of one tensor'
                raise ProgrammingError(
                    f'The mesh axis "{axis}" {both}',
                    hint="A mesh axis is named once in a tensor; leave it out at the other place.",
                    position=at,
                )
            if label and labels.count(label) > 1:
                raise NotSupportedError(
                    f'The label "{label}" occurs twice in a tensor and is sharded',
                    hint="Select the diagonal in a subquery.",
                    position=at,
                )
            taken[axis] = label
            axes.append(axis)
            if not label:
                start = unreduced.at if unreduced.axes else at - 1
                unreduced = Unreduced((*unreduced.axes, axis), start)
        shards[label] = tuple(axes)
    return shards, unreduced


def _axis(written: str, mesh: Sequence[str], at: int) -> str:
    """The name of a mesh axis that is written by name or number."""
    name = written.lower()
    if mesh and name.isdecimal() and int(name) < len(mesh):
        return mesh[int(name)]
    if not name or (mesh and name not in mesh):
        raise ProgrammingError(
            f'The mesh has no axis "{written}"',
            hint=suggest(name, mesh, "axes") if mesh else "A label is followed by _ and an axis.",
            position=at,
        )
    return name


def cell_labels(sharded: ShardedSpec, mesh: Sequence[str], sizes: Sequence[int]) -> Axes:
    """For each label of the operands, in their order, the mesh axes along which calls are cut.

    A mesh axis cuts the label that the operands shard along it. If they shard different labels, it
    cuts the one that the output shards, else the one of the largest operand; the other operands
    are gathered. An axis that only the output names cuts the output's label. An axis along which
    the output stays unreduced cuts a label that the output lacks.

    Args:
        sharded: The expression.
        mesh: The names of the mesh axes.
        sizes: The number of elements of each operand.
    """
    labels = tuple(dict.fromkeys(x for term in sharded.spec.inputs for x in term))
    chosen: dict[str, list[str]] = {label: [] for label in labels}
    for axis in _ordered(sharded, mesh):
        by_size = sorted(range(len(sizes)), key=lambda n: -sizes[n])
        wanted = [
            label
            for n in by_size
            for label, axes in zip(sharded.spec.inputs[n], sharded.inputs[n], strict=True)
            if axis in axes
            and not (axis in sharded.unreduced.axes and label in sharded.spec.output)
        ]
        kept = [
            label
            for label, axes in zip(sharded.spec.output, sharded.output, strict=True)
            if axis in axes
        ]
        if kept and (not wanted or kept[0] in wanted):
            chosen[kept[0]].append(axis)
        elif wanted:
            chosen[wanted[0]].append(axis)
    return tuple(tuple(chosen[label]) for label in labels)


def _ordered(sharded: ShardedSpec, mesh: Sequence[str]) -> Sequence[str]:
    """The mesh axes, those of one label in the order in which it names them."""
    written = [names for axes in (*sharded.inputs, sharded.output) for names in axes]
    depth = {axis: max((n.index(axis) for n in written if axis in n), default=0) for axis in mesh}
    return sorted(mesh, key=depth.__getitem__)


def grid_of(
    mesh: Mesh, labels: Sequence[str], axes: Sequence[Sequence[str]]
) -> tuple[GridAxis, ...]:
    """The grid of sites in which mesh axes cut labels.

    Args:
        mesh: The mesh.
        labels: The labels.
        axes: The mesh axes of each label, the outer one first.
    """
    entries = zip(placement(mesh, axes), mesh.shape, strict=True)
    return tuple(
        GridAxis(labels[e.axis], size, e.depth) if isinstance(e, Shard) else GridAxis("*", size)
        for e, size in entries
    )
