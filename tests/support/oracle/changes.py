"""Databases whose tensors are made by statements, so that they lie where einsql puts them."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.support.oracle.choices import Choices
from tests.support.oracle.data import Database, Tensor

OURS = ((r"\bTENSOR\b", "TABLE"), (r"DIM\(\d+\)", "BIGINT"), (r"\b(HALF|BFLOAT16)\b", "FLOAT"),
        (r"PARTITION BY \([^)]*\) ?", ""), (r"STORAGE SPARSE ?", ""))  # fmt: skip
"""What only einsql has, and what stands for it in DuckDB."""


def for_duckdb(sql: str) -> str:
    """A statement that makes or changes a tensor, as one about a table."""
    for ours, theirs in OURS:
        sql = re.sub(ours, theirs, sql)
    return sql


def stored(db: Database, c: Choices, ranks: int) -> Database:
    """The database with its arrays under other names, and tensors stored from them.

    Each tensor is created, filled, emptied and filled again in one of several ways; a few
    lose elements for good. What is derived from them is derived after that. How work is cut
    is part of the database too, for the cheapest cut mostly moves nothing.
    """
    few = all(len(t.dims) < 3 for t in db.tensors)  # `equal` makes 2**n cells of n labels
    strategy = c.weighted([(4, "eindecomp"), (4, "equal" if few else "paper"), (2, "paper")])
    sites = ranks * c.weighted([(4, 1), (1, 2)])
    settings = [f"SET sites = {sites}", f"SET strategy = '{strategy}'"]
    arrays = [replace(t, name=f"s_{t.name}") for t in db.tensors]
    loads = [s for t in db.tensors for s in _loads(t, c)]
    return replace(db, tensors=arrays, statements=[*settings, *loads, *db.statements])


def _loads(t: Tensor, c: Choices) -> list[str]:
    """Statements that store an array as the tensor of its name."""
    keys = ", ".join(t.dims)
    columns = ", ".join([*t.dims, "val"])
    source = f"SELECT {columns} FROM s_{t.name}"
    cut = _partition(t, c) + ("STORAGE SPARSE " if len(t.dims) == 2 and c.chance(30) else "")
    create = f"CREATE TENSOR {t.name} {cut}AS {source}"
    if not t.dims or not t.array.size:
        return [create]
    some = c.pick([f"{t.dims[0]} % 2 = 0", f"{t.dims[-1]} > 0", f"{t.dims[0]} = {t.dims[-1]}"])
    dims = ", ".join(f"{k} DIM({n})" for k, n in zip(t.dims, t.array.shape, strict=True))
    declare = f"CREATE TENSOR {t.name} ({dims}, val {t.dtype}) {cut}".rstrip()
    same = " AND ".join(f"{t.name}.{k} = s.{k}" for k in t.dims)
    way = c.below(7)
    if way == 1:
        return [declare, f"INSERT INTO {t.name} {source}"]
    if way == 2:
        return [declare, *(f"INSERT INTO {t.name} {source} WHERE {w}"
                           for w in (some, f"NOT ({some})"))]  # fmt: skip
    if way == 3:
        return [create, f"DELETE FROM {t.name} WHERE {some}",
                f"INSERT INTO {t.name} {source} WHERE {some}"]  # fmt: skip
    if way == 4:
        wrong = f"SELECT {keys}, val = val AS val" if t.dtype == "BOOLEAN" else (
            f"SELECT {keys}, CAST(1 AS {t.dtype}) AS val")  # fmt: skip
        return [f"CREATE TENSOR {t.name} {cut}AS {wrong} FROM s_{t.name}",
                f"UPDATE {t.name} SET val = s.val FROM s_{t.name} AS s WHERE {same}"]  # fmt: skip
    if way == 5:
        return [create, f"DELETE FROM {t.name} WHERE {some}"]
    if way == 6:
        return [declare, f"INSERT INTO {t.name} {source} WHERE {some}"]
    return [create]


def _partition(t: Tensor, c: Choices) -> str:
    """Mostly none; else where the tensor lies, as declared."""
    if not c.chance(40):
        return ""
    key = c.below(len(t.dims) + 1)
    if key == len(t.dims):
        return "PARTITION BY () "
    parts = min(1 + c.below(4), t.array.shape[key])
    return f"PARTITION BY ({t.dims[key]} {parts}) " if parts > 0 else ""


def changes(db: Database, c: Choices) -> list[str]:
    """Statements that change a stored tensor of a database that `stored` made.

    What they store obeys the bounds of the values that were there.
    """
    arrays = [t for t in db.tensors if t.dims and t.array.size]
    if not arrays:
        return []
    t = c.pick(arrays)
    name, columns = t.name.removeprefix("s_"), ", ".join([*t.dims, "val"])
    some = c.pick([f"{t.dims[0]} % 2 = {c.below(2)}", f"{t.dims[-1]} > 0"])
    way = c.below(4)
    if way == 1:
        return [
            f"DELETE FROM {name} WHERE {some}",
            f"INSERT INTO {name} SELECT {columns} FROM {t.name} WHERE {some}",
        ]
    if way == 2:
        same = " AND ".join(f"{name}.{k} = s.{k}" for k in t.dims)
        return [f"UPDATE {name} SET val = s.val FROM {t.name} AS s WHERE {same} AND s.{some}"]
    if way == 3 and t.array.dtype.kind == "f":
        return [f"UPDATE {name} SET val = -val WHERE {some}"]
    return [f"DELETE FROM {name} WHERE {some}"]
