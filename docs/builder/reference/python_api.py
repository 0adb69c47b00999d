"""The page of the Python interface."""

from __future__ import annotations

import inspect
import re

import einsql
from docs.builder.reference.tables import NOTICE, code, table

_HEAD = """# Python

{notice}
The interface follows Python's DB-API 2.0 (PEP 249) and has the names of DuckDB's Python API.
`help(name)` shows arguments, results and errors of each entry. [Errors](errors.md) lists the
exceptions, [clients](../how-to/clients.md) shows pandas, polars, notebooks and other tools, and
[functions of your own](../how-to/own-functions.md) shows `create_function` and `create_aggregate`.

## The module

Functions with the name of a method of a connection use `einsql.default_connection()`.

"""
_FUNCTIONS = (
    "connect",
    "default_connection",
    "sql",
    "execute",
    "einsum",
    "from_df",
    "values",
    "read_csv",
    "read_parquet",
    "read_json",
    "attach",
    "trace",
)
_CLASSES = {
    "Connection": "`einsql.connect()` opens it; it is also a context manager, which closes it.",
    "Cursor": "`con.execute()` returns it after the statement has run, and `con.cursor()`.",
    "Relation": "`con.sql()` returns it. The query runs when its rows are fetched.",
    "Attached": "`einsql.attach(con)` returns it: [einsql in your DuckDB](../how-to/duckdb.md).",
}
_INTERNAL = {
    "cached",
    "capturing",
    "check_open",
    "context",
    "duck",
    "fetching",
    "forked",
    "over",
    "result",
    "run",
    "running",
    "shared",
    "store",
}
"""Members that only einsql's own code calls."""


def page() -> str:
    """The text of python.md."""
    functions = table(["function", "meaning"], map(_function, _FUNCTIONS))
    return _HEAD.format(notice=NOTICE) + functions + "".join(map(_section, _CLASSES))


def _function(name: str) -> tuple[str, str]:
    function = getattr(einsql, name)
    return code(f"einsql.{name}{_arguments(function)}"), _summary(function)


def _section(name: str) -> str:
    """The public members of a class, in the order of their definition; inherited ones follow."""
    cls = getattr(einsql, name, None)
    if cls is None:
        from einsql.frontends import duckdb

        cls = getattr(duckdb, name)
    members = {n: getattr(cls, n) for base in cls.__mro__ for n in vars(base)}
    names: dict[tuple[str, str], list[str]] = {}
    for n, member in members.items():
        if _is_public(n, member):
            names.setdefault((_arguments(member), _summary(member)), []).append(n)
    rows = [(_calls(given, each), summary) for (given, summary), each in names.items()]
    return f"\n## {name}\n\n{_CLASSES[name]}\n\n{table(['member', 'meaning'], rows)}"


def _calls(arguments: str, names: list[str]) -> str:
    """The call of a member, and its other names."""
    return ", ".join([code(names[0] + arguments), *map(code, names[1:])])


def _is_public(name: str, member: object) -> bool:
    """True for members for users; the exceptions of a connection are on a page of their own."""
    hidden = name.startswith("_") or name in _INTERNAL or inspect.isclass(member)
    return not hidden and bool(inspect.getdoc(member))


def _arguments(member: object) -> str:
    """The names of a function's arguments with their defaults; nothing for a property."""
    if not callable(member):
        return ""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(member).parameters.values()
        if p.name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters))


def _summary(member: object) -> str:
    """The first sentence of a docstring."""
    paragraph = (inspect.getdoc(member) or "").split("\n\n")[0]
    sentence = re.split(r"(?<=[.]) (?=[A-Z])", " ".join(paragraph.split()))[0]
    return re.sub(r"; see `[A-Z][^`]*`(?=\.)", "", sentence)
