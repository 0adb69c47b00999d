"""Reads objects from catalog rows; a damaged row becomes a `Damaged` object."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.value_checks import Check
from einsql.errors import Error
from einsql.ir.partition import OnMesh, Partition, Parts
from einsql.storage.database.directory import Directory
from einsql.storage.database.layout import read_value
from einsql.storage.database.layout_reader import checked_layout, of_type, whole
from einsql.storage.database.rows import Row, files_of
from einsql.storage.objects import Damaged, Definition, Object, Tensor
from einsql.storage.relation import Relation

Define = Callable[[str, str, str], Definition]
"""Creates a view or macro from its kind, name and text; the session supplies the SQL parser."""

_PAYLOAD = re.compile(r'"([^"/\\]+\.\d+\.[0-9a-f]{32}\.arrow)"')
_KINDS = ("tensor", "view", "macro")
_FARTHEST = 2**63
"""Greatest exclusive bound of a key, which is a BIGINT."""
_LARGEST = 2**58
"""Greatest number of elements: NumPy describes no larger array, even one of stride 0."""


def object_of(row: Row, directory: Directory, define: Define) -> Object:
    """The object of a row, without reading its payload or parsing its definition."""
    try:
        if row.fault:
            raise ValueError(row.fault)
        if row.kind not in _KINDS:
            raise ValueError(f"its kind is {row.kind!r}, which this einsql does not know")
        description = of_type(dict, json.loads(row.description))
        if row.kind == "tensor":
            stored: Object = _tensor(description, row.chunks, directory)
        else:
            stored = define(row.kind, row.name, of_type(str, description["text"]))
        if stored.name.lower() != row.name:
            raise ValueError(f"its row defines {stored.name!r}")
        return stored
    except Error as error:
        return _damaged(row, error.reason)
    except KeyError as error:
        return _damaged(row, f"its row has no {error}")
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        return _damaged(row, str(error))


def _damaged(row: Row, fault: str) -> Damaged:
    named = frozenset(_PAYLOAD.findall(row.description))
    needs_none = row.kind in ("view", "macro")
    kind = row.kind if row.kind in _KINDS else "object"
    return Damaged(row.name, kind, fault, named if named or needs_none else None)


def payloads_of(item: Object) -> frozenset[str] | None:
    """The segments of a committed object; None if they are unknown."""
    return item.payloads if isinstance(item, Damaged) else files_of(item)


# ---- tensors


def _tensor(
    description: Mapping[str, Any], chunks: Mapping[int, bytes], directory: Directory
) -> Tensor:
    name = of_type(str, description["name"])
    keys = tuple(
        Key(of_type(str, n), whole(lo, -_FARTHEST, _FARTHEST), whole(hi, -_FARTHEST, _FARTHEST))
        for n, lo, hi in description["keys"]
    )
    schema = Schema(keys, tuple(Field(of_type(str, n), DType(t)) for n, t in description["fields"]))
    layout = checked_layout(of_type(dict, description["payload"]), chunks, schema)
    if schema.size > _LARGEST:
        raise ValueError(f"it would have {schema.size:,} elements")
    columns = tuple(of_type(str, c) for c in description["columns"])
    named = [*(k.name for k in keys), *(f.name for f in schema.fields)]
    shown = {*(k.name for k in keys), *(f.name for f in schema.values)}
    if len({*named}) != len(named) or {*columns} != shown or len(columns) != len(shown):
        raise ValueError("its columns are not its keys and values")
    fields = directory.fields(layout, schema, name)
    return Tensor(
        name=name,
        relation=Relation(schema, fields),
        columns=columns,
        partition=_partition(description, len(keys)),
        default=read_value(description["default"]),
        checks=_checks(description.get("checks", ()), schema),
    )


def _checks(listed: Sequence[Any], schema: Schema) -> tuple[Check, ...]:
    """The declared bounds of values.

    Raises:
        ValueError: They are of no integer column, several are of one column, or none fits.
        TypeError: An entry has another type.
    """
    checks = tuple(
        Check(of_type(str, name), *(None if b is None else int(of_type(int, b)) for b in bounds))
        for name, *bounds in listed
    )
    integers = {f.name: f.dtype for f in schema.values if f.dtype.is_integer}
    columns = [c.column for c in checks]
    fits = len({*columns}) == len(columns) and integers.keys() >= {*columns}
    for check in checks if fits else ():
        dtype = integers[check.column]
        (least, most), (low, high) = dtype.range, check.within(dtype)
        fits = fits and least <= low <= high <= most
    if not fits:
        raise ValueError("its CHECK does not fit its columns")
    return checks


def _partition(description: Mapping[str, Any], keys: int) -> Partition | None:
    """The declared partition of a tensor with a number of keys.

    Raises:
        ValueError: It does not fit the keys.
        TypeError: An entry has another type.
    """
    order, written = tuple(map(whole, description["order"])), description["partition"]
    if isinstance(written, dict):
        axes = tuple(tuple(of_type(str, name) for name in names) for names in written["axes"])
        copies, partial = (
            tuple(of_type(str, name) for name in written[entry]) for entry in ("copies", "partial")
        )
        partition = OnMesh(axes, copies, partial)
        if len(axes) != keys or len(set(partition.named)) != len(partition.named):
            raise ValueError("its PARTITION BY does not fit its keys")
        return partition
    if (written is not None or order) and sorted(order) != list(range(keys)):
        raise ValueError("its PARTITION BY does not name each key once")
    if written is None:
        return None
    numbers = tuple(whole(n, 1) for n in written)
    if len(numbers) != keys:
        raise ValueError("its PARTITION BY has not one number for each key")
    return Parts(numbers, order)
