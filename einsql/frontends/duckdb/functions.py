"""The functions of tiles in a user's DuckDB: registration, and the dispatch of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from einsql.core import forks
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import InterfaceError, ProgrammingError
from einsql.frontends.duckdb import kernels, table_function
from einsql.frontends.duckdb.kernels import Put
from einsql.frontends.duckdb.results import Tiles
from einsql.frontends.duckdb.tiles import Column, numbers, read, read_lists, reshaped
from einsql.sql.functions.tile_functions import AGGREGATES, FUNCTIONS, PREFIX, suffix

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OWN = ("tensor_of", "tensor_value")
"""Functions that SQL over TILES does not have: from an array, and to a number."""

NAMES = (*FUNCTIONS, *OWN)

_LISTS = (*AGGREGATES, "stack")
"""Functions that take a list of tiles if they have one argument; `stack` has two arguments."""

_registered: WeakKeyDictionary[DuckDBPyConnection, list[str]] = WeakKeyDictionary()
"""The registered functions by connection. DuckDB reports functions that are still registered
at the end of the process."""
_holders: WeakKeyDictionary[DuckDBPyConnection, int] = WeakKeyDictionary()
"""The number of attachments that use the functions of a connection."""


def tile_type(element: DType) -> str:
    """The SQL type of a tile."""
    return f"STRUCT(shape INTEGER[], data {element.value}[])"


# ---- DuckDB's catalog


def register(con: DuckDBPyConnection, element: DType) -> bool:
    """Registers the functions in the database of a connection.

    Returns:
        True if the caller must call `unregister`; False if another connection to the database
        has registered the functions.

    Raises:
        ProgrammingError: The database has other functions with these names, or tiles with
            elements of another type; or a transaction is running.
    """
    there = con.sql(
        "SELECT function_name, function_type, database_name, return_type "
        "FROM duckdb_functions() WHERE starts_with(function_name, 'tensor_')"
    ).fetchall()
    ours = {
        name: kind
        for name, form, where, kind in there
        if form == "scalar" and where == "system" and name in NAMES
    }
    for name, form, where, _ in there:
        if name in NAMES and name not in ours:
            raise ProgrammingError(
                f"The database {where} has a {form} named {name} already",
                hint="Rename it; einsql's functions need their names.",
            )
    if ours:
        kind = str(con.type(tile_type(element)))
        if ours.get("tensor_einsum") != kind:
            raise ProgrammingError(
                f"The database is attached already, with tiles of {ours.get('tensor_einsum')}",
                hint="All connections to a database share its functions.",
            )
        if con in _holders:
            _holders[con] += 1
        return con in _holders
    _check_no_transaction(con)
    from duckdb.func import SPECIAL, PythonUDFType

    registered = _registered.setdefault(con, [])
    for name in NAMES:
        returns = "DOUBLE" if name == "tensor_value" else tile_type(element)
        call = _function(name, element)
        con.create_function(
            name, call, None, returns, type=PythonUDFType.ARROW, null_handling=SPECIAL
        )
        registered.append(name)
    if table_function.is_possible(con):
        table_function.create_functions(con)
        registered.extend(table_function.FUNCTIONS)
    _holders[con] = 1
    return True


def _check_no_transaction(con: DuckDBPyConnection) -> None:
    # Outside of a transaction every statement has its own transaction number. BEGIN would also
    # detect a transaction, but its error would abort that transaction.
    first, second = (con.sql("SELECT txid_current()").fetchall() for _ in range(2))
    if first == second:
        raise InterfaceError(
            "A transaction is running, and ROLLBACK would take einsql's functions away",
            hint="Attach before BEGIN.",
        )


def unregister(con: DuckDBPyConnection) -> None:
    """Removes the functions that a connection registered, unless an attachment uses them."""
    _holders[con] = _holders.get(con, 1) - 1
    if not _holders[con]:
        _take_away(con)


def _take_away(con: DuckDBPyConnection) -> None:
    import duckdb

    _holders.pop(con, None)
    for name in _registered.pop(con, []):
        try:
            con.remove_function(name)
        except duckdb.Error:  # closed, or the functions no longer exist
            return


def unregister_all() -> None:
    """Removes all functions; runs at the end of the process."""
    for con in list(_registered):
        _take_away(con)


def _forget() -> None:
    """Clears the registry in a forked child, which must not use its parent's connections."""
    for con in list(_registered):
        forks.never_destroy(con)
    _registered.clear()
    _holders.clear()


forks.at_fork(_forget)


# ---- calls


def _function(name: str, element: DType) -> Callable[..., pa.Array]:
    if name == "tensor_value":
        return _value
    return partial(_call, suffix(name) or name.removeprefix(PREFIX), element)


def _value(*columns: pa.ChunkedArray) -> pa.Array:
    """tensor_value: the number of a tile without axes."""
    args, rows, total = _there(columns)
    if len(args) != 1:
        raise ProgrammingError(f"tensor_value takes one tile, not {len(args)} arguments")
    values = np.zeros(total)
    if len(rows):
        values[rows] = numbers(args[0])
    missing = np.ones(total, np.bool_)
    missing[rows] = False
    return pa.array(values, mask=missing)


def _call(name: str, element: DType, *columns: pa.ChunkedArray) -> pa.Array:
    """Runs a function over the rows of a chunk; a row with a NULL argument returns NULL."""
    args, rows, total = _there(columns)
    tiles = Tiles(total, element)
    if len(rows):
        _run(name, args, _at(rows, tiles.put) if len(rows) < total else tiles.put)
    return tiles.column()


def _there(columns: Sequence[pa.ChunkedArray]) -> tuple[list[pa.Array], np.ndarray, int]:
    """The arguments without rows that contain NULL, the numbers of their rows, the row count."""
    args = [_whole(g) for g in columns]
    total = len(args[0]) if args else 0
    rows = np.arange(total)
    if any(a.null_count for a in args):
        there = np.logical_and.reduce([np.asarray(a.is_valid()) for a in args])
        rows = np.flatnonzero(there)
        args = [a.filter(pa.array(there)) for a in args]
    return args, rows, total


def _at(own: np.ndarray, put: Put) -> Put:
    """A callback for results whose row numbers are indices into `own`."""
    return lambda rows, arrays, dtype: put(own[rows], arrays, dtype)


def _run(name: str, args: list[pa.Array], put: Put) -> None:
    """Runs a function over one or more rows without NULLs."""
    if name == "of":
        _of(args, put)
    elif name in _LISTS and len(args) == 1 + (name == "stack"):
        lists = read_lists(args[0], f"The argument of {PREFIX}{name}")
        if name == "stack":
            kernels.stacked(lists, _dimension(args[1]), put)
        else:
            kernels.merged(name, lists, put)
    elif name == "stack":
        raise ProgrammingError(
            "tensor_stack takes a list of tiles and a dimension, not "
            f"{plural(len(args), 'argument')}",
            hint="As in tensor_stack(list(tile ORDER BY key), 0).",
        )
    elif name == "einsum":
        _einsum(args, put)
    else:
        kernels.pointwise(name, _columns(PREFIX + name, args), put)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _columns(what: str, args: Iterable[pa.Array]) -> list[Column]:
    return [read(a, f"Argument {n} of {what}") for n, a in enumerate(args, 1)]


def _einsum(args: list[pa.Array], put: Put) -> None:
    """tensor_einsum('ij,jk->ik', a, b [, ⊗ [, ⊕]]); the texts can differ between rows."""
    texts = [n for n, a in enumerate(args) if pa.types.is_string(a.type)]
    last = next((n for n in texts if n), len(args))
    if 0 not in texts:
        raise ProgrammingError(
            "tensor_einsum needs its notation as text first",
            hint="As in tensor_einsum('ij,jk->ik', a, b).",
        )
    if last == 1 or texts[1:] != list(range(last, len(args))) or len(texts) > 3:
        raise ProgrammingError(
            "tensor_einsum takes arrays, then maybe the names of ⊗ and ⊕",
            hint="As in tensor_einsum('ij,jk->ik', a, b, 'add', 'min').",
        )
    columns = _columns("tensor_einsum", args[1:last])
    said = list(zip(*(args[n].to_pylist() for n in texts), strict=True))
    for notation, *words in dict.fromkeys(said):
        rows = np.flatnonzero([s == (notation, *words) for s in said])
        chosen = [
            Column(
                dtype=c.dtype,
                flat=c.flat,
                starts=c.starts[rows],
                form=c.form[rows],
                shapes=c.shapes,
            )
            for c in columns
        ]
        kernels.einsum(notation, tuple(words), chosen, _at(rows, put))


def _of(args: list[pa.Array], put: Put) -> None:
    """tensor_of(x [, shape]): the elements of an array as a tile."""
    if len(args) > 2:
        raise ProgrammingError(
            f"tensor_of takes an array and a shape, not {plural(len(args), 'argument')}"
        )
    column = read(args[0], "Argument 1 of tensor_of")
    if len(args) == 2:
        if not pa.types.is_nested(args[1].type):
            raise ProgrammingError(
                "A shape is a list of extents", hint="As in tensor_of(x, [3, 4])."
            )
        column = reshaped(column, args[1].to_pylist())
    form = np.asarray(column.form)
    for n in np.unique(form):
        rows = np.flatnonzero(form == n)
        put(rows, column.take(rows), column.dtype)


def _dimension(column: pa.Array) -> int:
    dimensions = set(column.to_pylist())
    dimension = dimensions.pop() if dimensions else 0
    if dimensions or not isinstance(dimension, int) or dimension < 0:
        raise ProgrammingError(
            "tensor_stack takes the number of a dimension, counted from 0, the same in all rows"
        )
    return dimension
