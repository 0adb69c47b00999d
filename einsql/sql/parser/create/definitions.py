"""Reads CREATE and DROP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace_field

from sqlglot import TokenType, exp

from einsql.core.schema import DType
from einsql.core.units import with_article
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.sql.parser.create.aggregate_definitions import AggregateReader
from einsql.sql.parser.create.parameter_lists import TYPE_NAMES
from einsql.sql.parser.macro_checks import check_parameters, is_function
from einsql.sql.parser.syntax import (
    CheckClause,
    ColumnDef,
    CreateMacro,
    CreateTensor,
    CreateView,
    Drop,
    KeyCut,
    MeshAxis,
    Statement,
)
from einsql.sql.parser.tokens import did_you_mean

_KINDS = ("TENSOR", "VIEW", "MACRO", "AGGREGATE", "TABLE", "SCHEMA", "SEQUENCE", "INDEX", "TYPE")
"""Kinds of objects that CREATE and DROP accept, DuckDB's included."""


def _check_axes(cuts: Sequence[KeyCut], others: Sequence[MeshAxis]) -> None:
    """Refuses numbers of parts beside mesh axes, and a mesh axis that is named twice.

    Raises:
        ProgrammingError: The clauses contradict each other.
    """
    axes = [*(a for cut in cuts for a in cut.axes), *others]
    if axes and any(cut.parts is not None for cut in cuts):
        raise ProgrammingError(
            "A tensor is cut into numbers of parts or over axes of the mesh, not both",
            hint="PARTITION BY (i data, j model) names the mesh axes of each key.",
            position=axes[0].at,
        )
    seen = set[str]()
    for axis in axes:
        if axis.name in seen:
            raise ProgrammingError(
                f'The mesh axis "{axis.name}" is named twice',
                hint="A mesh axis shards one key, or has copies, or partial sums.",
                position=axis.at,
            )
        seen.add(axis.name)


class DefinitionReader(AggregateReader):
    """Reads statements that create and drop tensors, views and macros."""

    def create(self) -> Statement:
        """CREATE [OR REPLACE] [TEMP] TENSOR | VIEW | MACRO | FUNCTION | AGGREGATE."""
        self.take("CREATE")
        replace = self.take("OR", "REPLACE")
        temporary = self.take("TEMP") or self.take("TEMPORARY")
        if self.take("TENSOR"):
            return replace_field(self.create_tensor(replace), temporary=temporary)
        if self.take("VIEW"):
            return replace_field(self.create_view(replace), temporary=temporary)
        if self.take("MACRO") or self.take("FUNCTION"):
            return replace_field(self.create_macro(replace), temporary=temporary)
        if self.take("AGGREGATE"):
            return replace_field(self.create_aggregate(replace), temporary=temporary)
        raise NotSupportedError(
            f"CREATE {self.word()} is outside the tensor fragment",
            hint=f"{did_you_mean(self.word(), _KINDS)}CREATE works for {', '.join(_KINDS[:4])}.",
            position=self.position(),
        )

    def create_tensor(self, replace: bool) -> CreateTensor:
        """Name (columns) [clauses], or name [clauses] AS query, with the clauses in any order."""
        if_not_exists = self.take("IF", "NOT", "EXISTS")
        if replace and if_not_exists:
            raise self.error("OR REPLACE and IF NOT EXISTS exclude each other")
        name = self.name("a tensor name")
        columns, checks = self.columns() if self.take("(") else ((), ())
        partition: tuple[KeyCut, ...] | None = None
        replicate: tuple[MeshAxis, ...] = ()
        partial: tuple[MeshAxis, ...] = ()
        default: exp.Expr | None = None
        storage: str | None = None
        if self.word() == "PARTITION":
            raise self.error("Expected PARTITION BY")
        read = set[str]()
        while self.word() in ("PARTITION BY", "REPLICATE", "PARTIAL", "DEFAULT", "STORAGE"):
            if self.word() in read:
                raise self.error("A clause is given twice")
            read.add(self.word())
            if self.take("PARTITION BY"):
                partition = self.partition()
            elif self.take("REPLICATE"):
                replicate = self.mesh_axes()
            elif self.take("PARTIAL"):
                self.expect("(", "after PARTIAL")
                if not self.take("SUM"):
                    hint = "Only sums are kept; without the clause the value is stored complete."
                    raise self.error("Expected SUM as the reduction of PARTIAL", hint)
                self.expect(")", "after SUM")
                partial = self.mesh_axes()
            elif self.take("DEFAULT"):
                default = self.default()
            elif self.take("STORAGE"):
                storage = self.storage()
        _check_axes(partition or (), (*replicate, *partial))
        statement = CreateTensor(
            name,
            replace,
            if_not_exists,
            columns=columns,
            checks=checks,
            partition=partition,
            replicate=replicate,
            partial=partial,
            default=default,
            storage=storage,
        )
        if self.take("AS"):
            if default is not None and not columns:
                raise self.error("A DEFAULT needs the tensor's columns")
            start = self.position()
            query, refusal = self.query_or_text()
            return replace_field(
                statement, query=query, text=self.sql, start=start, refusal=refusal
            )
        if not columns:
            raise self.error("Expected the tensor's columns or AS SELECT")
        self.end()
        return statement

    def columns(self) -> tuple[tuple[ColumnDef, ...], tuple[CheckClause, ...]]:
        """Consumes `column [CHECK (…)], CHECK (…), …)`: the columns and the conditions."""
        columns = list[ColumnDef]()
        checks = list[CheckClause]()
        while True:
            if not self.is_check():
                columns.append(self.column())
            while self.is_check():
                checks.append(self.check())
            if not self.take(","):
                break
        self.expect(")", "after the columns")
        return tuple(columns), tuple(checks)

    def is_check(self) -> bool:
        """Whether a constraint comes next; a column may be named CHECK or CONSTRAINT, too."""
        ahead = 2 if self.word() == "CONSTRAINT" else 0
        return self.word(ahead) == "CHECK" and self.word(ahead + 1) == "("

    def check(self) -> CheckClause:
        """[CONSTRAINT name] CHECK (condition)."""
        at = self.position()
        if self.take("CONSTRAINT"):
            self.name("the name of the constraint")
        self.take("CHECK", "(")
        start, end = self.parenthesised()
        condition: exp.Expr = self.tree(start, end, "SELECT ").expressions[0]
        self.refuse_parameters(condition, start)
        return CheckClause(condition, at)

    def column(self) -> ColumnDef:
        """Name DIM(n), or name type."""
        name = self.name("a column name")
        if self.take("DIM"):
            self.expect("(", "after DIM")
            extent = self.integer("the bound of the key, a whole number")
            self.expect(")", "after the bound")
            return ColumnDef(name, extent, None)
        position = self.position()
        word = self.name("DIM(n) or a type").upper()
        dtype = TYPE_NAMES.get(word)
        if dtype is None:
            raise NotSupportedError(
                f"Tensors have no type {word}",
                hint=f"Keys are DIM(n); values are {', '.join(t.value for t in DType)}.",
                position=position,
            )
        if self.word() in ("DIM", "PRIMARY", "PRIMARY KEY"):
            raise self.error(f"The key {name} has a type", f"A key is written {name} DIM(n).")
        return ColumnDef(name, None, dtype)

    def partition(self) -> tuple[KeyCut, ...]:
        """(key n, key n, …) or (key axis …, …); () places a copy at every site."""
        cuts: dict[str, KeyCut] = {}
        try:
            self.expect("(", "after PARTITION BY")
            while not self.take(")"):
                if cuts:
                    self.expect(",", "or )")
                position = self.position()
                key = self.name("a key")
                if key.lower() in cuts:
                    raise ProgrammingError(f"{key} is partitioned twice", position=position)
                cuts[key.lower()] = self.key_cut(key)
        except ProgrammingError as error:
            error.hint = (
                "PARTITION BY (i 4, j 2) cuts i into 4 parts and j into 2; (i data, j model) cuts "
                "them along axes of the mesh; () is a copy at every site."
            )
            raise
        return tuple(cuts.values())

    def key_cut(self, key: str) -> KeyCut:
        """A number of parts, or one or more mesh axes."""
        if not self.ended and self.tokens[self.at].token_type is TokenType.NUMBER:
            return KeyCut(key, self.integer("a number of parts", least=1))
        axes = [self.mesh_axis("a number of parts, or an axis of the mesh")]
        while self.word() not in (",", ")"):
            axes.append(self.mesh_axis("an axis of the mesh, a comma or )"))
        return KeyCut(key, None, tuple(axes))

    def mesh_axis(self, what: str) -> MeshAxis:
        """The name of an axis of the mesh."""
        at = self.position()
        return MeshAxis(self.name(what).lower(), at)

    def mesh_axes(self) -> tuple[MeshAxis, ...]:
        """OVER (axis, …)."""
        self.expect("OVER", "before the axes of the mesh")
        self.expect("(", "after OVER")
        axes = [self.mesh_axis("an axis of the mesh")]
        while self.take(","):
            axes.append(self.mesh_axis("an axis of the mesh"))
        self.expect(")", "after the axes")
        return tuple(axes)

    def storage(self) -> str:
        """SPARSE or DENSE."""
        for form in ("SPARSE", "DENSE"):
            if self.take(form):
                return form.lower()
        raise self.error("Expected SPARSE or DENSE after STORAGE")

    def default(self) -> exp.Expr:
        """A number with an optional sign, TRUE or FALSE, or a text as a number, 'nan'::DOUBLE."""
        start = self.position()
        if not self.ended and self.tokens[self.at].token_type is TokenType.STRING:
            self.at += 1
            self.expect("::", "after the text of the default value, as in 'nan'::DOUBLE")
            self.name("the type of the default value")
            end = self.tokens[self.at - 1].end + 1
            text: exp.Expr = self.tree(start, end, "SELECT ").expressions[0]
            return text
        signed = self.take("-")
        is_number = not self.ended and self.tokens[self.at].token_type is TokenType.NUMBER
        if not is_number and (signed or self.word() not in ("TRUE", "FALSE", "NULL")):
            raise self.error("Expected the default value, a number or a boolean")
        self.at += 1
        end = self.tokens[self.at - 1].end + 1
        value: exp.Expr = self.tree(start, end, "SELECT ").expressions[0]
        return value

    def create_view(self, replace: bool) -> CreateView:
        """Name [(columns)] AS query."""
        name = self.name("a view name")
        columns = self.names("a column name") if self.take("(") else []
        self.expect("AS", "after the view's name")
        start = self.position()
        query, refusal = self.query_or_text()
        if query is None:
            return CreateView(name, replace, None, self.sql, start, refusal)
        self.refuse_parameters(query, start)
        if columns:
            names = [exp.to_identifier(c, quoted=True) for c in columns]
            alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True), columns=names)
            query = exp.select("*").from_(exp.Subquery(this=query, alias=alias), copy=False)
        return CreateView(name, replace, query, self.sql, start)

    def create_macro(self, replace: bool) -> CreateMacro:
        """name(parameters) AS [TABLE] body."""
        position = self.position()
        name = self.name("a macro name")
        self.expect("(", "after the macro's name")
        parameters, types, defaults = self.parameters()
        self.expect("AS", "after the parameters")
        is_table = self.take("TABLE")
        if is_function(name, len(parameters), is_table):
            raise ProgrammingError(
                f"{name} is a function of einsql or of SQL, so a macro would never be called",
                hint="Choose another name.",
                position=position,
            )
        start = self.position()
        body = self.query() if is_table else self.macro_body(parameters)
        self.refuse_parameters(body, start)
        return CreateMacro(
            name, replace, parameters, body, is_table, self.sql, types=types, defaults=defaults
        )

    def macro_body(self, parameters: tuple[str, ...]) -> exp.Expr:
        """The expression of a scalar macro, which may read its parameters only."""
        start = self.position()
        if self.ended:
            raise self.error("Expected the macro's body")
        self.at = len(self.tokens)
        tree = self.tree(start, prefix="SELECT ")
        only_items = all(arg == "expressions" for arg, value in tree.args.items() if value)
        items = tree.expressions
        if not only_items or len(items) != 1 or isinstance(items[0], exp.Alias | exp.Star):
            raise ProgrammingError(
                "A scalar macro's body is one expression",
                hint="AS TABLE SELECT … makes a table macro.",
                position=start,
            )
        body: exp.Expr = items[0]
        check_parameters(body, parameters)
        return body

    def drop(self) -> Drop:
        """DROP TENSOR | VIEW | MACRO | AGGREGATE [IF EXISTS] name."""
        self.take("DROP")
        written = self.word()
        if written not in ("TENSOR", "VIEW", "MACRO", "FUNCTION", "AGGREGATE"):
            known = "DROP knows TENSOR, VIEW, MACRO, FUNCTION and AGGREGATE"
            raise self.error(known, did_you_mean(written, _KINDS))
        self.at += 1
        # Macros, functions and aggregates share their names.
        kind = "MACRO" if written in ("FUNCTION", "AGGREGATE") else written
        if_exists = self.take("IF", "EXISTS")
        name = self.name(f"{with_article(written.lower())} name")
        if self.word() == ",":
            raise self.error("DROP takes one name at a time")
        if self.word() in ("CASCADE", "RESTRICT"):
            raise NotSupportedError(
                f"DROP … {self.word()} is outside the tensor fragment",
                hint="Objects that depend on the name stay, and raise an error when they are used.",
                position=self.position(),
            )
        self.end()
        return Drop(kind.lower(), name, if_exists, written.lower())
