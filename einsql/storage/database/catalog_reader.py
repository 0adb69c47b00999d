"""Reads objects from catalog rows; a damaged row becomes a `Damaged` object."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.value_checks import Check
from einsql.errors import Error
from einsql.ir.partition import OnMesh, Partition, Parts
from einsql.storage.database import sparse_payload
from einsql.storage.database.checks import CHUNK
from einsql.storage.database.directory import Directory, is_payload
from einsql.storage.database.layout import CSR, Layout, read_value
from einsql.storage.database.rows import Row, payload_of
from einsql.storage.objects import Damaged, Definition, Object, Tensor
from einsql.storage.relation import Relation

Define = Callable[[str, str, str], Definition]
"""Creates a view or macro from its kind, name and text; the session supplies the SQL parser."""

_PAYLOAD = re.compile(r'"([^"/\\]+\.\d+\.[0-9a-f]{32}\.arrow)"')
_KINDS = ("tensor", "view", "macro")
_MOST = 2**62
"""Exclusive upper bound of keys, sizes and offsets."""
_LARGEST = 2**58
"""Greatest number of elements: NumPy describes no larger array, even one of stride 0."""


def object_of(row: Row, directory: Directory, define: Define) -> Object:
    """The object of a row, without reading its payload or parsing its definition."""
    try:
        if row.fault:
            raise ValueError(row.fault)
        if row.kind not in _KINDS:
            raise ValueError(f"its kind is {row.kind!r}, which this einsql does not know")
        description = _of(dict, json.loads(row.description))
        if row.kind == "tensor":
            stored: Object = _tensor(description, directory)
        else:
            stored = define(row.kind, row.name, _of(str, description["text"]))
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
    """The payload files of a committed object; None if they are unknown."""
    if isinstance(item, Damaged):
        return item.payloads
    file = payload_of(item)
    return frozenset() if file is None else frozenset((file,))


# ---- tensors


def _of(kind: type[Any], value: object) -> Any:
    """Checks that a value has a type, and returns it.

    Raises:
        TypeError: It has another type.
    """
    if type(value) is not kind:
        raise TypeError(f"its row has {value!r:.60} where {kind.__name__} belongs")
    return value


def _whole(value: object, least: int = 0) -> int:
    number = int(_of(int, value))
    if not least <= number < _MOST:
        raise ValueError(f"its row has the number {number}")
    return number


def _tensor(description: Mapping[str, Any], directory: Directory) -> Tensor:
    name = _of(str, description["name"])
    keys = tuple(
        Key(_of(str, n), _whole(lo, -_MOST), _whole(hi, -_MOST))
        for n, lo, hi in description["keys"]
    )
    schema = Schema(keys, tuple(Field(_of(str, n), DType(t)) for n, t in description["fields"]))
    layout = _layout(description["payload"])
    _check(layout, schema)
    if schema.size > _LARGEST:
        raise ValueError(f"it would have {schema.size:,} elements")
    columns = tuple(_of(str, c) for c in description["columns"])
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
        Check(_of(str, name), *(None if b is None else int(_of(int, b)) for b in bounds))
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
    order, written = tuple(map(_whole, description["order"])), description["partition"]
    if isinstance(written, dict):
        axes = tuple(tuple(_of(str, name) for name in names) for names in written["axes"])
        copies, partial = (
            tuple(_of(str, name) for name in written[entry]) for entry in ("copies", "partial")
        )
        partition = OnMesh(axes, copies, partial)
        if len(axes) != keys or len(set(partition.named)) != len(partition.named):
            raise ValueError("its PARTITION BY does not fit its keys")
        return partition
    if (written is not None or order) and sorted(order) != list(range(keys)):
        raise ValueError("its PARTITION BY does not name each key once")
    if written is None:
        return None
    numbers = tuple(_whole(n, 1) for n in written)
    if len(numbers) != keys:
        raise ValueError("its PARTITION BY has not one number for each key")
    return Parts(numbers, order)


def _layout(description: Mapping[str, Any]) -> Layout:
    layout = Layout.read(description)
    for number in (layout.size, layout.sums, layout.count, layout.frame):
        _whole(number, -_MOST)
    for part in layout.parts:
        _of(str, part.name)
        for number in (part.offset, part.first, *part.shape):
            _whole(number, -_MOST)
    _of(str, layout.file)
    return layout


def _check(layout: Layout, schema: Schema) -> None:
    """Refuses a layout whose offsets leave the payload, or whose name leaves the directory.

    Raises:
        ValueError: The layout does so.
    """
    if not is_payload(layout.file):
        raise ValueError(f"{layout.file!r} is no payload's name")
    if layout.format == CSR:
        shapes = sparse_payload.shapes_of(layout, schema)
        schema = sparse_payload.payload_schema(schema, shapes[sparse_payload.COLUMNS][0])
    else:
        shapes = dict.fromkeys((f.name for f in schema.fields), schema.shape)
    if [p.name for p in layout.parts] != list(shapes):
        raise ValueError("the payload has other fields")
    places = [(layout.sums, 4 * layout.count)]
    count = 0
    for part in layout.parts:
        extents = zip(part.shape, shapes[part.name], strict=True)
        few = layout.format != CSR
        wrong = any(n != extent and not (few and n == 1) for n, extent in extents)
        if wrong or part.first != count:
            raise ValueError(f"the payload has no {part.name} of that shape")
        nbytes = prod(part.shape) * schema.dtype(part.name).numpy.itemsize
        places.append((part.offset, nbytes))
        count += -(-nbytes // CHUNK)
    if count != layout.count or any(lo < 0 or lo + n > layout.size for lo, n in places):
        raise ValueError("the payload is too short")
