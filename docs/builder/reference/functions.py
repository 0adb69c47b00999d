"""The page of functions."""

from __future__ import annotations

from collections.abc import Iterable

import einsql
from docs.builder.reference.tables import NOTICE, code, table
from docs.builder.show import cell
from einsql.core.schema import DType
from einsql.core.typing_rules import Typing
from einsql.ir.functions.derivatives import still
from einsql.ir.functions.functions import INTERNAL, SCALARS, Function
from einsql.ir.functions.reductions import REDUCTIONS, Reduction
from einsql.sql.functions import descriptions, tile_functions
from einsql.sql.functions.descriptions import Description

_NUMBERS = (DType.INTEGER, DType.FLOAT, DType.DOUBLE)
_HEAD = """# Functions

{notice}
Functions have DuckDB's names and results, unless their row says "not in DuckDB". [The SQL
language](sql.md#select) describes how they are used, [semantics](semantics.md) what they return of
NULL, NaN and numbers out of range.
`SET fallback = on`, the default, adds all other functions of DuckDB. You can add [functions and
aggregates of your own](../how-to/own-functions.md). Every example was run when the page was
written; floats are shown to six decimal places.

## Operators

{operators}
## Scalar functions

Arguments of several types are cast to the widest one, HALF and BFLOAT16 to FLOAT. "That of x" is
this type.

{scalars}
## Aggregates

Each takes `DISTINCT` where it changes nothing or is listed in [SQL](sql.md#select), `FILTER
(WHERE …)` and `OVER (…)`. ⊕ is the scalar function that merges two partial results. Aggregates
without it are composed of several, or read all values of a group at once. The examples are over
the values 3, 1, 2, 2 with the keys i = 0, 1, 2, 3.

{aggregates}
## Functions of FROM

Relations are written after FROM. In the examples `x` is a tensor with keys t and d. `softmax`,
`log_softmax`, `layer_norm`, `rms_norm` and `attention` are macros, which a macro of yours of the
same name replaces.

{tables}
## Functions of tiles

They take arrays, the values of a [relation of tiles](../explanation/tra.md#in-sql).
`tensor_f(a, b)` applies the scalar function f element by element:

{pointwise}

`tensor_f(tile)` merges the arrays of a group element by element with an aggregate: {merged}.
`tensor_einsum(subscripts, a, …)` is an Einstein sum, `tensor_transpose(a)` reverses the axes,
`tensor_diag(a)` takes a diagonal, `tensor_stack(tile, key, dimension)` concatenates the arrays of a
group in the order of a key.

## Laws

The optimizer asks functions for their laws. A name in the algebra is also a name for `combine` of
[EINSUM](sql.md#einsum). ⊗ combines the values of joined rows, ⊕ merges those of a group. If ⊗
distributes over ⊕, then x ⊗ (a ⊕ b) = (x ⊗ a) ⊕ (x ⊗ b), and a sum can be computed before a
product. A function is *monotone* if it increases or decreases in each argument, and is rounded
correctly. The optimizer uses the laws that this table declares.

{laws}
Scalar functions without a row have none of these laws declared.

[GRADIENT](gradient.md) has a derivative for every scalar function. It is 0 for those with steps:
{steps}.

### Reductions

Aggregates are computed by these reductions, which merge partial results of sites and threads.
Those without ⊕ keep pairs, or read all values of a group at once.

{reductions}"""


def page() -> str:
    """The text of functions.md."""
    con = einsql.connect(config={"fallback": "off", "jit": "never"})
    con.execute(
        "CREATE TENSOR v (i DIM(4), val DOUBLE);"
        "INSERT INTO v VALUES (0, 3), (1, 1), (2, 2), (3, 2);"
        "CREATE TENSOR x (t DIM(2), d DIM(2), val DOUBLE);"
        "INSERT INTO x VALUES (0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)"
    )
    merged = ", ".join(code(tile_functions.PREFIX + n) for n in tile_functions.AGGREGATES)
    return _HEAD.format(
        notice=NOTICE,
        operators=_called(con, "operator", descriptions.OPERATORS),
        scalars=_called(con, "function", descriptions.SCALARS),
        aggregates=_aggregates(con),
        tables=_tables(con),
        pointwise=", ".join(code(n) for n in tile_functions.POINTWISE) + ".",
        merged=merged,
        laws=_laws(),
        steps=_codes(n for n, f in SCALARS.items() if n not in INTERNAL and f.derivative is still),
        reductions=_reductions(),
    )


def _called(con: einsql.Connection, kind: str, listed: Iterable[Description]) -> str:
    """A table of functions of expressions with results of their examples."""
    rows = [
        (code(d.call), d.meaning, _types(d), _result(con, d, f"SELECT {d.example} AS v"))
        for d in listed
    ]
    return table([kind, "result", "its type", "example"], rows)


def _aggregates(con: einsql.Connection) -> str:
    rows = [
        (
            code(d.call),
            d.meaning,
            _merged(d.algebra),
            _result(con, d, f"SELECT {d.example} AS v FROM v"),
        )
        for d in descriptions.AGGREGATES
    ]
    return table(["aggregate", "result", "⊕", "example"], rows)


def _merged(reduction: str) -> str:
    """The scalar function by which an aggregate of the algebra merges two values."""
    return code(REDUCTIONS[reduction].monoid or "") if reduction else ""


def _tables(con: einsql.Connection) -> str:
    rows = []
    for d in descriptions.TABLES:
        con.execute(f"SELECT * FROM {d.example}").fetchall()
        rows.append((code(d.call), d.meaning, code(f"FROM {d.example}")))
    return table(["function", "relation", "example"], rows)


def _result(con: einsql.Connection, d: Description, sql: str) -> str:
    """An example and its value."""
    (value,) = con.execute(sql).fetchone() or (None,)
    if isinstance(value, float):
        value = round(value, 6)  # the last digits depend on the processor
    return f"{code(d.example)} is {code(cell(value))}"


def _types(d: Description) -> str:
    """The types of results for arguments of three types."""
    if not d.algebra:
        return d.type
    function = SCALARS[d.algebra]
    typings = [_typing(function, dtype) for dtype in _NUMBERS]
    if not any(typings):
        logic = function.types((DType.BOOLEAN,) * function.arity, True)
        return "" if logic is None else logic.result.value
    results = [None if t is None else t.result for t in typings]
    if tuple(results) == _NUMBERS:
        return "that of x"
    if results == [DType.DOUBLE, DType.FLOAT, DType.DOUBLE]:
        return "FLOAT of FLOAT, else DOUBLE"
    if results[1:] == [None, None]:
        return "that of x; integers only"
    assert len(set(results)) == 1, d.call
    return str(results[0].value) if results[0] else ""


def _typing(function: Function, dtype: DType) -> Typing | None:
    condition = (DType.BOOLEAN,) if function.name == "if" else ()
    return function.types((*condition, *(dtype,) * (function.arity - len(condition))), True)


# ---- laws


def _laws() -> str:
    rows = []
    for name, f in SCALARS.items():
        if name in INTERNAL:
            continue
        laws = [
            law
            for law, holds in (
                ("commutative", f.commutative),
                ("associative", f.associative),
                ("monotone", f.monotone),
            )
            if holds
        ]
        laws += [f"{what} {_constant(e)}" for what, e in (
            ("identity", f.identity), ("annihilator", f.annihilator)
        ) if e is not None]  # fmt: skip
        over = [r.name for r in REDUCTIONS.values() if name in r.over]
        merges = [r.name for r in REDUCTIONS.values() if r.monoid == name]
        if laws or over or merges:
            rows.append((code(name), ", ".join(laws), _codes(over), _codes(merges)))
    return table(["in the algebra", "laws", "as ⊗ distributes over", "is the ⊕ of"], rows)


def _constant(value: object) -> str:
    return str(value).upper() if isinstance(value, bool) else str(value)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def _reductions() -> str:
    rows = [
        (
            code(r.name),
            code(r.monoid or ""),
            cell(r.identity(DType.DOUBLE)) if r.monoid else "",
            "yes" if r.idempotent else "",
            _codes(sorted(r.over)),
            _adjoint(r),
        )
        for r in REDUCTIONS.values()
        if not r.fields  # the states of a user's aggregates have some
    ]
    return table(
        ["reduction", "⊕", "identity of DOUBLE", "x ⊕ x = x", "⊗ that distribute", "derivative"],
        rows,
    )


def _adjoint(r: Reduction) -> str:
    return f"none: {r.derivative}" if isinstance(r.derivative, str) else "yes"
