"""Lowers EinSums and their cuts to the tensor-relational algebra (EinDecomp §4.3).

Every field that an output reads becomes a relation, cut like its labels. A join on the shared
labels applies the EinSum to tiles, and an aggregation over the reduced labels merges the
partial results:  Z = Σ_⊕ ∘ ⋈_K (Π X, Π Y, …).

* Presence and validity become BOOLEAN relations.
* A kernel knows positions within a tile, but not the position of the tile. So a label that is
  cut and whose value is read becomes an operand, the tensor of its own values.
* A derived label is not cut, and neither are axes read through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from einsql.core.schema import DType, is_flag
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import (
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Value,
    bigint,
    call,
    conj,
    subexpressions,
    walk,
)
from einsql.ir.functions import REDUCTIONS
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import equal_cuts, key_label
from einsql.optimizer.tra.lower_kernel import kernel
from einsql.optimizer.tra.lower_operands import Source, cut_operand

Fields = Mapping[str, ra.Node]
"""The relations of a node's fields."""


def lower(
    node: EinSum, parts: Mapping[str, int], sources: Sequence[ra.Node | None] = ()
) -> ra.Node:
    """The plan of one EinSum that has one value.

    Args:
        node: The EinSum.
        parts: The number of parts of each label; 1 where it is not named. A derived
            label is cut only after the result is computed.
        sources: The operands' relations, if they are computed and have one field;
            Inputs are scanned.

    Returns:
        A relation whose key i cuts axis i into the parts of the result's labels.

    Raises:
        NotSupportedError: The node has several fields, or an operand's relation is missing.
        ProgrammingError: A label has more parts than values.
    """
    relations: list[Fields | None] = []
    for operand, source in zip(node.operands, sources, strict=False):
        names = [f.name for f in operand.source.schema.fields]
        if source is not None and len(names) > 1:
            raise NotSupportedError("An operand of several fields needs a relation for each")
        relations.append(None if source is None else {names[0]: source})
    if len(node.outputs) != 1 or is_flag(node.outputs[0].name):
        raise NotSupportedError("An EinSum with more than one result is no single relation")
    return next(iter(lower_fields(node, parts, relations).values()))


def lower_fields(
    node: EinSum, parts: Mapping[str, int], sources: Sequence[Fields | None] = ()
) -> dict[str, ra.Node]:
    """The plan of each output of an EinSum; as `lower`.

    Args:
        node: The EinSum.
        parts: As in `lower`.
        sources: The relations of the operands' fields, if they are computed.

    Raises:
        NotSupportedError: The relations of an operand are missing.
        ProgrammingError: A label has more parts than values.
    """
    lowering = _Lowering(node, parts, sources)
    return {o.name: lowering.output(o) for o in node.outputs}


def lower_graph(root: Node, parts: Mapping[EinSum, Mapping[str, int]]) -> ra.Node:
    """The plan of a graph with one value whose every EinSum has its parts.

    Raises:
        NotSupportedError: The root is an Input or has several fields.
        ProgrammingError: A label has more parts than values.
    """
    fields = lower_graph_fields(root, parts)
    if len(fields) != 1:
        raise NotSupportedError("A graph with more than one result is no single relation")
    return next(iter(fields.values()))


def lower_graph_fields(root: Node, parts: Mapping[EinSum, Mapping[str, int]]) -> dict[str, ra.Node]:
    """The plan of every field of a graph's root; as `lower_graph`.

    Raises:
        NotSupportedError: The root is an Input.
        ProgrammingError: A label has more parts than values.
    """
    done: dict[int, dict[str, ra.Node]] = {}
    for node in walk(root):
        if isinstance(node, EinSum):
            sources = [done.get(id(o.source)) for o in node.operands]
            done[id(node)] = lower_fields(node, parts.get(node, {}), sources)
    if id(root) not in done:
        raise NotSupportedError("There is nothing to compute")
    return done[id(root)]


@dataclass
class _Lowering:
    """One EinSum, output by output."""

    node: EinSum
    wanted: Mapping[str, int]
    sources: Sequence[Fields | None]
    cut_operands: dict[object, ra.Node] = field(default_factory=dict)
    """Cut operands by number, field and cut."""

    def output(self, output: Output) -> ra.Node:
        """The plan of one output."""
        parts = {
            a.label: self.wanted.get(a.label, 1) if a.define is None else 1 for a in self.node.axes
        }
        if output.reduction is not None and REDUCTIONS[output.reduction].better is not None:
            split = [x for x in self.node.reduced if parts[x] > 1]
            if split and _repeats(output.args[1]):
                return self._extreme(output)
            parts |= dict.fromkeys(split, 1)
        return self._joined(output, parts)

    def _joined(self, output: Output, parts: Mapping[str, int]) -> ra.Node:
        reads, indexed = self._read(output, parts)
        relations = [self._operand(n, name, parts) for n, name in reads]
        labels = [tuple(dict.fromkeys(self.node.operands[n].labels)) for n, _ in reads]
        relations += [self._index(x, parts[x]) for x in indexed]
        labels += [(x,) for x in indexed]
        if not relations:
            relations, labels = [ra.Scan(ra.ZerosInput.of((), DType.BOOLEAN), ())], [()]
        order = tuple(dict.fromkeys(x for own in labels for x in own))
        local = kernel(self.node, output, reads, indexed)
        if len(relations) == 1:
            result: ra.Node = ra.Transform(relations[0], local)
        else:
            keys = tuple(tuple(order.index(x) for x in own) for own in labels)
            result = ra.Join(tuple(relations), keys, local)
        kept = tuple(x for x in self.node.keys if x in order)
        if len(kept) < len(order):
            result = self._reduced(result, tuple(order.index(x) for x in kept), output)
            order = kept
        return self._in_order(result, order)

    def _read(
        self, output: Output, parts: Mapping[str, int]
    ) -> tuple[list[tuple[int, str]], list[str]]:
        """The operands' fields an output reads, and the labels that need a tensor of their own.

        Those are labels that are cut and read as values, or that no field is cut by.
        """
        defines = [a.define for a in self.node.axes if a.define is not None]
        terms = [*defines, self.node.guard, *output.args, output.where]
        within = [e for term in terms for e in subexpressions(term)]
        reads = list(dict.fromkeys((e.operand, e.field) for e in within if isinstance(e, Value)))
        named = {e.name for e in within if isinstance(e, Label)}
        covered = {x for n, _ in reads for x in self.node.operands[n].labels}
        needed = [x for x in parts if parts[x] > 1 and (x in named or x not in covered)]
        return reads, needed

    def _operand(self, number: int, name: str, parts: Mapping[str, int]) -> ra.Node:
        operand = self.node.operands[number]
        split = [parts[x] for x in operand.labels]
        key = (number, name, *split)
        if key not in self.cut_operands:
            fields = self.sources[number] if number < len(self.sources) else None
            source = Source(operand.source, name, None if fields is None else fields[name])
            relation = cut_operand(source, [self.node.axis(x) for x in operand.labels], split)
            self.cut_operands[key] = ra.diagonal(relation, operand.labels)[0]
        return self.cut_operands[key]

    def _index(self, label: str, split: int) -> ra.Node:
        """The tensor of a label's values, cut as the label is."""
        axis = self.node.axis(label)
        cuts = equal_cuts("Scan", [axis.extent], [split])
        return ra.Scan(ra.RangeInput.over(axis.lo, axis.hi), cuts)

    def _reduced(self, result: ra.Node, kept: tuple[int, ...], output: Output) -> ra.Node:
        reduction = None if output.reduction is None else REDUCTIONS[output.reduction]
        if reduction is not None and reduction.monoid is not None:
            return ra.Aggregate(result, kept, reduction.name)
        # Labels that are left out were whole, so their keys are all 0.
        return ra.ReKey(result, tuple(key_label(n) for n in kept))

    def _in_order(self, result: ra.Node, has: tuple[str, ...]) -> ra.Node:
        """The result with a key for each label, those of labels that only it has included."""
        wanted = self.node.keys
        if has != wanted:
            keys = (key_label(has.index(x)) if x in has else bigint(0) for x in wanted)
            result = ra.ReKey(result, tuple(keys))
        return ra.repartition(result, [self.wanted.get(x, 1) for x in wanted])

    def _extreme(self, output: Output) -> ra.Node:
        """ARG_MIN in two steps that can be cut: the extreme, then the least argument there."""
        argument, value = output.args
        reduction = "min" if output.reduction == "arg_min" else "max"
        extreme = Output("best", (value,), value.dtype, reduction, output.where)
        best = replace(self.node, outputs=(extreme,))
        number = len(self.node.operands)
        there = call("eq", DType.BOOLEAN, value, Value(number, extreme.name, value.dtype))
        least = Output(output.name, (argument,), output.dtype, "min", conj(output.where, there))
        at = replace(
            self.node,
            operands=(*self.node.operands, Operand(best, self.node.keys)),
            outputs=(least,),
        )
        sources = [*self.sources, *(None for _ in self.node.operands[len(self.sources) :])]
        first = lower_fields(best, self.wanted, sources)
        return lower_fields(at, self.wanted, [*sources, first])[output.name]


def _repeats(value: Expr) -> bool:
    """True if two kernels surely compute the same: floats may be rounded differently."""
    return isinstance(value, Value | Label | Const) or not any(
        e.dtype.is_float for e in subexpressions(value)
    )
