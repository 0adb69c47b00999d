"""CHECK: the declared bounds of values, and the test of new values against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from einsql.core.schema import PRESENT, Schema
from einsql.core.value_checks import Check
from einsql.errors import IntegrityError, ProgrammingError, suggest
from einsql.session.statements.target import key_text
from einsql.session.statements.write_set import Write, WriteSet, cell
from einsql.sql.parser.positions import position
from einsql.sql.parser.syntax import CheckClause
from einsql.sql.parser.value_checks import Bounds, both, declared_bounds
from einsql.storage.array_ownership import distinct
from einsql.storage.fields import Term
from einsql.storage.objects import Tensor
from einsql.storage.sparse_fields import SparseFields, sparse_fields_of


def declared_checks(clauses: Iterable[CheckClause], schema: Schema) -> tuple[Check, ...]:
    """The checks of a declared tensor, one for each column that the clauses bound.

    Raises:
        ProgrammingError: A column does not exist, is a key or no integer, or no value fits.
        NotSupportedError: A condition is no comparison with integers.
    """
    known = {f.name.lower(): f for f in schema.values}
    bounds: dict[str, Bounds] = {}
    for clause in clauses:
        for column, more in declared_bounds(clause.condition):
            field = known.get(column.name.lower())
            if field is None or not field.dtype.is_integer:
                raise _no_column(column.name, schema, position(column))
            name = field.name
            least, most = field.dtype.range
            low, high = both(bounds.get(name, (None, None)), more)
            low = None if low is None or low <= least else low
            high = None if high is None or high >= most else high
            bounds[name] = low, high
            if (least if low is None else low) > (most if high is None else high):
                raise ProgrammingError(f"No value of {name} satisfies CHECK", position=clause.at)
    return tuple(Check(name, *each) for name, each in bounds.items() if each != (None, None))


def _no_column(name: str, schema: Schema, at: int | None) -> ProgrammingError:
    if name.lower() in {k.name.lower() for k in schema.keys}:
        reason, hint = f"CHECK bounds values, and {name} is a key", "DIM(n) bounds a key."
    elif name.lower() in {f.name.lower() for f in schema.values}:
        reason, hint = f"CHECK bounds integers, and {name} is none", "Leave the CHECK out."
    else:
        reason = f'CHECK finds no column "{name}"'
        hint = suggest(name, (f.name for f in schema.values), "columns")
    return ProgrammingError(reason, hint=hint, position=at)


def refuse_violations(change: WriteSet) -> None:
    """Tests the new values of a tensor against its checks.

    Args:
        change: New cells, whose values are tested, or a new tensor, all of whose present values
            are tested where they are placed.

    Raises:
        IntegrityError: A value is out of the declared bounds.
    """
    tensor = change.tensor if isinstance(change, Write) else change
    for check in tensor.checks:
        if isinstance(change, Write):
            _test_cells(change, check)
        else:
            _test_tensor(change, check)


def _test_cells(write: Write, check: Check) -> None:
    values = write.values.get(check.column)
    schema = write.tensor.relation.schema
    if values is None or not _outside(distinct(values), check, schema).any():
        return
    shape = schema.shape if write.at is None else values.shape
    listed = np.broadcast_to(values, shape).reshape(-1)
    first = int(np.flatnonzero(_outside(listed, check, schema))[0])
    raise violation(write.tensor, check, int(listed[first]), cell(write, first))


def _test_tensor(tensor: Tensor, check: Check) -> None:
    schema, fields = tensor.relation.schema, tensor.relation.fields
    least, most = check.within(schema.dtype(check.column))
    there = [Term(PRESENT)] if PRESENT in fields else []
    outside = []
    if check.least is not None:
        outside.append(Term(check.column, holds=False, above=least - 1))
    if check.most is not None:
        outside.append(Term(check.column, above=most))
    if not any(fields.count(term, *there) for term in outside):
        return
    few = sparse_fields_of(fields)
    if few is not None:
        flat, value = _first_stored(few.in_key_order(), check, schema)
        raise violation(tensor, check, value, flat)
    values = fields[check.column]
    wrong = _outside(values, check, schema)
    if there:
        wrong &= fields[PRESENT]
    first = int(np.flatnonzero(wrong)[0])
    raise violation(tensor, check, int(values.reshape(-1)[first]), first)


def _first_stored(fields: SparseFields, check: Check, schema: Schema) -> tuple[int, int]:
    """The flat index and value of a stored element out of the bounds, else of another key."""
    matrix = fields.taken(check.column)
    flat = matrix.rows * matrix.shape[1] + matrix.columns
    wrong = np.flatnonzero(_outside(matrix.values, check, schema))
    if len(wrong):
        return int(flat[wrong[0]]), int(matrix.values[wrong[0]])
    gaps = np.flatnonzero(flat != np.arange(len(flat)))
    return int(gaps[0]) if len(gaps) else len(flat), int(fields.fill(check.column))


def first_violation(tensor: Tensor, check: Check, values: Sequence[int] | np.ndarray) -> int | None:
    """The number of the first value that is out of the declared bounds, or None."""
    wrong = _outside(np.asarray(values), check, tensor.relation.schema)
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else None


def _outside(values: np.ndarray, check: Check, schema: Schema) -> np.ndarray:
    least, most = check.within(schema.dtype(check.column))
    return np.asarray((values < least) | (values > most))


def violation(tensor: Tensor, check: Check, value: int, flat: int) -> IntegrityError:
    """The error for a value out of the declared bounds.

    Args:
        tensor: The tensor.
        check: The declared bounds.
        value: The value.
        flat: The flat index of its key.
    """
    schema = tensor.relation.schema
    at = f" at ({key_text(schema, flat)})" if schema.keys else ""
    least, most = check.within(schema.dtype(check.column))
    return IntegrityError(
        f"{check.column} = {value}{at} violates {check} of {tensor.name}",
        hint=f"Values from {least} to {most} are allowed.",
    )
