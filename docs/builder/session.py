"""Runs the blocks of chapters, one after another, in one connection."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
from matplotlib.figure import Figure

import einsql
from benchmarks.measure import QUIET, Times, measure
from docs.builder import plots
from docs.builder.recorded import recorded
from docs.builder.show import (
    ROWS,
    Html,
    Markdown,
    Table,
    code,
    drawing,
    figure,
    output,
    plot,
    raw,
    table,
)
from docs.builder.source import ROOT, Block
from einsql.core.units import duration, quantity
from einsql.explain.explanation import Explanation

TALL = 1300.0
"""Drawings of more pixels than that scroll in a frame of their own."""
_FOLDED = {"python": "The Python behind this", "sql": "The SQL behind this"}


class BlockError(Exception):
    """A block that did not run as its chapter says."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a block of SQL took: `ran` in the text behind it.

    Attributes:
        seconds: Until its rows were there to be fetched.
        plans: How many plans it made.
    """

    seconds: float
    plans: int


def fastest(times: Times, name: str) -> float:
    """The least seconds a function took: other work on the machine adds least to those."""
    return min(times.seconds[name])


class Session:
    """What the blocks of all chapters share: connections, and Python's names.

    Args:
        quick: Measures once instead of several times.
    """

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        self.con = einsql.connect()
        self.duck = duckdb.connect()
        self.names: dict[str, Any] = {
            "__name__": "tour", "einsql": einsql, "np": np, "con": self.con, "duck": self.duck,
            "plots": plots, "Html": Html, "Table": Table, "recorded": recorded,
            "duration": duration, "quantity": quantity, "measured": self.measured, "ROOT": ROOT,
            "code": code, "listing": self.listing, "fastest": fastest,
        }  # fmt: skip

    def measured(
        self,
        runs: Mapping[str, Callable[[], object]],
        rounds: int = 9,
        calls: Mapping[str, int] | None = None,
    ) -> Times:
        """Times of functions that take turns; `fastest(times, name)` is in seconds."""
        if not self.quick:
            return measure(runs, rounds=rounds, seconds=0, calls=calls, pause=QUIET)
        taken = {}
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            taken[name] = [time.perf_counter() - start]
        return Times(taken)

    def listing(self, path: str, *starts: str) -> Markdown:
        """The statements of a script that begin so, as code.

        Raises:
            LookupError: One of them is not there.
        """
        statements = [s for _, s in self.con.split((ROOT / path).read_text(encoding="utf-8"))]
        statements = [re.sub(r"\A(--.*\n|\s)+", "", s).strip() for s in statements]
        found = [s for start in starts for s in statements if re.match(rf"{start}\b", s)]
        if len(found) != len(starts):
            raise LookupError(f"{path} has not all of {', '.join(starts)}")
        return code(";\n\n".join(s.rstrip(";") for s in found) + ";", "sql")

    def filled(self, text: str) -> str:
        """A text with the expressions of Python in it, {{…}}, evaluated."""
        before, opened, rest = text.partition("{{")
        if not opened:
            return text
        inner, _, after = rest.partition("}}")
        return before + self.value(inner) + self.filled(after)

    def value(self, expression: str) -> str:
        """An expression with its format, as in an f-string."""
        return str(eval("f" + repr("{" + expression + "}"), self.names))  # our own chapters

    def run(self, block: Block) -> Markdown:
        """Runs a block and gives it with its result, as Markdown.

        Raises:
            BlockError: It failed, or did not fail though it should have.
        """
        runs = {"sql": self._sql, "python": self._python, "console": self._console}
        if block.language not in runs:
            return code(block.text, "text")
        try:
            shown = runs[block.language](block)
            if "fails" in block.flags:
                raise BlockError("did not fail")
        except einsql.Error as error:
            if "fails" not in block.flags:
                raise BlockError(str(error)) from error
            shown = raw(output(str(error), "error"))
        except BlockError:
            raise
        except Exception as error:
            raise BlockError("".join(traceback.format_exception_only(error))) from error
        if "hidden" in block.flags or block.language == "console":
            return shown
        listing = code(block.text, block.language)
        if "folded" in block.flags:
            opened = raw(f"<details><summary>{_FOLDED[block.language]}</summary>")
            return Markdown("\n".join([shown, opened, listing, raw("</details>")]))
        return Markdown(f"{listing}\n{shown}")

    # ---- SQL

    def _sql(self, block: Block) -> Markdown:
        if "duckdb" in block.flags:
            found = self.duck.execute(block.text)
            return self._rows(found.description, found.fetchall(), block, "DuckDB")
        cursor, plans, start = None, self.con.planner_calls, time.perf_counter()
        for _, statement in self.con.split(block.text):
            # Run among the chapters' names, which FROM may mean.
            ran = eval("con.execute(_statement)", self.names | {"_statement": statement})
            cursor = ran if ran.description is not None else cursor
        self.names["ran"] = Ran(time.perf_counter() - start, self.con.planner_calls - plans)
        if cursor is None:
            return Markdown()
        rows = cursor.fetchall()
        if "as" in block.options:
            columns = zip(*rows, strict=True)
            names = [d[0] for d in cursor.description]
            self.names[block.options["as"]] = dict(zip(names, map(np.array, columns), strict=True))
        if "silent" in block.flags:
            return Markdown()
        if block.text.lstrip().upper().startswith("EXPLAIN"):
            text = "\n".join(str(r[0]) for r in rows)
            if text.startswith("<svg"):
                return self._figure(drawing(text), block, "fig-plan")
            return raw(output(text))
        if "both" in block.flags:
            self._compare(block.text, rows)
        return self._rows(cursor.description, rows, block, "")

    def _compare(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Raises where DuckDB gives other rows for the same text over element rows."""
        for name, *_ in self.con.execute("SHOW TENSORS").fetchall():
            if re.search(rf"\b{name}\b", sql):
                given = self.con.execute(f"SELECT * FROM {name}").fetch_arrow_table()
                self.duck.register("given", given)
                self.duck.execute(f"CREATE OR REPLACE TABLE {name} AS FROM given")
        others = self.duck.execute(sql).fetchall()
        if "ORDER BY" not in sql:
            rows, others = sorted(rows), sorted(others)
        same = len(rows) == len(others) and np.allclose(
            np.array(rows, np.float64), np.array(others, np.float64), rtol=1e-5
        )
        if not same:
            raise BlockError(f"DuckDB gives other rows: {others[:3]}, not {rows[:3]}")

    def _rows(self, description: Any, rows: list[Any], block: Block, whose: str) -> Markdown:
        most = int(block.options.get("rows", ROWS))
        names = [d[0] for d in description]
        types = [str(d[1]) for d in description]
        notes = []
        if len(rows) > most:
            notes.append(f"{most} of {len(rows):,} rows")
        if whose:
            notes.append(whose)
        if "both" in block.flags:
            notes.append("the same rows on einsql and on DuckDB" if len(rows) > 1
                         else "the same on einsql and on DuckDB")  # fmt: skip
        below = f'<p class="remark">{"; ".join(notes)}</p>' if notes else ""
        return raw(f'<div class="given">{table(names, types, rows[:most])}{below}</div>')

    # ---- Python and the shell

    def _python(self, block: Block) -> Markdown:
        tree = ast.parse(block.text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "<block>", "exec"), self.names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<block>", "eval"), self.names)
        shown = raw(output(printed.getvalue()) if printed.getvalue() else "")
        return shown if "silent" in block.flags else Markdown(shown + self._given(value, block))

    def _given(self, value: object, block: Block) -> Markdown:
        if value is None:
            return Markdown()
        if isinstance(value, Markdown):
            return value
        if isinstance(value, Html):
            return raw(figure(value, self._caption(block), "html") if block.options else value)
        if isinstance(value, Figure):
            return self._figure(plot(value, self._caption(block)), block, "fig-plot")
        if isinstance(value, Explanation):
            return self._figure(drawing(value.svg()), block, "fig-plan")
        if isinstance(value, Table):
            made = table(value.header, [""] * len(value.header), value.rows)
            caption = self._caption(block)
            below = f'<p class="remark">{caption}</p>' if caption else ""
            return raw(f'<div class="given">{made}{below}</div>')
        if " at 0x" in repr(value):
            raise BlockError(f"gives {value!r}, which tells a reader nothing: assign it to _")
        return raw(output(repr(value)))

    def _figure(self, svg: str, block: Block, kind: str) -> Markdown:
        height = re.search(r'height="([\d.]+)"', svg)
        if height is not None and float(height[1]) > TALL:
            kind += " tall"
        return raw(figure(svg, self._caption(block), kind))

    def _caption(self, block: Block) -> str:
        text = block.options.get("caption", "")
        return str(eval("f" + repr(text), self.names)) if text else ""

    def _console(self, block: Block) -> Markdown:
        """Lines behind `$` as a shell runs them in the repository's root."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        shown = []
        for line in block.text.splitlines():
            command = line.removeprefix("$ ")
            ran = subprocess.run(
                command, shell=True, cwd=ROOT, env=os.environ | {"PATH": path},
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            if ran.returncode:
                raise BlockError(f"{command} ends with {ran.returncode}: {ran.stderr[-2000:]}")
            shown.append(f"$ {command}\n{ran.stdout.rstrip()}\n")
        return raw(output("\n".join(shown), "terminal"))
