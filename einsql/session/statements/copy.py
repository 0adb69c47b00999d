"""COPY: writes tensors and results to files, and reads files into tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.schema import Schema
from einsql.errors import (
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    suggest,
)
from einsql.planner.queries import select
from einsql.session.statements import sparse_rows
from einsql.session.statements.element_rows import inserted
from einsql.session.statements.target import changed, rows
from einsql.session.statements.value_checks import refuse_violations
from einsql.sql.parser.syntax import Copy
from einsql.storage import export, files
from einsql.storage.results.result import Result
from einsql.storage.results.stored_elements import without_zeros

if TYPE_CHECKING:
    from einsql.planner.context import Context

_OPTIONS = ("TENSOR", "FORMAT", "DELIMITER", "HEADER", "ROWS")
_FORMATS = ("npy", "npz", "safetensors", "gguf", "arrow", "parquet", "zarr", "mtx", "csv", "tsv")
_BOOLEANS = {"TRUE": True, "ON": True, "1": True, "FALSE": False, "OFF": False, "0": False}
_TABLES = (".csv", ".tsv")


def copy(ctx: Context, statement: Copy) -> int:
    """COPY … FROM or TO a file; returns the number of elements or rows.

    Raises:
        OperationalError: The file is missing, damaged or of another format.
        DataError: The file's shape or dtype is not the tensor's.
        IntegrityError: A row's key is out of bounds, occurs twice or exists already.
    """
    if not ctx.settings.enable_external_access:
        raise OperationalError("COPY is off: enable_external_access is false")
    options = dict(statement.options)
    for option in options:
        if option not in _OPTIONS:
            raise ProgrammingError(
                f"COPY has no option {option}", hint=suggest(option, _OPTIONS, "options")
            )
    form = _form(options)
    if statement.reads:
        if "ROWS" in options:
            raise ProgrammingError("ROWS is for COPY … TO; a file has its own schema")
        return _copy_in(ctx, statement, options.get("TENSOR"), form)
    return _copy_out(ctx, statement, options, form)


def _form(options: Mapping[str, str]) -> files.Form:
    form = options.get("FORMAT", "").lower()
    if form and form not in _FORMATS:
        raise ProgrammingError(
            f"COPY has no format {form}", hint=suggest(form, _FORMATS, "formats")
        )
    between = options.get("DELIMITER")
    if between is not None and (len(between.encode()) != 1 or between in '"\r\n'):
        raise ProgrammingError("A DELIMITER is one character of ASCII, and no quote")
    suffix = f".{form}" if form else None
    return files.Form(suffix, between, _flag(options, "HEADER", True))


def _flag(options: Mapping[str, str], name: str, usual: bool) -> bool:
    text = options.get(name)
    if text is None:
        return usual
    if text.upper() not in _BOOLEANS:
        raise ProgrammingError(f"{name} is true or false, not {text}")
    return _BOOLEANS[text.upper()]


# ---- COPY TO


def _copy_out(ctx: Context, statement: Copy, options: Mapping[str, str], form: files.Form) -> int:
    query = statement.query
    if query is None:
        table = exp.Table(this=exp.to_identifier(statement.name, quoted=True))
        query = exp.select("*").from_(table)
    result, _ = select(ctx, query)
    path, member = statement.path, options.get("TENSOR")
    suffix = form.suffix or files.suffix_of(path)
    as_rows = _flag(options, "ROWS", suffix == ".parquet" and member is None)
    if suffix == ".mtx":
        return _matrix(ctx, result, path)
    if suffix in _TABLES or (as_rows and suffix in (".parquet", ".arrow")):
        if member is not None:
            raise ProgrammingError(f"A file of rows has no names; TENSOR '{member}' means nothing")
        if suffix in _TABLES and result.has_lists:
            raise ProgrammingError(
                f"A {suffix} file cannot hold a LIST", hint="UNNEST it, or write a .parquet file."
            )
        batches = export.batches(result, ctx.tick)
        return files.write_rows(path, result.arrow_schema(), batches, form)
    if as_rows:
        raise ProgrammingError(
            f"'{path}' cannot hold rows", hint="A .csv, .parquet or .arrow file can."
        )
    return _arrays(ctx, statement, result, suffix, member)


def _arrays(ctx: Context, statement: Copy, result: Result, suffix: str, member: str | None) -> int:
    path = statement.path
    starts = {k.name: k.lo for k in result.schema.keys}
    _refuse_offset(
        {c.name: starts[c.key] for c in result.columns if c.key is not None},
        "SELECT {key} - {lo} AS {key}, … shifts it.",
    )
    values = [c.name for c in result.columns if c.field is not None]
    if suffix == ".npy" and member is not None:
        raise ProgrammingError(f"A .npy file has no names; TENSOR '{member}' means nothing")
    if len(values) > 1:
        if member is not None:
            raise ProgrammingError("TENSOR names one array, and there are several value columns")
        if len(set(values)) < len(values):
            raise DataError("Two value columns have the same name", hint="Rename one with AS.")
        if suffix == ".npy":
            raise DataError(
                "Several value columns need a file that holds several arrays",
                hint="An .npz, .safetensors, .arrow, .parquet or .zarr file does.",
            )
    names = tuple(values) if len(values) > 1 else (member or statement.name or "val",)
    columns = export.columns(result, names, member is not None or len(values) > 1, ctx.tick)
    if ctx.cluster is not None and files.in_parts(suffix) and len(names) == 1:
        from einsql.session.statements.dml_on_ranks import written  # imports ranks' transport

        if suffix == files.suffix_of(path) and written(ctx, result, path, names[0]):
            return result.schema.size
    files.write_arrays(path, export.shape(result), columns, suffix)
    return result.schema.size


def _matrix(ctx: Context, result: Result, path: str) -> int:
    """Writes a Matrix Market file, in array format if every key is present, else as coordinates.

    Coordinates are the stored elements if all other ones are 0.
    """
    from einsql.storage.files import matrix_market  # importing pyarrow takes 60 ms

    values = [c for c in result.columns if c.field is not None]
    if len(values) != 1:
        raise DataError(f"A Matrix Market file holds one value column, not {len(values)}")
    keys = [c for c in result.columns if c.key is not None]
    starts = {k.name: k.lo for k in result.schema.keys}
    _refuse_offset({c.name: starts[c.key or ""] for c in keys}, "SELECT {key} - {lo} AS {key}, …")
    (value,) = values
    result = replace(result, fields=without_zeros(result.fields))
    every = not result.hidden and result.dense(value)
    ordered = export.matrix(result)
    listed = None if every else len(result)
    batches = export.columnwise(ordered, ctx.tick) if every else export.batches(ordered, ctx.tick)
    return matrix_market.write_rows(path, value.dtype, export.shape(result), listed, batches)


# ---- COPY FROM


def _copy_in(ctx: Context, statement: Copy, member: str | None, form: files.Form) -> int:
    tensor = ctx.store.writable(statement.name)
    schema = tensor.relation.schema
    if not files.may_hold_rows(form.suffix or files.suffix_of(statement.path)):
        _refuse_shifted(schema)
    source = files.open_data(statement.path, member, form, ctx.memory)
    if not isinstance(source, files.FileTensor):
        filled, count = inserted(ctx, tensor, source, statement.path, member)
        refuse_violations(filled)
        ctx.store.put(filled)
        return count
    values = schema.values
    if len(values) != 1:
        raise DataError(
            f"COPY FROM an array needs one value column; {tensor.name} has {len(values)}",
            hint="A .csv or .parquet file of rows has several.",
        )
    _refuse_shifted(schema)
    if source.shape != schema.shape:
        raise DataError(
            f"'{statement.path}' has the shape {source.shape}",
            hint=f"{tensor.name} has {schema.shape}.",
        )
    if source.dtype is not values[0].dtype:
        raise DataError(
            f"'{statement.path}' holds {source.dtype.numpy_name}, but {values[0].name} is "
            f"{values[0].dtype.value}",
            hint="INSERT INTO … SELECT …, CAST(val AS …) FROM the file converts.",
        )
    if tensor.default is None and rows(tensor.relation.fields, schema):
        raise IntegrityError(
            f"{tensor.name} has rows already", hint="DELETE them, or CREATE OR REPLACE TENSOR."
        )
    if ctx.cluster is not None:
        from einsql.session.statements.dml_on_ranks import loaded  # as above

        new = loaded(ctx, tensor, source)
    else:
        with ctx.memory.lending():
            kept = source.read([slice(None)] * len(source.shape), ctx.tick)
        if tensor.relation.fields.is_sparse:
            new = sparse_rows.with_array(tensor, kept)
        else:
            new = changed(tensor, {values[0].name: kept}, None)
    refuse_violations(new)
    ctx.store.put(new)
    return schema.size


def _refuse_shifted(schema: Schema) -> None:
    starts = {k.name: k.lo for k in schema.keys}
    _refuse_offset(starts, "INSERT INTO … SELECT {key} + {lo}, … FROM the file shifts it.")


def _refuse_offset(starts: Mapping[str, int], hint: str) -> None:
    """Refuses keys with other lower bounds than 0, where arrays in files start."""
    for key, lo in starts.items():
        if lo != 0:
            raise DataError(
                f"The key {key} starts at {lo}, but a file's keys start at 0",
                hint=hint.format(key=key, lo=lo),
            )
