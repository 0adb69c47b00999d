"""Reads CREATE AGGREGATE: the fields of a state, and the expressions that compute it.

The body of the definition is the expression of FINISH over state calls (see `state_call`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from sqlglot import exp

from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import NotSupportedError, ProgrammingError, suggest
from einsql.ir.einsum.states import StateField
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.parser.aggregate_law import EARLIER, LATER, NEW, OLD, AggregateLaw, state_call
from einsql.sql.parser.create.parameter_lists import TYPE_NAMES, ParameterReader
from einsql.sql.parser.macro_checks import check_parameters, is_function
from einsql.sql.parser.positions import position
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.parser.syntax import CreateMacro, Types

_TYPES = (DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE)
"""Types of fields of a state, and of parameters."""
_LONGEST = 64
"""Greatest number of fields of a state, elements of arrays included."""


class AggregateReader(ParameterReader):
    """Reads CREATE AGGREGATE behind its first words."""

    def create_aggregate(self, replace: bool) -> CreateMacro:
        """name(…) STATE (…) LIFT (…) MERGE (…) [RESCALE (…)] FINISH (…) [ORDERED BY …]."""
        at = self.position()
        name = self.name("an aggregate's name")
        self.expect("(", "after the aggregate's name")
        names, types, defaults = self.parameters()
        if not names:
            raise self.error("An aggregate needs a parameter")
        if is_function(name, len(names), False):
            raise ProgrammingError(
                f"{name} is a function of einsql or of SQL, so the aggregate would never be called",
                hint="Choose another name.",
                position=at,
            )
        self.clause("STATE")
        fields, sizes = self.state()
        lift = self.entries("LIFT", fields, sizes, lambda e: check_parameters(e, names))
        merge = self.entries("MERGE", fields, sizes, lambda e: _check_fields(e, fields, _MERGED))
        rescale: dict[str, exp.Expr] = {}
        if self.word() == "RESCALE":
            for e in self.expressions("RESCALE"):
                tree = _indexed(e, fields)
                rescale[_rescaled(tree, fields)] = tree
        finish = self.expressions("FINISH")
        order = self.order()
        self.end()
        dtypes = _parameter_types(types, at)
        parameters = tuple(zip(names, dtypes, strict=True))
        law = AggregateLaw(name, parameters, fields, lift, merge, rescale, order)
        return CreateMacro(
            name, replace, names, _finish(finish, law), False, self.sql,
            types=types, defaults=defaults, law=law,
        )  # fmt: skip

    def clause(self, word: str) -> None:
        """Consumes the word of a clause and its opening parenthesis."""
        if not self.take(word):
            raise self.error(
                f"Expected {word}",
                "CREATE AGGREGATE name(x) STATE (…) LIFT (…) MERGE (…) FINISH (…) [ORDERED BY key]",
            )
        self.expect("(", f"after {word}")

    def type(self) -> DType:
        """Consumes the name of a type."""
        at = self.position()
        return _type_named(self.name("a type"), "The state", at)

    def order(self) -> tuple[str, ...]:
        """Consumes `ORDERED BY name, …`; empty without."""
        if not self.take("ORDERED"):
            return ()
        self.expect("BY", "after ORDERED")
        names: dict[str, None] = {}
        while True:
            at = self.position()
            name = self.name("a key").lower()
            if name in names:
                raise ProgrammingError(f"{name} is named twice", position=at)
            names[name] = None
            if not self.take(","):
                return tuple(names)

    def state(self) -> tuple[tuple[StateField, ...], tuple[int | None, ...]]:
        """Consumes `field type[n] INIT constant, …)`: the fields, and the size of each array."""
        fields: list[StateField] = []
        sizes: list[int | None] = []
        while not self.take(")"):
            if fields:
                self.expect(",", "or )")
            at = self.position()
            name = self.name("a field").lower()
            if any(f.name.partition("[")[0] == name for f in fields):
                raise ProgrammingError(f"{name} is named twice", position=at)
            dtype, size = self.type(), None
            if self.take("["):
                size = self.integer("the number of elements", least=1)
                self.expect("]", "after the number of elements")
            if not self.take("INIT"):
                raise self.error(
                    "Expected INIT", "INIT is the value of a state without points, as INIT 0."
                )
            start = self.initial(dtype)
            names = [name] if size is None else [f"{name}[{n + 1}]" for n in range(size)]
            fields += [StateField(n, dtype, start) for n in names]
            sizes.append(size)
            if len(fields) > _LONGEST:
                raise ProgrammingError(
                    f"A state has at most {_LONGEST} fields, elements of arrays included",
                    position=at,
                )
        if not fields:
            raise self.error("A state needs a field")
        return tuple(fields), tuple(sizes)

    def initial(self, dtype: DType) -> bool | int | float:
        """Consumes the constant behind INIT."""
        at, sign = self.position(), -1 if self.take("-") else 1
        if self.ended:
            raise self.error("Expected the constant behind INIT")
        word = self.tokens[self.at].text.lower()
        self.at += 1
        try:
            if dtype is DType.BOOLEAN:
                return {"true": True, "false": False}[word]
            if dtype.is_integer:
                integer = sign * int(word)
                if not dtype.range[0] <= integer <= dtype.range[1]:
                    raise ValueError
                return integer
            number = sign * float(word)
            if math.isfinite(number) and abs(number) > float(np.finfo(dtype.carrier).max):
                raise ValueError
        except (KeyError, ValueError):
            raise ProgrammingError(
                f"INIT of type {dtype.value} cannot be {'-' * (sign < 0)}{word}",
                hint="Write a number of this type, '-inf', 'inf', 'nan', TRUE or FALSE.",
                position=at,
            ) from None
        return float(dtype.carrier.type(number)) if math.isfinite(number) else number

    def expressions(self, word: str) -> list[exp.Expr]:
        """Consumes a clause: its word, and expressions in parentheses."""
        self.clause(word)
        start, end = self.parenthesised()
        tree = self.tree(start, end, "SELECT ")
        self.refuse_parameters(tree, start)
        query = tree.find(exp.Query)
        nested = [q for q in tree.find_all(exp.Query) if q is not query]
        if nested or any(k != "expressions" and v for k, v in tree.args.items()):
            raise ProgrammingError(f"{word} has expressions only", position=start)
        items: list[exp.Expr] = tree.expressions
        return items

    def entries(
        self,
        word: str,
        fields: tuple[StateField, ...],
        sizes: tuple[int | None, ...],
        check: Callable[[exp.Expr], None],
    ) -> tuple[exp.Expr, ...]:
        """Consumes a clause with an expression for each field; that of an array is `[…, …]`."""
        at = self.position()
        items = self.expressions(word)
        if len(items) != len(sizes):
            raise ProgrammingError(
                f"{word} has {plural(len(items), 'expression')} for {plural(len(sizes), 'field')}",
                hint="Write one for each field of STATE, in this order.",
                position=at,
            )
        flat: list[exp.Expr] = []
        for entry, size in zip(items, sizes, strict=True):
            if size is None:
                flat.append(entry)
            elif isinstance(entry, exp.Array) and len(entry.expressions) == size:
                flat += entry.expressions
            else:
                raise ProgrammingError(
                    f"{word} of an array of {size} elements is [e1, …, e{size}]",
                    position=position(entry) or at,
                )
        indexed = zip(fields, flat, strict=True)
        trees = tuple(_typed_texts(_indexed(e, fields), f.dtype) for f, e in indexed)
        for tree in trees:
            check(tree)
        return trees


_MERGED = (EARLIER, LATER, "")


def _indexed(tree: exp.Expr, fields: Sequence[StateField]) -> exp.Expr:
    """Replaces elements of arrays, as `a.v[1]`, by columns of that name."""
    arrays = {f.name.partition("[")[0] for f in fields if "[" in f.name}

    def element(node: exp.Expr) -> exp.Expr:
        column = node.this if isinstance(node, exp.Bracket) else None
        if not isinstance(column, exp.Column) or column.name.lower() not in arrays:
            return node
        (index,) = node.expressions if len(node.expressions) == 1 else (None,)
        if not isinstance(index, exp.Literal) or index.is_string:
            raise ProgrammingError(
                "An element of an array is read by a number, as v[1]", position=position(node)
            )
        name = f"{column.name.lower()}[{int(index.name) + 1}]"
        table = column.args.get("table")
        new = exp.Column(this=exp.to_identifier(name, quoted=True), table=table)
        new.meta.update(column.this.meta)
        return new

    return tree.transform(element)


def _with_elements(tree: exp.Expr, fields: Sequence[StateField]) -> exp.Expr:
    """An item of FINISH in which a list of its elements replaces an array, as in `v AS four`."""
    column = tree.unalias()
    name = column.name.lower() if isinstance(column, exp.Column) and not column.table else None
    elements = [f.name for f in fields if f.name.partition("[")[0] == name != f.name]
    if not elements:
        return tree
    columns = [exp.column(exp.to_identifier(e, quoted=True)) for e in elements]
    array = exp.Array(expressions=columns)
    return exp.alias_(array, tree.args["alias"]) if isinstance(tree, exp.Alias) else array


def _check_fields(tree: exp.Expr, fields: Sequence[StateField], tables: Sequence[str]) -> None:
    """Requires that an expression reads fields of known tables only.

    Raises:
        ProgrammingError: A column is no field, or of another table.
    """
    names = [f.name for f in fields]
    for node in tree.find_all(exp.Column):
        if node.table.lower() not in tables:
            shown = f'no table "{node.table}"' if node.table else "no column without a table"
            raise ProgrammingError(
                f"There is {shown} here",
                hint=f"Fields are read as {' or '.join(f'{t}.{names[0]}' for t in tables if t)}.",
                position=position(node),
            )
        if node.name.lower() not in names:
            raise ProgrammingError(
                f'The state has no field "{node.name}"',
                hint=suggest(node.name, names, "fields"),
                position=position(node),
            )


def _rescaled(tree: exp.Expr, fields: Sequence[StateField]) -> str:
    """The field that an expression of RESCALE changes: the only one without a table.

    Raises:
        ProgrammingError: There is none, or several.
    """
    _check_fields(tree, fields, (OLD, NEW, ""))
    own = {c.name.lower() for c in tree.find_all(exp.Column) if not c.table}
    if len(own) != 1:
        raise ProgrammingError(
            "An expression of RESCALE reads one field without a table, the one that it changes",
            hint="Write s * exp(old.m - new.m), where m is a field on which s depends.",
            position=position(tree),
        )
    return own.pop()


def _type_named(word: str, what: str, at: int | None) -> DType:
    """The type of a field or a parameter.

    Raises:
        NotSupportedError: States have no such type.
    """
    dtype = TYPE_NAMES.get(word.upper())
    if dtype not in _TYPES:
        raise NotSupportedError(
            f"{what} of an aggregate has no type {word.upper()}",
            hint=f"The types are {', '.join(t.value for t in _TYPES)}.",
            position=at,
        )
    return dtype


def _parameter_types(types: Types, at: int) -> list[DType | None]:
    return [
        None if t is None else _type_named(as_sql(t), "A parameter", position(t) or at)
        for t in types
    ]


def _typed_texts(tree: exp.Expr, dtype: DType) -> exp.Expr:
    """Casts literals such as '-inf' to the type of a field, as DuckDB casts text beside numbers."""

    def typed(node: exp.Expr) -> exp.Expr:
        is_text = isinstance(node, exp.Literal) and node.is_string
        if not is_text or isinstance(node.parent, exp.Cast) or not _is_value(node.name, dtype):
            return node
        cast = exp.cast(node.copy(), dtype.value, dialect="duckdb")
        cast.meta.update(node.meta)
        return cast

    return tree.transform(typed)


def _is_value(text: str, dtype: DType) -> bool:
    """True if a text is a number, or the name of a truth value for a BOOLEAN."""
    if dtype is DType.BOOLEAN:
        return text.lower() in ("true", "false")
    try:
        float(text)
    except ValueError:
        return False
    return True


def _finish(items: Sequence[exp.Expr], law: AggregateLaw) -> exp.Expr:
    """The body of the definition: the expression of FINISH, or named expressions.

    Raises:
        ProgrammingError: An expression reads anything but fields, or one of several has no name.
    """
    results: list[exp.Expr] = []
    for written in items:
        tree = _indexed(_with_elements(written, law.fields), law.fields)
        _check_fields(tree, law.fields, ("",))
        read = (law.place(c.name) for c in tree.find_all(exp.Column))
        dtypes = [law.fields[place].dtype for place in read if place is not None]
        tree = _typed_texts(tree, dtypes[0] if dtypes else DType.DOUBLE)
        for node in tree.walk():
            if type(node) in AGGREGATES or isinstance(node, exp.Window):
                raise ProgrammingError(
                    "FINISH aggregates nothing: the fields are those of the merged state",
                    position=position(node) or position(written),
                )
        results.append(tree.transform(lambda node: _field_call(node, law)))
    if len(results) == 1 and not isinstance(results[0], exp.Alias):
        return results[0]
    for computed, written in zip(results, items, strict=True):
        if not isinstance(computed, exp.Alias):
            raise ProgrammingError(
                "Each of several results of FINISH needs a name",
                hint="Write FINISH (best AS best, who AS who), and read f(x).best.",
                position=position(written),
            )
    aliases = [r.alias.lower() for r in results]
    if len(set(aliases)) < len(aliases):
        raise ProgrammingError("Two results of FINISH have the same name")
    return exp.Tuple(expressions=results)


def _field_call(node: exp.Expr, law: AggregateLaw) -> exp.Expr:
    if not isinstance(node, exp.Column):
        return node
    place = law.place(node.name)
    assert place is not None  # checked before
    return state_call(law, place)
