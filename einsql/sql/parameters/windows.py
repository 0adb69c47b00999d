"""Bounds of keys by parameters: comparisons with a parameter, and windows between two.

The range of `key <= ?` is known at run time.

`key BETWEEN ? AND ?` is planned for its extent. The label of such a key counts from the window's
start, which is added to the label where the key's value is used. Operands are read through a view:
the part of a stored tensor within the window, or a query restricted to the window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
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
    bigint,
    call,
    cast,
    rewrite,
)
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parameters.host_expr import (
    NeedsValuesError,
    computable,
    parameters_of,
    shown,
    source,
)
from einsql.sql.parameters.runtime_inputs import Cut, Shift, View, part_of

if TYPE_CHECKING:
    from einsql.ir import layout as _layout
else:  # loaded for cut tensors
    _layout = LazyModule("einsql.ir.layout")

FAR = 2**62
"""A bound beyond every key."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A comparison of a key with an integer expression over parameters.

    Attributes:
        label: The key's label.
        value: The expression: a bound from above or from below.
        upper: Whether the bound is from above.
        strict: Whether the bound excludes its own value.
    """

    label: str
    value: Expr
    upper: bool
    strict: bool

    @property
    def numbers(self) -> set[int]:
        """The numbers of the parameters in the expression."""
        return parameters_of(self.value)

    @property
    def text(self) -> str:
        """The exclusive upper bound or the inclusive lower bound, in Python."""
        beyond = self.strict != self.upper
        return f"({source(self.value)} + 1)" if beyond else source(self.value)

    def narrowed(
        self, parameters: BoundParameters, lo: int, hi: int
    ) -> tuple[tuple[int, int], Expr]:
        """The bounds of the label in a plan for many values, and the remaining condition.

        The plan is valid for parameters that leave the label at least one value. Its bounds depend
        on the parameters in few and large steps.

        Args:
            parameters: The statement's parameters.
            lo: The least value of the label.
            hi: The exclusive upper bound.

        Raises:
            NeedsValuesError: The parameters leave the label no value.
        """
        numbers = self.numbers
        label, value = Label(self.label), _wide(self.value)
        fn = "lt" if self.strict else "le"
        if self.upper:
            parameters.require(f"{lo} < {self.text}", numbers)
            hi = min(hi, lo + parameters.extent(f"{self.text} - {lo}", hi - lo, numbers))
            # With `greatest`, the least value of the label provably satisfies it.
            least = Const(lo + self.strict, DType.BIGINT)
            return (lo, hi), call(
                fn, DType.BOOLEAN, label, call("greatest", DType.BIGINT, value, least)
            )
        parameters.require(f"{self.text} < {hi}", numbers)
        lo = max(lo, hi - parameters.extent(f"{hi} - {self.text}", hi - lo, numbers))
        most = Const(hi - 1 - self.strict, DType.BIGINT)
        return (lo, hi), call(fn, DType.BOOLEAN, call("least", DType.BIGINT, value, most), label)

    def end(self, parameters: BoundParameters, axis: int) -> Cut:
        """The cut of a result's key at this bound.

        Args:
            parameters: The statement's parameters.
            axis: The number of the key.
        """
        text = f"min(max({self.text}, {-FAR}), {FAR})"  # every key is within these bounds
        return Cut(axis, self.upper, parameters.scalar_name(text))


def edges_of(term: Expr) -> tuple[Edge, ...]:
    """The edges of a condition: two for an equality, none for a condition of another form."""
    if not isinstance(term, Call) or term.fn not in ("lt", "le", "eq"):
        return ()
    a, b = term.args
    for key, value, upper in ((a, b, True), (b, a, False)):
        known = isinstance(key, Label) and value.dtype.is_integer and parameters_of(value)
        if isinstance(key, Label) and known and computable(value):
            if term.fn == "eq":
                return tuple(Edge(key.name, value, end, False) for end in (True, False))
            return (Edge(key.name, value, upper, term.fn == "lt"),)
    return ()


@dataclass(frozen=True, slots=True)
class Window:
    """The values of a key between two parameters.

    Attributes:
        start: The least value, an expression over parameters.
        extent: The number of values.
        lo: The least value of the key in any window.
        hi: The exclusive upper bound.
    """

    start: Expr
    extent: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)

    @property
    def text(self) -> str:
        """The start in Python, in the form of `host_expr.source`."""
        return source(self.start)

    @property
    def numbers(self) -> set[int]:
        """The numbers of the parameters in its start."""
        return parameters_of(self.start)

    def within(self, parameters: BoundParameters, lo: int, hi: int) -> None:
        """Restricts the plan to windows within bounds.

        Raises:
            NeedsValuesError: The current window exceeds the bounds.
        """
        parameters.require(f"{lo} <= {self.text}", self.numbers)
        parameters.require(f"{self.text} + {self.extent} <= {hi}", self.numbers)

    def end(self, parameters: BoundParameters, axis: int) -> Shift:
        """The shift of a result's key by the window's start.

        Args:
            parameters: The statement's parameters.
            axis: The number of the key.
        """
        return Shift(axis, parameters.scalar_name(self.text))

    def value(self, label: Expr) -> Expr:
        """The key's value for a label that counts from the start."""
        start, small = self.start, DType.INTEGER
        if small.range[0] <= self.lo and self.hi <= small.range[1]:
            while isinstance(start, Call) and start.fn == "cast":
                (start,) = start.args
            if start.dtype is DType.BIGINT:  # the sum then provably does not overflow
                start = call("cast", small, start)
        if start.dtype is not DType.BIGINT:
            start = call("cast", DType.BIGINT, start)
        return call("add", DType.BIGINT, label, start)


@dataclass
class Windows:
    """The windows of one statement, and the nodes that it reads within them.

    Attributes:
        parameters: The statement's parameters.
    """

    parameters: BoundParameters = field(default_factory=BoundParameters)
    _windowed: dict[object, Node] = field(default_factory=dict)
    _of_nodes: dict[int, tuple[Node, dict[int, Window]]] = field(default_factory=dict)
    _bases: list[tuple[Node, frozenset[int]]] = field(default_factory=list)

    def of(self, node: Node) -> Mapping[int, Window]:
        """The windows by the numbers of a node's keys that count from the windows' starts."""
        known = self._of_nodes.get(id(node))
        return {} if known is None else known[1]

    def over(self, node: Node) -> frozenset[int]:
        """The numbers of the parameters of all windows within which a node is read."""
        return frozenset[int]().union(*(numbers for n, numbers in self._bases if n is node))

    def note(self, node: Node, windows: Mapping[int, Window]) -> None:
        """Records that keys of a node count from the starts of windows."""
        if windows:
            self._of_nodes[id(node)] = node, dict(windows)

    def through(self, node: Node, windows: Mapping[int, Window]) -> Node:
        """Reads a node within windows of some keys; these keys then count from the windows' starts.

        Raises:
            NeedsValuesError: The node cannot be read within these windows.
        """
        own = self.of(node)
        missing = {n: w for n, w in windows.items() if n not in own}
        if any(own[n] != w for n, w in windows.items() if n in own):
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        if not missing:
            return node
        known = (id(node), tuple(sorted((n, w.text, w.extent) for n, w in missing.items())))
        if known not in self._windowed:
            numbers = frozenset[int]().union(*(w.numbers for w in missing.values()))
            self._bases.append((node, numbers))
            view = self._input if isinstance(node, Input) else self._query
            windowed = view(node, missing)  # type: ignore[arg-type]  # the function for the node's class
            self._windowed[known] = windowed
            self.note(windowed, {**own, **missing})
        return self._windowed[known]

    def _input(self, node: Input, windows: Mapping[int, Window]) -> Input:
        base = self.parameters.inputs.get(node.name)
        lies = _placed_part(node, windows)
        if base is None or node.sparse or lies is None:
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        keys, spans, parts = list(node.schema.keys), [], []
        for n, w in sorted(windows.items()):
            key = keys[n]
            w.within(self.parameters, key.lo, key.hi)
            spans.append((n, self.parameters.scalar_name(w.text), w.extent))
            parts.append(f"{key.name} from {shown(w.start)} for {w.extent}")
            keys[n] = Key(key.name, 0, w.extent)
        bounds = tuple((k.lo, k.hi) for k in node.schema.keys)
        view = View(f"{node.name}({', '.join(parts)})", node.name, bounds, tuple(spans))
        self.parameters.views.append(view)
        self.parameters.inputs[view.name] = part_of(view, self.parameters.inputs)
        return replace(lies, name=view.name, schema=Schema(tuple(keys), node.schema.fields))

    def _query(self, node: EinSum, windows: Mapping[int, Window]) -> EinSum:
        labels = {node.keys[n]: w for n, w in windows.items()}
        if len(labels) < len(windows) or any(node.axis(x).define is not None for x in labels):
            raise NeedsValuesError(set().union(*(w.numbers for w in windows.values())))
        return self.within(node, labels)

    def within(self, node: EinSum, labels: Mapping[str, Window]) -> EinSum:
        """Restricts a node to windows of some labels, which then count from the windows' starts.

        Args:
            node: The node; its expressions may read parameters.
            labels: The windows of free labels.
        """
        if not labels:
            return self.parameters.lowered(node)
        axes: list[Axis] = []
        for a in node.axes:
            w = labels.get(a.label)
            if w is not None and a.define is not None:
                base = labels.get(_base(node, a) or "")
                if a.label not in node.keys and base is not None and w == moved(base, a.define):
                    continue  # operands use the label from which it is derived
                raise NeedsValuesError(w.numbers)
            if w is not None:
                w.within(self.parameters, a.lo, a.hi)
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
        windowed = self.parameters.lowered(map_exprs(bare, lambda e: rewrite(e, visit)))
        self.note(windowed, {n: labels[k] for n, k in enumerate(node.keys) if k in labels})
        return windowed

    def without(self, node: EinSum, labels: Collection[str]) -> EinSum:
        """Removes keys of extent 1 that count from the starts of windows.

        Args:
            node: The node, whose windows `note` has recorded.
            labels: The free labels of extent 1 among its keys.
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


def _placed_part(node: Input, windows: Mapping[int, Window]) -> Input | None:
    """An input with the placement of its part; None if declared blocks cut a window's key.

    If its tiles cut such a key, the reader of the part places it.
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
    return replace(node, lies=_layout.Tiles(node.lies.sites, boxes, node.lies.copies))


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


def moved(window: Window, define: Expr) -> Window:
    """The window of a label that equals a label of the window, up to an added constant."""
    offset = 0
    if isinstance(define, Call) and isinstance(define.args[1], Const):
        by = define.args[1].integer
        offset = by if define.fn == "add" else -by
    if not offset:
        return window
    start = call("add", DType.BIGINT, cast(window.start, DType.BIGINT), bigint(offset))
    return Window(start, window.extent, window.lo + offset, window.hi + offset)


def _wide(e: Expr) -> Expr:
    return e if e.dtype is DType.BIGINT else call("cast", DType.BIGINT, e)
