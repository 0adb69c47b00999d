"""Detects the files that a DuckDB statement reads or writes, from its tokens.

Everything that is not listed as harmless counts as a reference to a file: unlisted functions,
string literals in the place of a relation, and names with a dot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from einsql.core.records import dataclass
from einsql.errors import OperationalError
from einsql.storage.duckdb.duckdb_tokens import Token, pairs

OFF = "enable_external_access is off"

READERS = frozenset(
    {
        "glob", "sniff_csv", "read_blob", "read_text", "read_duckdb", "read_csv", "read_csv_auto",
        "read_single_csv_file", "read_json", "read_json_auto", "read_json_objects",
        "read_json_objects_auto", "read_ndjson", "read_ndjson_auto", "read_ndjson_objects",
        "read_single_json_file", "read_parquet", "read_single_parquet_file", "parquet_scan",
        "parquet_metadata", "parquet_file_metadata", "parquet_full_metadata",
        "parquet_kv_metadata", "parquet_schema", "parquet_bloom_probe",
    }
)  # fmt: skip
"""Table functions whose first argument is a path, a pattern or a list of them."""
_HARMLESS = frozenset(
    {
        "range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree",
        "summary", "test_all_types", "test_vector_types", "pg_timezone_names",
        "icu_calendar_names", "checkpoint", "force_checkpoint", "disable_logging",
        "disable_profiling", "truncate_duckdb_logs",
        "python_arrow_scan", "pandas_scan",  # in views of registered objects only
    }
)  # fmt: skip
_HARMLESS_KINDS = ("duckdb_", "pragma_")
"""Prefixes of the names of table functions that show the catalog or the session."""
_OF_TABLES = ("histogram", "histogram_values")
"""DuckDB's table macros that take a table's name as a string; aggregates share their names."""

_HEADS = frozenset(
    {
        "SELECT", "FROM", "WITH", "VALUES", "TABLE", "PIVOT", "UNPIVOT", "DESCRIBE", "DESC",
        "SUMMARIZE", "SHOW", "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "ALTER",
        "DROP", "COMMENT", "EXECUTE", "DEALLOCATE", "BEGIN", "START", "COMMIT", "ROLLBACK",
        "ABORT", "END", "CHECKPOINT", "FORCE", "VACUUM", "ANALYZE", "USE", "DETACH", "CALL",
        "COPY", "ATTACH", "EXPORT", "SET", "RESET", "PRAGMA", "EXPLAIN", "PREPARE",
    }
)  # fmt: skip
"""First words of the statements that may run."""
_QUERIES = frozenset(
    {
        "SELECT", "FROM", "WITH", "VALUES", "TABLE", "PIVOT", "UNPIVOT", "DESCRIBE", "DESC",
        "SUMMARIZE", "SHOW",
    }
)  # fmt: skip
_WITHOUT_USE = (["DROP", "VIEW"], ["DROP", "MACRO"], ["DROP", "FUNCTION"], ["ALTER", "VIEW"])
"""First words of statements that name a definition without using it."""
_NAMING_FILES = ("FILENAME_PATTERN", "FILE_EXTENSION", "HIVE_FILE_PATTERN")
"""Options of COPY TO that set the names of files in a directory."""
_PRAGMAS = frozenset(
    {
        "version", "database_size", "database_list", "show", "show_tables", "show_tables_expanded",
        "show_databases", "table_info", "storage_info", "functions", "collations", "platform",
        "metadata_info", "user_agent", "extension_versions", "enable_progress_bar",
        "disable_progress_bar", "enable_print_progress_bar", "disable_print_progress_bar",
        "enable_profiling", "disable_profiling", "enable_profile", "disable_profile",
        "enable_optimizer", "disable_optimizer", "enable_verification", "disable_verification",
        "verify_parallelism", "disable_verify_parallelism", "force_checkpoint",
        "enable_checkpoint_on_shutdown", "disable_checkpoint_on_shutdown",
    }
)  # fmt: skip
_SETTINGS = frozenset(
    {
        "variable", "time", "names", "timezone", "calendar", "schema", "search_path",
        "default_collation",
        "default_null_order", "null_order", "default_order", "explain_output",
        "enable_profiling", "profiling_coverage", "profiling_mode", "tracked_metrics",
        "enable_progress_bar", "enable_progress_bar_print", "disabled_optimizers",
        "enable_optimizer", "preserve_insertion_order", "integer_division",
        "ieee_floating_point_ops", "error_on_division_by_zero", "preserve_identifier_case",
        "scalar_subquery_error_on_multiple_rows", "order_by_non_integer_literal",
        "regex_match_operator_semantics", "json_geometry_format", "show_behavior",
        "checkpoint_threshold", "wal_autocheckpoint", "operator_memory_limit",
        "streaming_buffer_size", "max_streaming_buffer_size", "prefer_range_joins",
        "delim_join_as_cte", "disable_timestamptz_casts", "arrow_large_buffer_size",
        "arrow_lossless_conversion", "arrow_output_list_view", "arrow_output_version",
        "binary_as_string", "current_transaction_invalidation_policy",
        "default_transaction_invalidation_policy",
    }
)  # fmt: skip
"""Settings other than numbers that SET may change."""
_OPENERS = frozenset(
    {
        "FROM", "JOIN", "VALUES", "AS", "ON", "USING", "SELECT", "WHERE", "AND", "OR", "NOT",
        "UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "LATERAL", "EXISTS", "THEN", "ELSE",
        "WHEN", "CASE", "BY", "TABLE", "HAVING", "QUALIFY", "ANY", "SOME", "RETURNING",
        "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT", "INTO", "UPDATE", "SHOW", "DESC", "COPY",
    }
)  # fmt: skip
"""Words before a parenthesis that are not the name of a function."""
_BEFORE_RELATIONS = frozenset(
    {
        "FROM", "JOIN", "TABLE", "DESCRIBE", "DESC", "SUMMARIZE", "SHOW", "PIVOT", "UNPIVOT",
        "INTO", "UPDATE", "USING", "TRUNCATE", "VACUUM", "ANALYZE",
    }
)  # fmt: skip
_BEFORE_VALUES = frozenset({"SELECT", "WHERE", "HAVING"})
"""Reserved words, which cannot be names of relations."""


@dataclass
class Targets:
    """The references in a statement.

    Attributes:
        paths: Paths and patterns with their offsets.
        names: Lower-case names and strings, which may refer to views, macros and prepared
            statements.
        queries: Strings that the statement runs as queries, with their offsets.
    """

    paths: list[tuple[str, int]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    queries: list[tuple[str, int]] = field(default_factory=list)


def targets(
    tokens: Sequence[Token],
    functions: AbstractSet[str],
    numbers: AbstractSet[str],
    is_statement: bool = True,
) -> Targets:
    """The references of a statement, or of the body of a macro.

    Args:
        tokens: The tokens.
        functions: Lower-case names of all table functions.
        numbers: Lower-case names of all numeric settings.
        is_statement: Whether the tokens are a statement, not the body of a macro.

    Raises:
        OperationalError: The statement is refused while external access is off, or a path in it
            is no constant.
    """
    references = Targets()
    if not is_statement or [t.word for t in tokens[:2]] not in _WITHOUT_USE:
        references.names = {
            name for t in tokens for name in (t.name, (t.string or "").lower()) if name
        }
    if is_statement:
        _Head(tokens, references, numbers).read(0)
    _Body(tokens, references, functions).read()
    return references


def refused(what: str, at: int | None, hint: str = "") -> OperationalError:
    """The error for a statement that needs external access while it is off."""
    return OperationalError(
        f"{what}, and {OFF}", hint=hint or "It stays off until the database is closed.", position=at
    )


@dataclass
class _Head:
    """Checks the first words of a statement, and collects the paths of statements such as COPY."""

    tokens: Sequence[Token]
    targets: Targets
    numbers: AbstractSet[str]

    def word(self, at: int) -> str:
        return self.tokens[at].word if at < len(self.tokens) else ""

    def read(self, at: int) -> None:
        while at < len(self.tokens) and self.tokens[at].text == "(":
            at += 1
        head = self.word(at)
        if head not in _HEADS:
            what = head or "this statement"
            raise refused(f"{what} may reach files", self.start(at))
        match head:
            case "EXPLAIN":
                self.read(self._explained(at + 1))
            case "PREPARE":
                words = [t.word for t in self.tokens[at:]]
                if "AS" in words:
                    self.read(at + words.index("AS") + 1)
            case "COPY":
                self._copy(at)
            case "ATTACH":
                while self.word(at + 1) in ("OR", "REPLACE", "DATABASE", "IF", "NOT", "EXISTS"):
                    at += 1
                self._path(at + 1)
            case "EXPORT":
                texts = [n for n, t in enumerate(self.tokens) if n > at and t.is_string]
                self._path(texts[0] if texts else at + 1)
            case "SET" | "RESET":
                at += 1 + (self.word(at + 1) in ("GLOBAL", "SESSION", "LOCAL"))
                self._setting(at)
            case "PRAGMA":
                name = self.tokens[at + 1].name if at + 1 < len(self.tokens) else ""
                if name not in _PRAGMAS:
                    self._setting(at + 1)
            case "UPDATE" if self.word(at + 1) == "EXTENSIONS" and self.word(at + 2) != "SET":
                raise refused("UPDATE EXTENSIONS may reach files", self.start(at))
            case "FORCE" if self.word(at + 1) != "CHECKPOINT":
                raise refused("FORCE may reach files", self.start(at))
            case "CREATE":
                words = [self.word(n) for n in range(at, at + 8)]
                if "PERSISTENT" in words and "SECRET" in words:
                    raise refused("A persistent secret is a file", self.start(at))

    def start(self, at: int) -> int | None:
        return self.tokens[min(at, len(self.tokens) - 1)].start

    def _explained(self, at: int) -> int:
        """The position of the statement after EXPLAIN and its options."""
        while self.word(at) in ("ANALYZE", "VERBOSE"):
            at += 1
        closes = pairs(self.tokens)
        is_query = self.word(at + 1) in _QUERIES or [
            t.text for t in self.tokens[at + 1 : at + 2]
        ] == ["("]
        return at if is_query or at not in closes else closes[at] + 1

    def _copy(self, at: int) -> None:
        if [self.word(at + n) for n in (1, 2)] == ["FROM", "DATABASE"]:
            return
        depth, n = 0, at
        for n in range(at + 1, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[n].text, 0)
            if not depth and self.word(n) in ("FROM", "TO"):
                self._path(n + 1)
                break
        for token in self.tokens[n:]:
            if token.name.upper() in _NAMING_FILES:
                raise refused(f"{token.name.upper()} may name any file", token.start)

    def _path(self, at: int) -> None:
        path, last = _text(self.tokens, at)
        follows = self.tokens[last].text if last < len(self.tokens) else ""
        if path is None or not (follows in ("", "(", ")") or follows[0].isalpha()):
            raise not_constant(self.start(at))
        self.targets.paths.append((path, self.tokens[at].start))

    def _setting(self, at: int) -> None:
        name = self.tokens[at].name if at < len(self.tokens) else ""
        if name not in _SETTINGS and name not in self.numbers:
            raise refused(f"{name} may concern files", self.start(at))


def not_constant(at: int | None) -> OperationalError:
    """The error for a path that is not a string literal."""
    return refused(
        "A path must be a string in quotes",
        at,
        "Expressions, parameters and variables are refused.",
    )


def _text(tokens: Sequence[Token], at: int) -> tuple[str | None, int]:
    """The string at a token, which may be in several literals, and the position after it."""
    parts = []
    while at < len(tokens) and tokens[at].is_string:
        parts.append(tokens[at].string)
        at += 1
    known = [p for p in parts if p is not None]
    return ("".join(known) if parts and len(known) == len(parts) else None), at


@dataclass
class _Body:
    """Collects paths in calls and in the places of relations."""

    tokens: Sequence[Token]
    targets: Targets
    functions: AbstractSet[str]

    def read(self) -> None:
        places, closes = self._places(), pairs(self.tokens)
        checked = self.functions | {*_OF_TABLES}
        for n, token in enumerate(self.tokens):
            opens = n + 1 < len(self.tokens) and self.tokens[n + 1].text == "("
            if token.name and opens and token.name in checked:
                self._call(n, closes.get(n + 1, len(self.tokens)), places[n])
            if places[n] and (token.is_string or token.name) and not self._is_operand(n):
                self._reference(n)

    def _is_operand(self, at: int) -> bool:
        """True if the preceding token makes a token a value or a part of a longer name."""
        before = self.tokens[at - 1] if at else None
        if before is None or before.word or before.name or before.is_string:
            return before is not None and before.is_string
        return before.text not in (",", "(", ":", ")", "]")

    def _places(self) -> list[bool]:
        """For each token, whether a relation may be there."""
        allowed: list[bool] = []
        frames = [True]
        change, from_seen = "", False
        for n, token in enumerate(self.tokens):
            before = self.tokens[n - 1] if n else None
            word = "" if before is not None and before.text == "." else token.word
            if word in ("INSERT", "MERGE") and len(frames) == 1:
                change = word
            if word in _BEFORE_RELATIONS:
                frames[-1] = True
                from_seen |= word in ("FROM", "JOIN")
            elif word in _BEFORE_VALUES:
                frames[-1] = False
            elif word == "VALUES":
                first = before is None or before.text == "("
                inserted = bool(change) and len(frames) == 1 and not from_seen
                frames[-1] &= not (first or inserted)
            allowed.append(frames[-1])
            if token.text in ("(", "[", "{"):
                frames.append(frames[-1] and token.text == "(" and self._inherits(before))
            elif token.text in (")", "]", "}") and len(frames) > 1:
                frames.pop()
        return allowed

    def _inherits(self, before: Token | None) -> bool:
        """True if a parenthesis allows relations wherever the text before it does."""
        if before is None or before.word in _OPENERS:
            return True
        is_value = bool(before.name) or before.is_string or before.word == "IN"
        return not is_value and before.text in (",", "(", ":")

    def _reference(self, at: int) -> None:
        """Collects a relation's name if it may be a path."""
        parts = [_spelled(self.tokens[at])]
        last = at
        while last + 1 < len(self.tokens) and self.tokens[last + 1].text.startswith("."):
            last += 1
            parts.append(self.tokens[last].text)
            following = self.tokens[last + 1 : last + 2]
            if any(t.name or t.is_string or t.text[:1].isdigit() for t in following):
                last += 1
                parts.append(_spelled(self.tokens[last]))
        text = "".join(parts)
        if last == at and self.tokens[at].is_string:
            text = _text(self.tokens, at)[0] or text
        if "." in text or "/" in text:
            self.targets.paths.append((text, self.tokens[at].start))

    # ---- calls

    def _call(self, at: int, close: int, is_relation: bool) -> None:
        name, start = self.tokens[at].name, self.tokens[at].start
        first, rest = self._arguments(at + 2, close)
        if name in _OF_TABLES:
            if is_relation:
                self._tables(first, start)
        elif name in READERS:
            self._constants(first, start)
            named = (t for part in rest for t in part if t.string)
            self.targets.paths += ((t.string or "", t.start) for t in named)
        elif name == "query":
            text, last = _text(first, 0)
            if text is None or last != len(first):
                raise not_constant(start)
            self.targets.queries.append((text, start))
        elif name == "query_table":
            self._constants(first, start)
        elif name not in _HARMLESS and not name.startswith(_HARMLESS_KINDS):
            raise refused(f"{name}() may reach files", start)

    def _arguments(self, first: int, close: int) -> tuple[Sequence[Token], list[Sequence[Token]]]:
        """The first positional argument of a call, and its named arguments."""
        parts, start, depth = [], first, 0
        for n in range(first, close):
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(self.tokens[n].text, 0)
            if not depth and self.tokens[n].text == ",":
                parts.append(self.tokens[start:n])
                start = n + 1
        parts.append(self.tokens[start:close])
        named = [p for p in parts if len(p) > 2 and p[1].text in ("=", ":=", "=>")]
        positional = [p for p in parts if p not in named]
        return (positional[0] if positional else ()), [p[2:3] for p in named if len(p) == 3]

    def _constants(self, part: Sequence[Token], start: int) -> None:
        """Collects an argument that must be a string literal, or a list of them."""
        items = list(_listed(part))
        if not items:
            raise not_constant(start)
        for item in items:
            text, last = _text(item, 0)
            if text is None or last != len(item):
                raise not_constant(start)
            self.targets.paths.append((text, item[0].start))

    def _tables(self, part: Sequence[Token], start: int) -> None:
        """Collects the name of a table, which may be a string or unquoted."""
        if not all(t.is_string or t.name or t.text.startswith(".") for t in part):
            raise not_constant(start)
        text = "".join(map(_spelled, part))
        self.targets.paths.append((text, start))


def _listed(part: Sequence[Token]) -> Iterator[Sequence[Token]]:
    if part and part[0].word == "ARRAY":
        part = part[1:]
    if not part or part[0].text != "[":
        yield part
        return
    if part[-1].text != "]":
        yield ()
        return
    start = 1
    for n in range(1, len(part)):
        if part[n].text == "," or n == len(part) - 1:
            yield part[start:n]
            start = n + 1


def _spelled(token: Token) -> str:
    """A name or string without quotes, in the written letter case."""
    if token.string is not None:
        return token.string
    if token.text.startswith('"'):
        return token.text[1:-1].replace('""', '"')
    return token.text
