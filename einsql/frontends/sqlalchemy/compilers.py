"""SQLAlchemy compilers: statements, DDL, types and quoted names as einsql's SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import exc, schema
from sqlalchemy import types as sqltypes
from sqlalchemy.engine import default
from sqlalchemy.sql import cast, compiler

from einsql.core.quoting import RESERVED, literal
from einsql.frontends.sqlalchemy.types import DIM


class Names(compiler.IdentifierPreparer):
    """Quotes identifiers if necessary."""

    reserved_words = RESERVED

    def sequence_name(self, column: schema.Column[Any]) -> str:
        """The sequence that numbers the rows of a column, with its schema."""
        table = column.table
        name = self.quote(f"{table.name}_{column.name}_seq")
        effective = self.schema_for_object(table)
        return name if effective is None else f"{self.quote_schema(effective)}.{name}"


def is_tensor(table: Any) -> bool:
    """True if a table is one of einsql's tensors: keys have the type DIM."""
    return any(isinstance(c.type, DIM) for c in table.columns)


def numbers(column: Any) -> bool:
    """True if an implicit sequence numbers the rows in a column."""
    table = column.table
    if table is None or is_tensor(table):
        return False
    if column.identity is not None:
        return True
    if column is not table._autoincrement_column:
        return False
    explicit = column.default is not None and not getattr(column.default, "optional", False)
    return column.server_default is None and not explicit


class Statements(compiler.SQLCompiler):
    """The compiler of queries and changes of data."""

    def visit_sequence(self, sequence: Any, **kw: Any) -> str:
        """The next value of a sequence."""
        return f"nextval({literal(self.preparer.format_sequence(sequence))})"

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """LIMIT and OFFSET, both optional."""
        return self._limits(select, select._limit_clause, **kw)

    def fetch_clause(self, select: Any, *given: Any, **kw: Any) -> str:
        """FETCH FIRST n ROWS ONLY, which is LIMIT."""
        options = select._fetch_clause_options
        if options["percent"] or options["with_ties"]:
            raise exc.CompileError("DuckDB has no FETCH … PERCENT and WITH TIES")
        return self._limits(select, select._fetch_clause, **kw)

    def _limits(self, select: Any, rows: Any, **kw: Any) -> str:
        text = ""
        if rows is not None:
            text += "\n LIMIT " + self.process(rows, **kw)
        if select._offset_clause is not None:
            text += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return text

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        """Empty: a transaction reads its snapshot, and the first commit wins."""
        return ""

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """A query without rows."""
        columns = ", ".join(
            f"CAST(NULL AS {self.dialect.type_compiler_instance.process(t)})"
            if not isinstance(t, sqltypes.NullType)
            else "NULL"
            for t in element_types or [sqltypes.INTEGER()]
        )
        return f"SELECT {columns} WHERE 1 != 1"

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """XOR is a function; ^ is a power."""
        return f"xor({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """A search of a pattern in a text."""
        return self._regexp("regexp_matches", binary, binary.modifiers.get("flags"), **kw)

    def _regexp(self, function: str, binary: Any, flags: str | None, **kw: Any) -> str:
        args = [self.process(part, **kw) for part in (binary.left, binary.right)]
        if flags is not None:
            args.append(self.render_literal_value(flags, sqltypes.STRINGTYPE))
        return f"{function}({', '.join(args)})"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """The negation of a pattern search."""
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **kw)}"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Every match replaced, unless flags say otherwise."""
        return self._regexp("regexp_replace", binary, binary.modifiers.get("flags") or "g", **kw)

    def visit_aggregate_strings_func(
        self, fn: Any, *, use_function_name: Any = None, **kw: Any
    ) -> str:
        """The concatenation of texts."""
        visit: Any = super().visit_aggregate_strings_func
        return str(visit(fn, use_function_name="string_agg", **kw))

    # ---- JSON

    def visit_json_getitem_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """An element of a JSON value, as JSON or as the type that was asked for."""
        function = "json_extract"
        if binary.type._type_affinity is not sqltypes.JSON:
            if not kw.pop("_is_cast", False):
                inner: str = self.process(cast(binary, binary.type), _is_cast=True, **kw)
                return inner
            function = "json_extract_string"
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        return f"{function}({left}, {right})"

    visit_json_path_getitem_op_binary = visit_json_getitem_op_binary

    # ---- changes of several tables

    def update_from_clause(
        self, update_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        """UPDATE … FROM."""
        return "FROM " + self._tables(extra_froms, from_hints, **kw)

    def _tables(self, froms: Any, hints: Any, **kw: Any) -> str:
        kw["asfrom"] = True
        return ", ".join(t._compiler_dispatch(self, fromhints=hints, **kw) for t in froms)

    def delete_extra_from_clause(
        self, delete_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        """DELETE … USING."""
        return "USING " + self._tables(extra_froms, from_hints, **kw)


class Definitions(compiler.DDLCompiler):
    """The compiler of CREATE and DROP."""

    preparer: Names

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        """CREATE TABLE after the sequence that numbers its rows; CREATE TENSOR."""
        table = create.element
        visit: Any = super().visit_create_table
        text = str(visit(create, **kw))
        if is_tensor(table):
            return text.replace("TABLE", "TENSOR", 1)
        return "".join(self._sequence(c) for c in table.columns if numbers(c)) + text

    def _sequence(self, column: Any) -> str:
        temporary = any(p in ("TEMP", "TEMPORARY") for p in column.table._prefixes)
        kind = "TEMPORARY SEQUENCE" if temporary else "SEQUENCE"
        text = f"CREATE {kind} IF NOT EXISTS {self.preparer.sequence_name(column)}"
        options = "" if column.identity is None else self.get_identity_options(column.identity)
        return f"{text} {options}".rstrip() + ";\n"

    def visit_drop_table(self, drop: Any, **kw: Any) -> str:
        """DROP TABLE and the sequence that numbered its rows; DROP TENSOR."""
        table = drop.element
        visit: Any = super().visit_drop_table
        text = str(visit(drop, **kw))
        if is_tensor(table):
            return text.replace("TABLE", "TENSOR", 1)
        gone = [
            f";\nDROP SEQUENCE IF EXISTS {self.preparer.sequence_name(c)}"
            for c in table.columns
            if numbers(c)
        ]
        return text + "".join(gone)

    def create_table_constraints(self, table: Any, *args: Any, **kw: Any) -> str:
        """Constraints; a tensor's keys are its constraint."""
        constraints: Any = super().create_table_constraints
        return "" if is_tensor(table) else str(constraints(table, *args, **kw))

    def post_create_table(self, table: Any) -> str:
        """The DEFAULT clause of a tensor, for elements that no statement has set.

        Raises:
            CompileError: The values have different defaults.
        """
        values = [c for c in table.columns if is_tensor(table) and not isinstance(c.type, DIM)]
        defaults = {self.get_column_default_string(c) for c in values}
        if len(defaults) > 1:
            raise exc.CompileError("The values of a tensor have one default")
        default = next(iter(defaults), None)
        return "" if default is None else f" DEFAULT {default}"

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """A column."""
        specification = self.preparer.format_column(column)
        specification += " " + self.dialect.type_compiler_instance.process(
            column.type, type_expression=column
        )
        if is_tensor(column.table):
            return specification
        if numbers(column):
            specification += f" DEFAULT nextval({literal(self.preparer.sequence_name(column))})"
        elif (default := self.get_column_default_string(column)) is not None:
            specification += f" DEFAULT {default}"
        if column.computed is not None:
            specification += " " + self.process(column.computed)
        return specification if column.nullable else specification + " NOT NULL"

    def visit_computed_column(self, generated: Any, **kw: Any) -> str:
        """A generated column, computed when it is read."""
        if generated.persisted is True:
            raise exc.CompileError("DuckDB stores no computed columns; leave persisted out")
        text = self.sql_compiler.process(generated.sqltext, include_table=False, literal_binds=True)
        return f"GENERATED ALWAYS AS ({text}) VIRTUAL"

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> str:
        """A foreign key; DuckDB has no cascades."""
        if constraint.ondelete or constraint.onupdate:
            raise exc.CompileError("DuckDB has no ON DELETE and ON UPDATE of foreign keys")
        visit: Any = super().visit_foreign_key_constraint
        return str(visit(constraint, **kw))

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        """DROP INDEX, in the schema of its table."""
        text = "DROP INDEX " + ("IF EXISTS " if drop.if_exists else "")
        return text + self._prepared_index_name(drop.element, include_schema=True)


def _fixed(name: str) -> Callable[..., str]:
    return lambda self, type_, **kw: name


class Types(compiler.GenericTypeCompiler):
    """Types by DuckDB's names."""

    # SQLAlchemy looks visitors up by these names.
    visit_BLOB = visit_large_binary = visit_BINARY = visit_VARBINARY = _fixed("BLOB")  # noqa: N815 - as above
    visit_CLOB = visit_NCLOB = _fixed("VARCHAR")  # noqa: N815 - as above
    visit_INTERVAL = _fixed("INTERVAL")  # noqa: N815 - as above
    visit_UUID = _fixed("UUID")  # noqa: N815 - as above
    visit_JSON = _fixed("JSON")  # noqa: N815 - as above

    def visit_DIM(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - SQLAlchemy's way of names
        """A tensor's key, where a tensor is created; elsewhere its values are BIGINT."""
        column = kw.get("type_expression")
        if getattr(column, "table", None) is None or kw.get("in_cast"):
            return "BIGINT"
        if type_.low != 0:
            raise exc.CompileError(
                f"Keys of a declared tensor begin with 0, not {type_.low}; CREATE TENSOR … AS "
                "SELECT makes others"
            )
        return f"DIM({type_.high})"

    def visit_NAMED(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """A type by its name."""
        return str(type_.text)

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """FLOAT without a precision is SQL's, of 53 bits; DuckDB's FLOAT has 24."""
        return "FLOAT" if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    visit_DOUBLE = visit_DOUBLE_PRECISION = visit_FLOAT  # noqa: N815 - as above

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """DECIMAL."""
        text: str = super().visit_NUMERIC(type_, **kw)
        return text.replace("NUMERIC", "DECIMAL", 1)

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """Date and time, with a zone or without."""
        return "TIMESTAMP WITH TIME ZONE" if type_.timezone else "TIMESTAMP"

    visit_datetime = visit_DATETIME = visit_TIMESTAMP  # noqa: N815 - as above

    def visit_TIME(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """Time of day, with a zone or without."""
        return "TIME WITH TIME ZONE" if type_.timezone else "TIME"

    def visit_uuid(self, type_: Any, **kw: Any) -> str:
        """A UUID, or its text."""
        return "UUID" if type_.native_uuid else "VARCHAR"

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - as above
        """A list, or lists of lists."""
        return self.process(type_.item_type, **kw) + "[]" * (type_.dimensions or 1)


class Execution(default.DefaultExecutionContext):
    """One run of a statement."""

    def fire_sequence(self, seq: Any, type_: Any) -> Any:
        """The next value of a sequence."""
        name = self.identifier_preparer.format_sequence(seq)
        return self._execute_scalar(f"SELECT nextval({literal(name)})", type_)
