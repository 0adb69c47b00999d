"""Statements, plans and plots of one connection, as values of JSON of bounded size."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import einsql
from einsql.errors import Error, InterruptedError
from einsql.explain.drawing import parts
from einsql.explain.report import GraphReport
from einsql.frontends.console.completion import Vocabulary
from einsql.frontends.console.objects import columns, entries
from einsql.frontends.console.picture import picture_of
from einsql.frontends.console.settings import CommandError
from einsql.frontends.console.ui.plots import plot_of
from einsql.storage.results.box import Row
from einsql.storage.results.value_text import columns_of, format_cell

ROWS = 1000
"""The most rows of a result that are sent to the page."""
_CELL = 2000
"""The most characters of a cell."""
_CHARACTERS = 2_000_000
"""The most characters of the cells of one answer."""
_RESULTS = 50
"""The most results with rows of one run, the last ones."""
_OBJECTS = 1000
"""The most objects that the catalog lists."""
_WORDS = 40
"""The most words of a completion."""
_COLUMNS = 200
"""The most columns of an object or a result that are sent."""
_PLANNED = re.compile(r"\s*(?:SELECT|WITH|FROM)\b", re.IGNORECASE)
"""The begin of the statements whose plans are shown; EXPLAIN does not run them."""
_MOMENT, _PATIENCE = 0.2, 30.0
"""The seconds a request waits for statements, and for the catalog, a plan or a plot."""
_STOPPING = 30.0
"""The seconds for which `stop` sends interrupts."""


class Busy(Exception):  # noqa: N818 - the state of the connection, not an error of it
    """Another statement runs."""


class Workbench:
    """Runs one request at a time on a connection; `stop` and `status` do not wait for it.

    Attributes:
        name: The name of the database on the page.
        read_only: Whether the database is open for reading only.
        connection: The connection.
    """

    def __init__(self, connection: einsql.Connection, name: str, read_only: bool) -> None:
        self.name, self.read_only = name, read_only
        self.connection = connection
        self._latest: einsql.Cursor | None = None
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._stopped = self._runs = False
        self._fraction: float | None = None
        self._started = 0.0
        self._steps = 0
        self._newest = ""

    # ---- requests

    def run(self, text: str) -> dict[str, Any]:
        """Runs all statements of a text up to the first error.

        Returns:
            The results in order, and the error.

        Raises:
            Busy: Another statement runs.
        """
        results: list[dict[str, Any]] = []
        error: dict[str, Any] | None = None
        offset, statement = 0, ""
        with self._working(runs=True):
            try:
                for start, sql in self.connection.split(text):
                    offset, statement = start, sql  # the one that fails, if any
                    if self._stopped:
                        raise InterruptedError("Stopped")
                    results.append(self._statement(sql))
                    if len(results) > _RESULTS:
                        results[-_RESULTS - 1].pop("rows", None)
            except (Error, MemoryError) as e:
                error = _described(e, text, offset, statement)
            finally:
                notices = list(self.connection.notices)
                self.connection.notices.clear()
        return {"results": results, "error": error, "notices": notices}

    def plan(self, text: str, at: int, analyze: bool) -> dict[str, Any]:
        """The plan of the SELECT around an offset of a text.

        Args:
            text: Statements.
            at: The offset.
            analyze: Whether to run the SELECT and measure.

        Raises:
            Busy: Another statement runs.
        """
        with self._working(runs=analyze):
            try:
                sql = self._statement_at(text, at)
                if not sql:
                    return {"hint": "Write a SELECT to see its plan here."}
                if not _PLANNED.match(sql):
                    return {
                        "hint": "Only the plans of SELECT are shown here; EXPLAIN shows others."
                    }
                plan = self.connection.explain(sql, analyze=analyze)
                self.connection.notices.clear()
                answer: dict[str, Any] = {"sql": sql, "text": str(plan)[:_CHARACTERS]}
                if isinstance(plan.report, GraphReport):
                    answer["drawing"], answer["details"] = parts(plan.report)
                return answer
            except (Error, MemoryError) as e:
                return {"error": str(e) or "Out of memory"}

    def complete(self, text: str, at: int) -> dict[str, Any]:
        """The words that can stand at an offset of a text, and the characters they replace.

        Raises:
            Busy: A statement runs.
        """
        with self._working():
            vocabulary = Vocabulary(self)
            replaced, words = vocabulary.complete(" " + text, at + 1)  # no dot commands
            listed = [[w.text, w.meaning] for w in words[:_WORDS]]
            return {"replaced": replaced, "words": listed, "total": len(words)}

    def plot(self) -> dict[str, Any]:
        """The last result as a chart or a heat map.

        Raises:
            Busy: Another statement runs.
        """
        with self._working():
            if self._latest is None:
                return {"hint": "Run a SELECT of one or two keys and a value to see it here."}
            try:
                return plot_of(picture_of(self._latest))
            except (Error, CommandError, MemoryError) as e:
                return {"hint": str(e) or "Out of memory"}

    def catalog(self) -> dict[str, Any]:
        """The names of the database.

        Raises:
            Busy: A statement runs.
        """
        with self._working():
            try:
                known = entries(self.connection)
            except Error as e:
                return {"objects": [], "total": 0, "error": str(e)}
            listed = [
                {"name": e.name, "kind": e.kind, "call": e.call, "inFrom": e.in_from}
                for e in known[:_OBJECTS]
            ]
            return {"objects": listed, "total": len(known)}

    def columns(self, name: str) -> dict[str, Any]:
        """The columns of a tensor, table or view, with types or the bounds of keys.

        Raises:
            Busy: A statement runs.
        """
        with self._working():
            try:
                listed = columns(self.connection, name)
            except Error as e:  # the name is of a macro, or a view reads a dropped object
                return {"columns": [], "total": 0, "error": e.reason}
            shown = [[c.name, f"key {c.bounds}" if c.bounds else c.type] for c in listed]
            return {"columns": shown[:_COLUMNS], "total": len(shown)}

    def status(self) -> dict[str, Any]:
        """The progress of the running statement."""
        if self._idle.is_set():
            return {"running": False}
        return {
            "running": True,
            "fraction": self._fraction,
            "seconds": round(time.monotonic() - self._started, 1),
            "steps": self._steps,
            "newest": self._newest,
        }

    def stop(self) -> dict[str, Any]:
        """Cancels the running statement and those after it; waits for the end."""
        self._stopped = True
        end = time.monotonic() + _STOPPING
        # An interrupt between two statements is lost, so that one is not enough.
        while not self._idle.is_set() and time.monotonic() < end:
            self.connection.interrupt()
            self._idle.wait(0.1)
        return {"stopped": self._idle.is_set()}

    # ---- statements

    @contextmanager
    def _working(self, runs: bool = False) -> Iterator[None]:
        """Waits for the connection, unless statements run on it.

        Args:
            runs: Whether this request runs statements, so that others do not wait for it.
        """
        if not self._lock.acquire(timeout=_MOMENT if self._runs else _PATIENCE):
            raise Busy
        self._runs = runs
        self._stopped, self._fraction, self._steps, self._newest = False, None, 0, ""
        self._started = time.monotonic()
        self._idle.clear()
        self.connection.progress = self._note
        self.connection.stepped = self._note_step
        try:
            yield
        finally:
            self.connection.progress = self.connection.stepped = None
            self._runs = False
            self._idle.set()
            self._lock.release()

    def _note(self, fraction: float) -> None:
        self._fraction = fraction

    def _note_step(self, description: Any, row: Row) -> None:
        self._steps += 1
        pairs = zip(columns_of(description), row, strict=True)
        self._newest = "  ".join(f"{c.name} {format_cell(v, c.type, 'NULL')}" for c, v in pairs)[
            :_CELL
        ]

    def _statement(self, sql: str) -> dict[str, Any]:
        self._latest = None  # releases the memory of the previous result
        start = time.perf_counter()
        cursor = (lambda run: run(sql))(self.connection.execute)
        answer: dict[str, Any] = {"sql": sql[:_CELL]}
        if cursor.description is None:
            answer["changed"] = cursor.rowcount
        else:
            self._latest = cursor
            answer.update(_rows(cursor))
        answer["seconds"] = time.perf_counter() - start
        return answer

    def _statement_at(self, text: str, at: int) -> str:
        chosen = ""
        for offset, sql in self.connection.split(text):
            if offset > at and chosen:
                break
            chosen = sql
        return chosen


def _rows(cursor: einsql.Cursor) -> dict[str, Any]:
    """The columns and the first rows of a result, whose cells are texts or None."""
    shown = columns_of(cursor.description or ())[:_COLUMNS]
    total, room, rows = cursor.rowcount, _CHARACTERS, list[list[str | None]]()
    for row in islice(cursor, ROWS):
        cells = [
            None if v is None else _cut(format_cell(v, c.type, "NULL"), c.name == "explain")
            for v, c in zip(row, shown, strict=False)
        ]
        room -= sum(len(cell or "") for cell in cells)
        if room < 0:
            break
        rows.append(cells)
    return {
        "columns": [[c.name, c.displayed_type, c.is_numeric] for c in shown],
        "hidden": len(cursor.description or ()) - len(shown),
        "rows": rows,
        "total": total,
    }


def _cut(text: str, whole: bool) -> str:
    return text if whole or len(text) <= _CELL else text[:_CELL] + "…"


def _described(error: Exception, text: str, offset: int, sql: str) -> dict[str, Any]:
    """The message of an error, and its place in the text.

    Args:
        error: An `Error`, or that the memory is full.
        text: The text of the run.
        offset: The offset of the statement in the text.
        sql: The statement.
    """
    if not isinstance(error, Error):
        return {"message": "Out of memory", "at": None}
    place = None
    if error.position is not None and error.sql in (None, text, sql):
        place = error.position + (0 if error.sql == text else offset)
        error.sql, error.position = text, place
    return {"message": str(error), "at": place}
