"""Windows: a key between two parameters has a known extent and an offset known at run time.

`key BETWEEN ? AND ?` is planned for the extent. The label of such a key counts from the
window's start, and the start is added where the key's value is used. Operands are read through
a view: the part of a stored tensor within the window, or a query restricted to the window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import proxy

from einsql.core.schema import DType, Key, Schema
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Operand,
    call,
    map_exprs,
    rewrite,
)
from einsql.ir.layout import Tiles
from einsql.sql.parameters.host_expr import FIELD, NeedsValuesError, parameters_of, shown, source
from einsql.sql.parameters.plan_parameters import PlanParameters


@dataclass(frozen=True, slots=True)
class Window:
    """The values of a key between two parameters.

    Attributes:
        start: The least value, an expression of parameters alone.
        extent: The number of values.
        lo: The least value of the key anywhere.
        hi: The value behind its last one.
    """

    start: Expr
    extent: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)

    @property
    def text(self) -> str:
        """Its start in Python, as `host_expr.source` writes it."""
        return source(self.start)

    @property
    def numbers(self) -> set[int]:
        """The parameters that its start depends on."""
        return parameters_of(self.start)

    def within(self, parameters: PlanParameters, lo: int, hi: int) -> None:
        """Makes the plan one for windows within bounds.

        Raises:
            NeedsValuesError: This one does not.
        """
        parameters.require(f"{lo} <= {self.text}", self.numbers)
        parameters.require(f"{self.text} + {self.extent} <= {hi}", self.numbers)

    def end(self, parameters: PlanParameters, axis: int) -> Shift:
        """The shift of a result's key by the window's start.

        Args:
            parameters: Those of the statement.
            axis: The number of the key.
        """
        return Shift(axis, parameters.scalar_name(self.text))

    def value(self, label: Expr) -> Expr:
        """The value of a label that counts from the start."""
        start, small = self.start, DType.INTEGER
        if small.range[0] <= self.lo and self.hi <= small.range[1]:
            while isinstance(start, Call) and start.fn == "cast":
                (start,) = start.args
            if start.dtype is DType.BIGINT:  # so that the sum provably does not overflow
                start = call("cast", small, start)
        if start.dtype is not DType.BIGINT:
            start = call("cast", DType.BIGINT, start)
        return call("add", DType.BIGINT, label, start)


@dataclass(frozen=True, slots=True)
class Shift:
    """A key of a result that counts from the start of a window.

    Attributes:
        axis: The number of the key.
        name: The scalar that says where it starts.
    """

    axis: int
    name: str


@dataclass(frozen=True, slots=True)
class View:
    """An input that is a part of another one.

    Attributes:
        name: Of the input.
        base: Of the other one.
        bounds: `[lo, hi)` of each of its keys.
        spans: For each key that is cut its number, the scalar that says where the part begins,
            and its extent.
    """

    name: str
    base: str
    bounds: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, str, int], ...]


class Views:
    """The views through windows in one statement, each made once."""

    def __init__(self, parameters: PlanParameters) -> None:
        # A proxy, because the parameters have these views: a cycle would keep arrays alive.
        self._parameters: PlanParameters = proxy(parameters)
        self._made: dict[object, Node] = {}
        self._windows: dict[int, tuple[Node, dict[int, Window]]] = {}
        self.inputs: list[View] = []
        self._bases: list[tuple[Node, frozenset[int]]] = []

    def of(self, node: Node) -> Mapping[int, Window]:
        """The windows of a node's keys, by their numbers, from whose starts they count."""
        known = self._windows.get(id(node))
        return {} if known is None else known[1]

    def over(self, node: Node) -> frozenset[int]:
        """Numbers of the parameters of all windows through which a node is read."""
        return frozenset[int]().union(*(numbers for n, numbers in self._bases if n is node))

    def note(self, node: Node, windows: Mapping[int, Window]) -> None:
        """Records that keys of a node count from the starts of windows."""
        if windows:
            self._windows[id(node)] = node, dict(windows)

    def through(self, node: Node, windows: Mapping[int, Window]) -> Node:
        """Reads a node within windows of some of its keys, which then count from their starts.

        Raises:
            NeedsValuesError: It cannot be read so.
        """
        own = self.of(node)
        missing = {n: w for n, w in windows.items() if n not in own}
        if any(own[n] != w for n, w in windows.items() if n in own):
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        if not missing:
            return node
        known = (id(node), tuple(sorted((n, w.text, w.extent) for n, w in missing.items())))
        if known not in self._made:
            numbers = frozenset[int]().union(*(w.numbers for w in missing.values()))
            self._bases.append((node, numbers))
            view = self._input if isinstance(node, Input) else self._query
            windowed = view(node, missing)  # type: ignore[arg-type]  # by its kind
            self._made[known] = windowed
            self.note(windowed, {**own, **missing})
        return self._made[known]

    def _input(self, node: Input, windows: Mapping[int, Window]) -> Input:
        base = self._parameters.inputs.get(node.name)
        lies = _lying(node, windows)
        if base is None or node.sparse or lies is None:
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        keys, spans, parts = list(node.schema.keys), [], []
        for n, w in sorted(windows.items()):
            key = keys[n]
            w.within(self._parameters, key.lo, key.hi)
            spans.append((n, self._parameters.scalar_name(w.text), w.extent))
            parts.append(f"{key.name} from {shown(w.start)} for {w.extent}")
            keys[n] = Key(key.name, 0, w.extent)
        bounds = tuple((k.lo, k.hi) for k in node.schema.keys)
        view = View(f"{node.name}({', '.join(parts)})", node.name, bounds, tuple(spans))
        self.inputs.append(view)
        self._parameters.inputs[view.name] = part_of(view, self._parameters.inputs)
        return replace(lies, name=view.name, schema=Schema(tuple(keys), node.schema.fields))

    def _query(self, node: EinSum, windows: Mapping[int, Window]) -> EinSum:
        labels = {node.keys[n]: w for n, w in windows.items()}
        if len(labels) < len(windows) or any(node.axis(x).define is not None for x in labels):
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        return self.within(node, labels)

    def within(self, node: EinSum, labels: Mapping[str, Window]) -> EinSum:
        """A node over windows of some of its labels, which count from their starts then.

        Args:
            node: Its expressions may read parameters.
            labels: Free labels with their windows.
        """
        if not labels:
            return self._parameters.lowered(node)
        axes: list[Axis] = []
        for a in node.axes:
            w = labels.get(a.label)
            if w is not None and a.define is not None:
                if a.label not in node.keys and _base(node, a) in labels:
                    continue  # operands use the label that it follows
                raise NeedsValuesError(w.numbers)
            if w is not None:
                w.within(self._parameters, a.lo, a.hi)
                a = replace(a, lo=0, hi=w.extent)
            axes.append(a)
        operands = tuple(self._operand(node, o, labels) for o in node.operands)

        names = {a.label: _base(node, a) for a in node.axes if a.define is not None}

        def visit(e: Expr) -> Expr:
            w = labels.get(e.name) if isinstance(e, Label) else None
            if w is None:
                return e
            assert isinstance(e, Label)
            return w.value(Label(names.get(e.name) or e.name))

        bare = replace(node, axes=tuple(axes), operands=operands)
        windowed = self._parameters.lowered(map_exprs(bare, lambda e: rewrite(e, visit)))
        self.note(windowed, {n: labels[k] for n, k in enumerate(node.keys) if k in labels})
        return windowed

    def without(self, node: EinSum, labels: Collection[str]) -> EinSum:
        """A node without keys of one value that count from the starts of windows.

        Args:
            node: Windows of its keys are noted.
            labels: Free labels of extent 1 among its keys.
        """
        if not labels:
            return node
        first = Const(0, DType.BIGINT)
        free = [a for a in node.axes if a.define is None and a.label not in labels]
        single = [replace(a, define=first) for a in node.axes if a.label in labels]
        derived = [a for a in node.axes if a.define is not None]
        keys = tuple(k for k in node.keys if k not in labels)
        reduced = replace(node, axes=(*free, *single, *derived), keys=keys)
        windows = {node.keys[n]: w for n, w in self.of(node).items()}
        self.note(reduced, {n: windows[k] for n, k in enumerate(keys) if k in windows})
        return reduced

    def _operand(self, node: EinSum, o: Operand, labels: Mapping[str, Window]) -> Operand:
        windows = {n: labels[x] for n, x in enumerate(o.labels) if x in labels}
        names = {a.label: _base(node, a) for a in node.axes if a.define is not None}
        followed = tuple(names[x] or x if x in labels and x in names else x for x in o.labels)
        return Operand(self.through(o.source, windows), followed)


def shifted(schema: Schema, ends: Sequence[object], inputs: Mapping[str, Any]) -> Schema:
    """The schema of a result with the true values of keys that count from windows' starts."""
    if not ends:
        return schema
    keys = list(schema.keys)
    for e in ends:
        if isinstance(e, Shift):
            start, key = int(inputs[e.name][FIELD]), keys[e.axis]
            keys[e.axis] = Key(key.name, key.lo + start, key.hi + start)
    return Schema(tuple(keys), schema.fields)


def _lying(node: Input, windows: Mapping[int, Window]) -> Input | None:
    """An input with the placement of a part of it; None if declared blocks cut a window's key.

    If its tiles cut such a key, the part is placed where it is read.
    """
    if node.lies is None:
        blocks = node.parts or ()
        return None if any(blocks[n] > 1 for n in windows if blocks) else node
    boxes = node.lies.boxes.copy()
    filled = node.lies.volumes > 0
    for n, w in windows.items():
        key = node.schema.keys[n]
        if (boxes[filled, n] != (key.lo, key.hi)).any():
            return replace(node, parts=None, order=(), lies=None)
        boxes[:, n] = 0, w.extent
    return replace(node, lies=Tiles(node.lies.sites, boxes, node.lies.copies))


def _base(node: EinSum, axis: Axis) -> str | None:
    """The free label that a derived one equals, up to an added constant."""
    define = axis.define
    if (
        isinstance(define, Call)
        and define.fn in ("add", "sub")
        and isinstance(define.args[1], Const)
    ):
        define = define.args[0]
    free = isinstance(define, Label) and node.axis(define.name).define is None
    return define.name if isinstance(define, Label) and free else None


def part_of(view: View, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a view of an input, without a copy."""
    at = [slice(0, hi - lo) for lo, hi in view.bounds]
    for n, name, extent in view.spans:
        start = int(inputs[name][FIELD]) - view.bounds[n][0]
        at[n] = slice(start, start + extent)
    part: Mapping[str, Any] = inputs[view.base].window(at, [n for n, _, _ in view.spans])
    return part
