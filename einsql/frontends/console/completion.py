"""Completions: commands, files, settings, relations, columns, functions and keywords."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from einsql.core.quoting import name_of
from einsql.core.settings import SETTINGS
from einsql.errors import Error
from einsql.frontends.console import objects
from einsql.frontends.console.commands.registry import COMMANDS
from einsql.frontends.console.words import FUNCTIONS, KEYWORDS, TABLE_FUNCTIONS, statement_at
from einsql.session.setting_statements import setting
from einsql.sql.functions.descriptions import AGGREGATES, SCALARS, TABLES
from einsql.sql.parser.explain_options import FORMS, OPTIONS
from einsql.sql.parser.syntax import LEVELS

if TYPE_CHECKING:
    import einsql


class Connected(Protocol):
    """A shell, or whatever else has a connection that may change."""

    connection: einsql.Connection


class Word(NamedTuple):
    """A completion and its description."""

    text: str
    meaning: str = ""


class Completions(NamedTuple):
    """Words that can replace a number of characters before the cursor."""

    replaced: int
    words: list[Word]


_WORD = re.compile(r"\w*\Z")
_OWNER = re.compile(r'("(?:[^"]|"")*"|\w+)\s*\.\Z')
_SETTING = re.compile(r"\s*(?:RE)?SET\s+\Z", re.IGNORECASE)
_RELATION = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TENSOR|VIEW|TABLE|DESCRIBE|SUMMARIZE|COPY|EXISTS)\s+\Z"
    r"|\b(?:TILES|TILE|ELEMENTS)\s*\(\s*\Z",
    re.IGNORECASE,
)
_EXPLAIN = re.compile(
    r"\s*EXPLAIN\b[^()]*\((?:[^()]*,)?\s*(?:(?P<option>LEVEL|FORMAT)\s+)?\Z", re.IGNORECASE
)
"""Text before an option of EXPLAIN, or before the word after one."""
_NAME = r'"(?:[^"]|"")*"|[^\W\d]\w*'
_NAMED = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+|,\s*", re.IGNORECASE)
"""The keywords and the comma that precede a relation."""
_SOURCE = re.compile(
    rf"""(?:(?:TILES|TILE|ELEMENTS)\s*\(\s*)?  # a tensor, or its tiles,
    (?P<name>{_NAME}|'')                       # or a file
    (?:\s*,[^()]*\))?                          # how it is cut
    (?:\s+(?:AS\s+)?(?P<alias>{_NAME}))?
    (?:\s*\((?P<columns>[^()]*)\))?""",
    re.IGNORECASE | re.VERBOSE,
)
_NO_ALIAS = {
    "ON",
    "USING",
    "WHERE",
    "GROUP",
    "ORDER",
    "JOIN",
    "SET",
    "CROSS",
    "NATURAL",
    "LEFT",
    "RIGHT",
    "INNER",
    "FULL",
    "HAVING",
    "LIMIT",
    "SELECT",
    "VALUES",
}


class Vocabulary:
    """The words of one session; the catalog is read again after each statement."""

    def __init__(self, shell: Connected) -> None:
        self._shell = shell
        self._entries: list[objects.Entry] | None = None
        self._columns: dict[str, list[Word]] = {}

    def refresh(self) -> None:
        """Clears the cached catalog; call it after a statement, which can change the catalog."""
        self._entries = None
        self._columns.clear()

    def complete(self, text: str, at: int | None = None) -> Completions:
        """The completions at an offset of a text, by default at its end."""
        at = len(text) if at is None else at
        if text.startswith("."):
            return self._command(text[:at])
        before, after, inside = statement_at(text, at)
        if inside.startswith("'"):
            outside = self._shell.connection.settings.enable_external_access
            return _files(inside[1:]) if outside else Completions(0, [])
        word = "" if inside else _WORD.search(before)[0]  # type: ignore[index] # the pattern always matches
        lead = before[: len(before) - len(word)]
        if inside and not inside.startswith('"'):
            return Completions(0, [])  # inside a comment
        if inside:
            return Completions(len(inside), [w for w in self._relations() if w.text[0] == '"'])
        if owner := _OWNER.search(lead):
            return _starting(word, self._of(owner[1], before + after))
        if _SETTING.match(lead):
            ctx = self._shell.connection.context
            return _starting(word, [Word(s, setting(ctx, s)) for s in SETTINGS])
        if explain := _EXPLAIN.match(lead):
            option = (explain["option"] or "").upper()
            choices = {"LEVEL": LEVELS, "FORMAT": FORMS}.get(option, OPTIONS)
            return _starting(word, map(Word, choices))
        if _RELATION.search(lead):
            sources = [Word(f, _CALLS[f]) for f in TABLE_FUNCTIONS]
            return _starting(word, [*self._relations(), *sources])
        if not word:
            return Completions(0, [])
        return _starting(word, self._anything(before + after))

    # Dot commands

    def _command(self, before: str) -> Completions:
        name, space, rest = before[1:].partition(" ")
        if not space:
            return _starting(name, [Word(n, c.help) for n, c in COMMANDS.items()])
        takes = COMMANDS[name].takes if name in COMMANDS else ()
        rest = rest.lstrip()
        if takes == "file":
            return _files(rest.lstrip("'\""))
        if takes == "name":
            return _starting(rest, [Word(e.name, e.kind) for e in self._catalog()])
        return _starting(rest, [Word(w) for w in takes])

    # The catalog

    def _catalog(self) -> list[objects.Entry]:
        if self._entries is None:
            try:
                self._entries = objects.entries(self._shell.connection)
            except Error:
                self._entries = []  # the execution of the statement reports the error
        return self._entries

    def _relations(self) -> list[Word]:
        return [Word(name_of(e.name), e.kind) for e in self._catalog() if e.in_from]

    def _columns_of(self, name: str) -> list[Word]:
        if name.lower() not in self._columns:
            try:
                columns = objects.columns(self._shell.connection, name)
            except Error:
                columns = []  # the name is unknown, or a view reads a dropped relation
            self._columns[name.lower()] = [
                Word(name_of(c.name), f"key {c.bounds}" if c.bounds else c.type) for c in columns
            ]
        return self._columns[name.lower()]

    def _of(self, owner: str, statement: str) -> list[Word]:
        """The columns of the relation with this name or alias in a statement."""
        sources = {alias.lower(): columns for alias, columns in self._sources(statement)}
        named_columns = sources.get(_bare(owner).lower())
        return self._columns_of(_bare(owner)) if named_columns is None else named_columns

    def _sources(self, statement: str) -> Iterable[tuple[str, list[Word]]]:
        """The alias and the columns of each relation in a statement."""
        for place in _NAMED.finditer(statement):
            source = _SOURCE.match(statement, place.end())
            if source is None:
                continue
            name, alias = source["name"], source["alias"]
            if alias is not None and alias.upper() in _NO_ALIAS:
                alias = None
            columns = [] if name == "''" else self._columns_of(_bare(name))
            if alias is not None and source["columns"] is not None:
                named = [Word(c.strip(), "key") for c in source["columns"].split(",") if c.strip()]
                columns = [*named, *(columns[len(named) :] or [Word("val")])]
            yield _bare(alias or name), columns

    def _anything(self, statement: str) -> list[Word]:
        near = [word for _, columns in self._sources(statement) for word in columns]
        if not near:
            # Columns of views are omitted because each view would have to be parsed.
            near = [
                w
                for e in self._catalog()
                if e.kind in ("tensor", "table")
                for w in self._columns_of(e.name)
            ]
        macros = [Word(e.name, e.call) for e in self._catalog() if e.call and not e.in_from]
        return [
            *near,
            *self._relations(),
            *macros,
            *(Word(k) for k in KEYWORDS),
            *(Word(f, _CALLS.get(f, "function")) for f in FUNCTIONS),
        ]


_CALLS = {d.name.upper(): d.call for d in (*SCALARS, *AGGREGATES, *TABLES)}
"""The form of each function's call, by name; functions of tiles have no entry."""
_RESPELLED = {*KEYWORDS, *FUNCTIONS, *TABLE_FUNCTIONS, *OPTIONS}


def _bare(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _starting(prefix: str, words: Iterable[Word]) -> Completions:
    """The words with the prefix in any case; keywords take the case of the prefix."""
    lower, low = prefix.islower(), prefix.lower()
    matches: dict[str, Word] = {}
    for word in words:
        if word.text.lower().startswith(low):
            text = word.text.lower() if lower and word.text in _RESPELLED else word.text
            matches.setdefault(text.lower(), Word(text, word.meaning))
    return Completions(len(prefix), list(matches.values()))


def _files(begun: str) -> Completions:
    folder, _, name = begun.rpartition("/")
    place = Path(os.path.expanduser(f"{folder}/" if "/" in begun else "."))
    try:
        with os.scandir(place) as listing:
            entries = sorted((e.name, e.is_dir()) for e in listing)
    except OSError:
        entries = []
    return Completions(
        len(name),
        [
            Word(entry + "/" * is_folder, "" if is_folder else "file")
            for entry, is_folder in entries
            if entry.startswith(name) and (name or not entry.startswith("."))
        ],
    )
