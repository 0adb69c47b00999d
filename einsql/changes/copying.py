"""COPY: tensors and results to files, and files into tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from einsql.changes.target import changed, rows
from einsql.engine import files
from einsql.errors import (
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from einsql.sql.syntax import Copy

if TYPE_CHECKING:
    from einsql.session import Connection


def copy(con: Connection, statement: Copy) -> int:
    """COPY … FROM or TO a file; returns the number of elements.

    Raises:
        OperationalError: The file is missing, damaged or of another format.
        DataError: Its shape or dtype is not the tensor's.
    """
    if not con.settings.enable_external_access:
        raise OperationalError("COPY is off: enable_external_access is false")
    options = dict(statement.options)
    for option in options:
        if option != "TENSOR":
            raise ProgrammingError(f"COPY has no option {option}", hint="TENSOR 'name' works.")
    if statement.reads:
        return _copy_in(con, statement, options.get("TENSOR"))
    return _copy_out(con, statement, options.get("TENSOR"))


def _copy_out(con: Connection, statement: Copy, member: str | None) -> int:
    query = statement.query
    if query is None:
        table = exp.Table(this=exp.to_identifier(statement.name, quoted=True))
        query = exp.select("*").from_(table)
    result = con.select(query)
    starts = {k.name: k.lo for k in result.schema.keys}
    _refuse_offset(
        {c.name: starts[c.key] for c in result.columns if c.key is not None},
        "SELECT {key} - {lo} AS {key}, … shifts it.",
    )
    if len([c for c in result.columns if c.field is not None]) > 1:
        if not statement.path.endswith(".npz"):
            raise DataError("Several value columns need an .npz file")
        raise NotSupportedError("COPY of several value columns is not there yet; copy each alone")
    name = member or statement.name or "val"
    suffix = Path(statement.path).suffix.lower()
    if suffix == ".npy" and member is not None:
        raise ProgrammingError(f"A .npy file has no names; TENSOR '{member}' means nothing")
    if suffix == ".npz" and name in ("file", "allow_pickle"):  # numpy.savez's own parameters
        raise ProgrammingError(
            f"NumPy cannot name an array in a file {name}", hint="(TENSOR 'name') gives another."
        )
    try:
        if con.cluster is not None and suffix != ".npz":
            from einsql.changes.distant import written  # for ranks only

            if written(con, result, statement.path, name):
                return result.schema.size
        array = np.asarray(result.numpy(as_stored=True))
    except InterfaceError as error:
        raise DataError(error.reason, hint=error.hint) from error
    files.write(statement.path, array, name)
    return int(array.size)


def _copy_in(con: Connection, statement: Copy, member: str | None) -> int:
    tensor = con.writable(statement.name)
    schema = tensor.relation.schema
    values = schema.values
    if len(values) != 1:
        raise DataError(f"COPY FROM needs one value column; {tensor.name} has {len(values)}")
    starts = {k.name: k.lo for k in schema.keys}
    _refuse_offset(starts, "INSERT INTO … SELECT {key} + {lo}, … FROM the file shifts it.")
    found = files.open_tensor(statement.path, member)
    if found.shape != schema.shape:
        raise DataError(
            f"'{statement.path}' has the shape {found.shape}",
            hint=f"{tensor.name} has {schema.shape}.",
        )
    if found.dtype is not values[0].dtype:
        raise DataError(
            f"'{statement.path}' holds {found.dtype.numpy_name}, but {values[0].name} is "
            f"{values[0].dtype.value}",
            hint="INSERT INTO … SELECT …, CAST(val AS …) FROM the file converts.",
        )
    if tensor.default is None and rows(tensor.relation.fields, schema):
        raise IntegrityError(
            f"{tensor.name} has rows already", hint="DELETE them, or CREATE OR REPLACE TENSOR."
        )
    if con.cluster is not None:
        from einsql.changes.distant import loaded  # for ranks only

        con.store.put(loaded(con, tensor, found))
        return schema.size
    with con.memory.lending():
        kept = found.read([slice(None)] * len(found.shape))
    con.store.put(changed(tensor, {values[0].name: kept}, None))
    return int(kept.size)


def _refuse_offset(starts: Mapping[str, int], hint: str) -> None:
    """An array in a file counts its keys from 0."""
    for key, lo in starts.items():
        if lo != 0:
            raise DataError(
                f"The key {key} starts at {lo}, but a file's keys start at 0",
                hint=hint.format(key=key, lo=lo),
            )
