"""Small nodes of the vector kernel as straight-line Python with the same NumPy calls.

The closures of `scalar.py` choose at every run the part of each operand that is read, the values
of labels, and the conversions of results. A node that runs repeatedly becomes a generated
function with fixed choices. Its results are bit-identical to the closures' results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core.bfloat16 import narrow, widen
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.source_writer import FieldSource, Page, ShownField, TakenField
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Output,
    Value,
    exprs,
    subexpressions,
)
from einsql.ir.functions import REDUCTIONS, SCALARS, Failure
from einsql.ir.functions.casts import cast_array
from einsql.kernels.kernel import Runner
from einsql.kernels.scalars import bounds_of, fails, failure_within, opaque_functions
from einsql.kernels.vectorized.reductions import UFUNCS, running_type
from einsql.kernels.vectorized.scalar import refuse
from einsql.kernels.vectorized.sums import CHAIN, add_up

LARGEST = 2**16
"""Points up to which the overhead between NumPy calls is significant."""
KEPT = 2**16
"""Greatest number of elements of labels and other constants that a node caches."""
LONGEST = 256
"""Greatest number of expressions of a node for which a function is generated."""

_FLOATS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "neg": np.negative,
}  # fmt: skip
_WHOLE: dict[str, Callable[..., Any]] = {
    **_FLOATS, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "greatest": np.maximum, "least": np.minimum,
}  # fmt: skip
"""The NumPy functions that are equivalent to a scalar function for operands of one type: floats,
which include NaN, and integers or booleans."""
_NEW = frozenset({"add", "sub", "mul", "div", "neg", "exp", "ln", "sqrt", "tanh", "sin", "cos"})
"""Functions whose results are new arrays, of the operands' type for floats."""


class UnsuitedError(Exception):
    """The node has to run as closures."""


@dataclass(frozen=True, slots=True)
class _Var:
    """A variable of the generated function.

    Attributes:
        name: The name.
        shape: The extents over the enumerated axes; () for a scalar.
        dtype: The carrier of its type.
        own: Whether it is a new array that shares no memory.
        constant: The value if it is constant, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    own: bool = False
    constant: np.ndarray | None = None


Reading = Callable[[np.ndarray], np.ndarray]
"""A function that aligns an operand's array with the enumerated axes."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """An operand's array that is read by one index.

    Attributes:
        index: The source of the NumPy index.
    """

    index: tuple[Any, ...]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Returns the elements at the index."""
        return np.asarray(array[self.index])

    def is_whole(self, extents: Sequence[int]) -> bool:
        """True if the index selects all elements of an array with these extents in order."""
        return self.index == tuple(slice(0, n) for n in extents)


@dataclass(frozen=True, slots=True)
class Domain:
    """The only block of a small node.

    Attributes:
        shape: The extents of the enumerated axes.
        kept: The number of leading enumerated axes that are keys.
        pointwise: Whether a key has at most one point.
        labels: The values of every label.
        mask: The points that exist by their labels; None for all points.
        guards: Whether the guard has to be evaluated.
        reads: The reading of each operand.
    """

    shape: tuple[int, ...]
    kept: int
    pointwise: bool
    labels: dict[str, np.ndarray]
    mask: np.ndarray | None
    guards: bool
    reads: tuple[Reading, ...]


def is_suited(node: EinSum) -> bool:
    """True for small nodes without data-dependent labels or reductions."""
    size = sum(1 for root in exprs(node) for _ in subexpressions(root))
    if node.points > LARGEST or size > LONGEST:
        return False
    if opaque_functions(node):
        return False
    defines = [a.define for a in node.axes if a.define is not None]
    if any(isinstance(e, Value) for d in defines for e in subexpressions(d)):
        return False
    return all(_is_plain(o.reduction, o.dtype) for o in node.outputs)


def _is_plain(reduction: str | None, dtype: DType) -> bool:
    """True unless the argument is a pair or requires checks."""
    if reduction is None:
        return True
    law = REDUCTIONS[reduction]
    checked = dtype.is_integer and law.monoid in ("add", "mul")
    return law.better is None and law.monoid in UFUNCS and not checked


def compile_program(node: EinSum, domain: Domain) -> Runner | None:
    """Generates a function of a node's NumPy calls; None if the node has to run as closures.

    The caller has to ignore floating-point conditions, both here and when the function runs.
    """
    page = Page("tick")
    operands = [TakenField(page, f"o{n}") for n in range(len(node.operands))]
    names = write_node(node, domain, page, operands)
    if names is None:
        return None
    if operands:
        page.lines.insert(0, f"{''.join(f'{o.name}, ' for o in operands)} = operands")
    shown = ShownField(names).whole
    function: Runner = page.function("run(operands, tick)", "tick(1.0)", f"return {shown}")
    return function


def write_node(
    node: EinSum, domain: Domain, page: Page, operands: Sequence[FieldSource]
) -> dict[str, str] | None:
    """Writes a node's NumPy calls; returns the names of its fields, or None as above."""
    if not domain.pointwise and domain.kept < len(node.keys):
        return None  # keys are computed from each point
    try:
        return _Writer(node, domain, page, operands).fields()
    except UnsuitedError:
        return None


_NAMES: dict[str, Any] = {
    "empty": np.empty, "where": np.where, "refuse": refuse, "cast_array": cast_array,
    "widen": widen, "narrow": narrow, "broadcast_to": np.broadcast_to, "both": np.bitwise_and,
}  # fmt: skip


class _Writer:
    def __init__(
        self, node: EinSum, domain: Domain, page: Page, operands: Sequence[FieldSource]
    ) -> None:
        self.node = node
        self.domain = domain
        self.page = page
        self.operands = operands
        self.bounds = bounds_of(node)
        self.known: dict[object, _Var] = {}
        self.given: set[str] = set()
        self.kept = 0
        page.names.update(_NAMES)

    def fields(self) -> dict[str, str]:
        node = self.node
        mask = None if self.domain.mask is None else self.literal(self.domain.mask)
        if self.domain.guards:
            mask = self.both(mask, self.expr(node.guard, mask))
        make = self.single if self.domain.pointwise else self.reduced
        return {o.name: make(o, mask).name for o in node.outputs}

    # ---- names

    def held(self, value: object, stem: str = "c") -> str:
        """Registers an existing value; returns its name."""
        return self.page.held(value, stem)

    def literal(self, value: np.ndarray) -> _Var:
        """Registers an array that is constant between runs; returns its name."""
        self.keep(value.size)
        value = np.asarray(value).view()
        value.flags.writeable = False
        return _Var(self.held(value), value.shape, value.dtype, constant=value)

    def keep(self, size: int) -> None:
        """Counts elements that are cached between runs."""
        self.kept += size
        if self.kept > KEPT:
            raise UnsuitedError

    def line(self, text: str, shape: tuple[int, ...], dtype: np.dtype, own: bool = False) -> _Var:
        """Assigns an expression to a new name; NumPy returns a scalar if it has no axes."""
        name = self.page.line(text if shape else f"asarray({text})")
        return _Var(name, shape, dtype, own)

    # ---- expressions

    def expr(self, e: Expr, mask: _Var | None) -> _Var:
        """Writes the computation of an expression at the selected points."""
        if isinstance(e, Const):
            literal = np.asarray(e.value, e.dtype.carrier)
            return self.once((literal.dtype, literal.tobytes()), lambda: self.literal(literal))
        if isinstance(e, Label):
            return self.once(e, lambda: self.literal(self.domain.labels[e.name]))
        if isinstance(e, Value):
            return self.once(e, lambda: self.value(e))
        assert isinstance(e, Call)
        args = [self.expr(a, mask) for a in e.args]
        failure = self.failure(e)
        selected = None if failure is None or mask is None else mask.name
        key = (e.fn, e.dtype, *(a.name for a in args), failure is None, selected)
        return self.once(key, lambda: self.call(e, args, failure, mask))

    def once(self, key: object, make: Callable[[], _Var]) -> _Var:
        """The value of a cache key; its first use writes the computation."""
        variable = self.known.get(key)
        if variable is None:
            variable = self.known[key] = make()
        return variable

    def failure(self, e: Call) -> Failure | None:
        """The failure of a call, or None; raises UnsuitedError if it depends on a branch."""
        if e.fn in ("and", "or", "if") and any(fails(a, self.bounds) for a in e.args[1:]):
            raise UnsuitedError
        return failure_within(e, self.bounds)

    def call(
        self, e: Call, args: Sequence[_Var], failure: Failure | None, mask: _Var | None
    ) -> _Var:
        arguments = ", ".join(a.name for a in args)
        if failure is not None:
            selected = "None" if mask is None else mask.name
            self.page.lines.append(f"refuse({self.held(failure)}, {selected}, {arguments})")
        if e.fn in ("cast", "nearest"):
            return self.cast(args[0], e.dtype)
        target = e.dtype.carrier
        same = all(a.dtype == args[0].dtype for a in args)
        table = _FLOATS if args[0].dtype.kind == "f" else _WHOLE
        function = table.get(e.fn) if same else None
        new = e.fn in _NEW or function is not None
        if function is None:
            function = SCALARS[e.fn].numpy
        if failure is None and all(a.constant is not None for a in args):
            folded = np.asarray(function(*(a.constant for a in args)))
            return self.literal(folded if folded.dtype == target else cast_array(folded, e.dtype))
        shape = np.broadcast_shapes(*(a.shape for a in args))
        variable = self.line(f"{self.held(function, 'f')}({arguments})", shape, target, new)
        if not (new and same and args[0].dtype == target and target.kind == "f"):
            self.page.lines.append(
                f"if {variable.name}.dtype != {self.held(target)}: "
                f"{variable.name} = cast_array({variable.name}, {self.held(e.dtype)})"
            )
            if not variable.shape or function is SCALARS[e.fn].numpy:
                self.page.lines.append(f"{variable.name} = asarray({variable.name})")
        return variable

    def cast(self, a: _Var, dtype: DType) -> _Var:
        target = dtype.carrier
        if a.constant is not None:
            return self.literal(np.asarray(cast_array(a.constant, dtype)))
        if dtype is not DType.BFLOAT16 and a.dtype == target:
            return a
        plain = target.kind == "f" or (dtype is not DType.BOOLEAN and a.dtype.kind != "f")
        if plain and dtype is not DType.BFLOAT16:
            return self.line(f"{a.name}.astype({self.held(target)})", a.shape, target, True)
        return self.line(f"cast_array({a.name}, {self.held(dtype)})", a.shape, target)

    def both(self, a: _Var | None, b: _Var | None) -> _Var | None:
        if a is None or b is None:
            return b if a is None else a
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self.line(f"both({a.name}, {b.name})", shape, np.dtype(np.bool_), True)

    # ---- operands

    def value(self, e: Value) -> _Var:
        fields = self.node.operands[e.operand].source.schema
        dtype, read = fields.dtype(e.field), self.domain.reads[e.operand]
        extents = tuple(k.extent for k in fields.keys)
        shape = read(np.broadcast_to(np.zeros((), dtype.numpy), extents)).shape
        text = self.operands[e.operand].array(e.field)
        if isinstance(read, Indexed) and all(isinstance(x, slice | None) for x in read.index):
            if read.is_whole(extents) and dtype is not DType.BFLOAT16:
                return _Var(text, shape, dtype.carrier)
            if not read.is_whole(extents):
                text = f"{text}[{self.held(read.index)}]"
        else:
            self.keep(prod(shape))  # the reading may cache index arrays
            text = f"{self.held(read)}({text})"
        if dtype is DType.BFLOAT16:
            text = f"widen({text})"
        return self.line(text, shape, dtype.carrier)

    # ---- outputs

    def single(self, o: Output, mask: _Var | None) -> _Var:
        """Writes the only contribution at each key, or the identity if there is none."""
        if o.reduction is None:
            return self.shown(self.cast(self.expr(o.args[0], mask), o.dtype), o.dtype)
        selected = mask if o.where == TRUE else self.both(mask, self.expr(o.where, mask))
        value = self.cast(self.expr(o.args[0], selected), o.dtype)
        if selected is not None:
            value = self.chosen(selected, value, REDUCTIONS[o.reduction].identity(o.dtype))
        if o.reduction == "sum" and value.dtype.kind == "f":
            value = self.from_zero(value)
        return self.shown(value, o.dtype)

    def reduced(self, o: Output, mask: _Var | None) -> _Var:
        selected = mask if o.where == TRUE else self.both(mask, self.expr(o.where, mask))
        value = self.expr(o.args[0], selected)
        shape, kept = self.domain.shape, self.domain.kept
        if value.shape != shape:
            text = f"broadcast_to({value.name}, {shape!r})"
            value = self.line(text, shape, value.dtype)
        value = self.cast(value, o.dtype)
        function = REDUCTIONS[o.reduction or ""].monoid or ""
        running = running_type(function, o.dtype)
        identity = REDUCTIONS[o.reduction or ""].identity(running)
        if selected is not None:
            value = self.chosen(selected, value, identity)
        ufunc, state = self.held(UFUNCS[function], "f"), self.held(running.carrier)
        if gone := tuple(range(kept, len(shape))):
            if function == "add" and o.dtype is DType.DOUBLE and prod(shape[kept:]) > 2 * CHAIN:
                text = f"{self.held(add_up, 'f')}({value.name}, {gone!r}, True)"
            else:
                reduce = self.held(UFUNCS[function].reduce, "f")
                text = f"{reduce}({value.name}, {gone!r}, {state})"
            value = self.line(text, shape[:kept], running.carrier, True)
        start = self.literal(np.asarray(identity, running.carrier))
        # The closures' memory order: a later sum adds in the order of its terms in memory.
        text = f"{ufunc}({start.name}, {value.name}, order='C')"
        return self.shown(self.line(text, shape[:kept], running.carrier, True), o.dtype)

    def chosen(self, mask: _Var, value: _Var, otherwise: object) -> _Var:
        other = self.literal(np.asarray(otherwise, value.dtype))
        shape = np.broadcast_shapes(mask.shape, value.shape)
        text = f"where({mask.name}, {value.name}, {other.name})"
        return self.line(text, shape, value.dtype, True)

    def from_zero(self, value: _Var) -> _Var:
        zero = self.literal(np.asarray(0, value.dtype))
        add = self.held(np.add, "f")
        return self.line(f"{add}({value.name}, {zero.name})", value.shape, value.dtype, True)

    def shown(self, value: _Var, dtype: DType) -> _Var:
        """Writes a field of the result: a new array of the result's shape and type."""
        shape, stored = self.node.schema.shape, dtype.numpy
        if dtype is DType.BFLOAT16:
            value = self.line(f"narrow({value.name})", value.shape, stored, True)
        elif value.dtype != stored:
            text = f"{value.name}.astype({self.held(stored)})"
            value = self.line(text, value.shape, stored, True)
        if value.shape == shape and value.own and value.name not in self.given:
            self.given.add(value.name)  # another output needs its own array
            return value
        field = self.line(f"empty({shape!r}, {self.held(stored)})", shape, stored)
        self.page.lines.append(f"{field.name}[...] = {value.name}")
        return field
