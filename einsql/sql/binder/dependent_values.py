"""Values that become operands of a domain: columns that GROUP BY determines, shared arguments.

A column beside aggregates is read by the keys of the group if all keys of its tensor are grouped.
Then each group has one row of the tensor.

An argument that several places of expanded macros read (`macros/sharing.py`) is bound once for each
domain. A large one becomes a node over the labels on which it depends. So the expressions of a
statement grow with the number of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field

from sqlglot import exp

from einsql.core.big_stack import require_room
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Expr,
    Label,
    Output,
    Value,
    conj,
    conjuncts,
    labels_of,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import relabel, renumber
from einsql.ir.einsum.intervals import can_raise
from einsql.sql.binder.domain import Domain
from einsql.sql.macros.expansion import MAX_EXPANDED
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parser.positions import unsupported
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.typed_expr import Typed

WHOLE = 64
"""The nodes of the largest expression that remains one: benchmarks/nested_macros.py."""
_VALUE = "value"


@dataclass
class DependentValues:
    """The columns of the rows that are functions of the keys of a group.

    Attributes:
        rows: The domain of the rows.
        keys: The labels of GROUP BY.
        groups: The domain of the groups that `labels` and `operands` belong to.
        labels: The labels over the groups by those over the rows.
        operands: The operands of the groups by those of the rows.
    """

    rows: Domain
    keys: Collection[str]
    groups: Domain = field(default_factory=Domain)
    labels: dict[str, str] = field(default_factory=dict)
    operands: dict[int, int] = field(default_factory=dict)

    def column(self, typed: Typed, groups: Domain) -> Typed | None:
        """The column over the groups; None for a key, or if GROUP BY does not determine it.

        Args:
            typed: The column over the rows.
            groups: The domain of the groups, to which missing operands are added.
        """
        if isinstance(typed.value, Label):
            return None  # GROUP BY names keys
        if self._undetermined(typed.value) or self._undetermined(typed.valid):
            return None
        if groups is not self.groups:
            self.groups, self.labels, self.operands = groups, {k: k for k in self.keys}, {}
        return Typed(self._carried(typed.value), typed.type, self._carried(typed.valid))

    def free_keys(self, typed: Typed, scope: Scope) -> list[str]:
        """The columns without which GROUP BY does not determine another one, as `table.key`."""
        free = self._undetermined(typed.value) | self._undetermined(typed.valid)
        keys: dict[str, str] = {}
        for source in scope.sources:
            for name, column in source.columns:
                if isinstance(column.value, Label):
                    keys.setdefault(self.rows.find(column.value.name), f"{source.alias}.{name}")
        return sorted(keys[label] for label in free if label in keys)

    def _undetermined(self, expr: Expr) -> set[str]:
        """The free labels that an expression depends on and that are not grouped."""
        todo = self._read(expr)
        seen, free = set(todo), set[str]()
        while todo:
            label = todo.pop()
            if label in self.keys:
                continue
            define = self.rows.defines.get(label)
            if define is None:
                free.add(label)
            elif self._key_of(define) is None:
                todo |= self._read(define) - seen
                seen |= todo
        return free

    def _key_of(self, define: Expr) -> str | None:
        """The grouped label of the same definition, such as `i // 2`."""
        wanted, defines = self.rows.canonical(define), self.rows.defines
        same = (k for k in self.keys if k in defines and self.rows.canonical(defines[k]) == wanted)
        return next(same, None)

    def _read(self, expr: Expr) -> set[str]:
        """The labels of an expression and of the operands that it reads."""
        of_operands = (self.rows.operands[n].labels for n in operands_of(expr))
        names = set(labels_of(expr)).union(*of_operands)
        return {self.rows.find(name) for name in names}

    def _carried(self, expr: Expr) -> Expr:
        numbers = {n: self._operand(n) for n in operands_of(expr)}
        labels = {raw: self._label(self.rows.find(raw)) for raw in labels_of(expr)}
        return relabel(renumber(expr, numbers), labels)

    def _operand(self, number: int) -> int:
        if number not in self.operands:
            operand = self.rows.operands[number]
            labels = tuple(self._label(self.rows.find(raw)) for raw in operand.labels)
            self.operands[number] = self.groups.lookup(operand.source, labels)
        return self.operands[number]

    def _label(self, label: str) -> str:
        if label not in self.labels:
            define = self.rows.defines[label]
            key = self._key_of(define)
            define = self._carried(define) if key is None else Label(key)
            self.labels[label] = self.groups.derive(label, define, *self.rows.axes[label])
        return self.labels[label]


@dataclass
class SharedValues:
    """The values of the shared arguments of one SELECT.

    Attributes:
        bound: The values, by the number of the argument and what else a name depends on.
        sizes: The sizes of expressions, by id; the stored reference keeps the id unique.
        depth: The number of arguments that are being bound.
    """

    bound: dict[tuple[object, ...], tuple[Domain, Typed]] = field(default_factory=dict)
    sizes: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    depth: int = 0

    def bind(
        self,
        argument: SharedArgument,
        domain: Domain,
        place: tuple[object, ...],
        bind: Callable[[exp.Expr], Typed],
    ) -> Typed:
        """The value of an argument over a domain.

        Args:
            argument: The argument.
            domain: The domain, to which a large value is added as an operand.
            place: What a name in the argument depends on, besides the domain.
            bind: Function that binds an expression over the domain.

        Raises:
            ProgrammingError: The value is too large, and may raise an error of data. So it cannot
                be computed where it is not read.
        """
        key = (argument.number, id(domain), *place)
        if key not in self.bound:
            self.depth += 1
            require_room(self.depth)
            try:
                typed = bind(argument.tree)
            finally:
                self.depth -= 1
            self.bound[key] = domain, self._settled(typed, domain)
        return self.bound[key][1]

    def small(self, argument: SharedArgument, bind: Callable[[exp.Expr], Typed]) -> Typed:
        """The value of an argument, if it is small.

        Raises:
            NotSupportedError: The value is large.
        """
        key = (argument.number,)
        if key not in self.bound:
            typed = bind(argument.tree)
            if self._size(typed.value) + self._size(typed.valid) > WHOLE:
                raise unsupported("A large argument of a macro", argument.tree)
            self.bound[key] = Domain(), typed
        return self.bound[key][1]

    def _settled(self, typed: Typed, domain: Domain) -> Typed:
        """The value, as an operand of the domain if it is large."""
        size = self._size(typed.value) + self._size(typed.valid)
        if size <= WHOLE:
            return typed
        bounds = domain.bounds()
        if not any(domain.edges.values()) and not any(
            can_raise(e, bounds) for e in (typed.value, typed.valid)
        ):
            return as_operand(typed, domain)
        if size > MAX_EXPANDED:
            raise ProgrammingError(
                f"Macros make an expression more than {MAX_EXPANDED:,} nodes long",
                hint="Name repeated parts in WITH, or CAST them to DOUBLE: arguments that cannot "
                "overflow are computed once.",
            )
        return typed

    def _size(self, expr: Expr) -> int:
        if not isinstance(expr, Call):
            return 1
        if id(expr) not in self.sizes:
            self.sizes[id(expr)] = expr, 1 + sum(map(self._size, expr.args))
        return self.sizes[id(expr)][1]


def as_operand(typed: Typed, domain: Domain) -> Typed:
    """A value that a node computes, which becomes an operand of the domain."""
    rows, numbers = _rows_of(typed, domain)
    computed = renumber(domain.canonical(typed.value), numbers)
    outputs = [Output(_VALUE, (computed,), computed.dtype)]
    if typed.valid != TRUE:
        known = renumber(domain.canonical(typed.valid), numbers)
        outputs.append(Output(valid(_VALUE), (known,), DType.BOOLEAN))
    if not rows.total:
        outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
    keys = tuple(rows.free)
    node = rows.node(keys, outputs)
    number = domain.lookup(node, keys)
    flags = [valid(_VALUE)] if typed.valid != TRUE else []
    known = conj(*(Value(number, f, DType.BOOLEAN) for f in flags))
    return Typed(Value(number, _VALUE, computed.dtype), typed.type, known)


def _rows_of(typed: Typed, domain: Domain) -> tuple[Domain, dict[int, int]]:
    """The part of a domain on which a value depends, and the new numbers of its operands."""
    exprs = [domain.canonical(e) for e in (typed.value, typed.valid)]
    labels = set().union(*(domain.reach(e) for e in exprs))
    defines = {n: domain.canonical(e) for n, e in domain.defines.items() if n in labels}
    read = set().union(*(operands_of(e) for e in (*exprs, *defines.values())))
    bounds = domain.bounds()
    guards = [
        t
        for t in conjuncts(domain.guard)
        if operands_of(t) <= read and domain.reach(t) <= labels and not can_raise(t, bounds)
    ]
    numbers = {old: new for new, old in enumerate(sorted(read))}
    rows = domain.copy()
    rows.axes = {n: limits for n, limits in domain.axes.items() if n in labels}
    rows.merged = {raw: n for raw, n in domain.merged.items() if domain.find(raw) in labels}
    rows.operands = [domain.operands[n] for n in sorted(read)]
    rows.defines = {n: renumber(e, numbers) for n, e in defines.items()}
    rows.guards = [renumber(t, numbers) for t in guards]
    rows.hint = {}
    return rows, numbers
