"""Columns beside aggregates that GROUP BY determines: all keys of their tensor are grouped.

Each group has one row of such a tensor, so the column is read by the keys of the group.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Expr, Label, labels_of, operands_of
from einsql.ir.einsum.graph_rewriting import relabel, renumber
from einsql.sql.binder.domain import Domain
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.typed_expr import Typed


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
