"""The parts of a change: one bound INSERT, UPDATE or DELETE of one tensor each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Key, Schema
from einsql.ir.einsum.graph import SCALAR, Input, Node
from einsql.session.statements import insert as rows_of
from einsql.session.statements import update
from einsql.session.statements.box_insert import Boxed
from einsql.session.statements.write_set import WriteSet
from einsql.sql.binder.dml import (
    Touch,
)
from einsql.sql.parameters.runtime_inputs import Cut, Shift, shifted, within
from einsql.sql.scope.relation import Relation
from einsql.storage.fields import Fields
from einsql.storage.objects import Tensor
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.planner.context import Context


Ends = tuple["Cut | Shift", ...]
"""Bounds of a part's keys that depend on parameters."""
Inputs = Mapping[str, Fields]


@dataclass(frozen=True, slots=True)
class Part(ABC):
    """One change of one tensor, bound.

    Attributes:
        VERB: The statement, as EXPLAIN shows it.
        ADDS: Whether it only adds rows, so that several parts may change one tensor.
        name: The tensor.
        at: The position of the name in the statement, for parts of WITH.
    """

    VERB: ClassVar[str]
    ADDS: ClassVar[bool] = False
    name: str
    at: int | None

    @property
    def root(self) -> Node | None:
        """The graph node to compute; None for INSERT of VALUES."""
        return None

    @abstractmethod
    def writes(
        self, ctx: Context, tensor: Tensor, fields: Fields, inputs: Inputs
    ) -> tuple[WriteSet, int]:
        """Returns the cells to store, and the number of changed rows.

        Args:
            ctx: The session.
            tensor: The tensor before the statement.
            fields: The result of the root.
            inputs: The inputs of the root.

        Raises:
            Error: A key occurs twice or exists already, or a value is NULL.
        """


@dataclass(frozen=True, slots=True)
class UpdateOrDelete(Part):
    """A change of existing rows."""

    touch: Touch
    ends: Ends = ()

    @property
    def root(self) -> Node:
        """The node of the touched rows."""
        return self.touch.node

    def within_ends(self, fields: Fields, inputs: Inputs) -> tuple[Touch, Fields]:
        """Returns the rows within the bounds that parameters set, and their fields."""
        if not self.ends:
            return self.touch, fields
        schema = shifted(self.root.schema, self.ends, inputs)
        cuts = [e for e in self.ends if isinstance(e, Cut)]
        if cuts:
            box = within(np.array([(k.lo, k.hi) for k in schema.keys], np.int64), cuts, inputs)
            lows = np.array([k.lo for k in schema.keys], np.int64).reshape(-1, 1)
            at = box - lows
            fields = fields.crop(at) if fields.is_sparse else fields.part(tuple(fields), at)
            bounds = zip(box.tolist(), schema.keys, strict=True)
            keys = tuple(Key(k.name, lo, hi) for (lo, hi), k in bounds)
            schema = Schema(keys, schema.fields)
        # `updated` and `deleted` read only the schema of the node.
        return replace(self.touch, node=Input("", schema)), fields


@dataclass(frozen=True, slots=True)
class Update(UpdateOrDelete):
    """UPDATE."""

    VERB = "UPDATE"

    def writes(
        self, ctx: Context, tensor: Tensor, fields: Fields, inputs: Inputs
    ) -> tuple[WriteSet, int]:
        """See `Part.writes`."""
        return update.updated(ctx, tensor, *self.within_ends(fields, inputs))


@dataclass(frozen=True, slots=True)
class Delete(UpdateOrDelete):
    """DELETE."""

    VERB = "DELETE"

    def writes(
        self, ctx: Context, tensor: Tensor, fields: Fields, inputs: Inputs
    ) -> tuple[WriteSet, int]:
        """See `Part.writes`."""
        update.refuse_default(tensor)
        return update.deleted(ctx, tensor, *self.within_ends(fields, inputs))


@dataclass(frozen=True, slots=True)
class InsertSelect(Part):
    """INSERT of a SELECT.

    Attributes:
        relation: The SELECT.
        order: The tensor's column for each column of the SELECT.
        replaces: Whether existing rows are overwritten.
        empty: The SELECT's result without fields.
        ends: Bounds of the result's keys that depend on parameters.
        constants: Fields with one number in every row: the number, or the input that has it.
        box: The conversion of the result to a box of the tensor, if every run gives one.
    """

    VERB = "INSERT"
    ADDS = True
    relation: Relation
    order: list[str]
    replaces: bool
    empty: Result
    ends: Ends = ()
    constants: Mapping[str, int | str] = field(default_factory=dict)
    box: Boxed | None = None

    @property
    def root(self) -> Node:
        """The SELECT's node."""
        return self.relation.node

    def writes(
        self, ctx: Context, tensor: Tensor, fields: Fields, inputs: Inputs
    ) -> tuple[WriteSet, int]:
        """See `Part.writes`."""
        if self.box is not None and tensor.relation.schema is self.box.schema:
            written = self.box.write(tensor, fields, inputs)
            if written is not None and (self.replaces or tensor.default is not None):
                return written, written.count
        empty = self.empty
        schema = shifted(empty.schema, self.ends, inputs)
        result = Result(schema, fields.rekeyed(schema), empty.columns, empty.hidden)
        cuts = [e for e in self.ends if isinstance(e, Cut)]
        if cuts:
            result = result.cropped(within(result.bounds, cuts, inputs))
        constants = {
            k: n if isinstance(n, int) else int(inputs[n][SCALAR])
            for k, n in self.constants.items()
        }
        return rows_of.inserted(ctx, tensor, self.order, result, self.replaces, constants)


@dataclass(frozen=True, slots=True)
class InsertValues(Part):
    """INSERT of VALUES."""

    VERB = "INSERT"
    ADDS = True
    table: dict[str, np.ndarray]
    replaces: bool

    def writes(
        self, ctx: Context, tensor: Tensor, fields: Fields, inputs: Inputs
    ) -> tuple[WriteSet, int]:
        """See `Part.writes`."""
        return rows_of.row_write(tensor, self.table, self.replaces)
