"""The rows of a running loop: on a terminal the newest row and a plot, else one line a row."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from einsql.frontends.console.chart import draw_chart
from einsql.frontends.console.picture import Picture
from einsql.storage.results.box import Row, cut
from einsql.storage.results.value_text import Column, columns_of, format_cell

_HIGH = 13
"""The height of the screen for the plot, in lines; the plot is a few lines lower."""


class Arrivals:
    """The queue of a loop's rows, filled by the thread that runs the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Row] = queue.SimpleQueue()
        self._values: list[float] = []
        self._latest: Row = ()
        self.columns: tuple[Column, ...] = ()

    def put(self, description: Sequence[Sequence[Any]], row: Row) -> None:
        """Appends a row of columns with this DB-API description."""
        if not self.columns:
            self.columns = columns_of(description)
        value = row[-1]
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._values.append(float(value))
        else:
            self._values.append(np.nan)
        self._latest = row
        self._queue.put(row)

    def lines(self, bits: int) -> list[str]:
        """The newest row and a plot of the last column, for a terminal.

        Args:
            bits: The terminal's colour depth in bits.
        """
        if not self._latest:
            return []
        size = shutil.get_terminal_size()
        pairs = zip(self.columns, self._latest, strict=True)
        newest = "  ".join(f"{c.name} {format_cell(v, c.type, 'NULL')}" for c, v in pairs)
        values = np.array(list(self._values))
        if size.lines < _HIGH + 4 or len(values) < 2 or not np.isfinite(values).any():
            return [cut(newest, size.columns - 1)]
        picture = Picture(("row",), (1,), {self.columns[-1].name: values})
        plot = draw_chart(picture, size.columns - 1, _HIGH, bits)
        return [*plot, cut(newest, size.columns - 1)]

    def rows(self, done: threading.Event, idle: Callable[[], object]) -> Iterator[Row]:
        """Yields the rows as they arrive, until the loop has ended and the queue is empty.

        Args:
            done: An event that is set when the loop has ended.
            idle: Callback while no row arrives.
        """
        while True:
            try:
                yield self._queue.get(timeout=0.1)
            except queue.Empty:
                if done.is_set() and self._queue.empty():
                    return
                idle()
