"""Detects the files that FROM reads as tables."""

from __future__ import annotations

import os

import numpy as np

from einsql.errors import OperationalError
from einsql.storage.files import parquet, suffix_of
from einsql.storage.files.delimited import COLUMNS
from einsql.storage.files.globs import named
from einsql.storage.files.mapped import RegularFile, refusing

_JSON = (".json", ".jsonl", ".ndjson")
_AHEAD, _LINE = 2**22, 2_000_000
"""Bytes of a CSV file that are checked, and greatest size of a line, which is DuckDB's limit."""
_BETWEEN = (b",", b";", b"\t", b"|")
"""Delimiters of columns."""
_TEXTS = (".csv", ".tsv", *_JSON)
"""Text formats of rows."""
_PACKED = (".gz", ".zst")


def _check_text(path: str) -> None:
    """Refuses files on which DuckDB would wait, or take minutes and gigabytes.

    Raises:
        OperationalError: The file is not regular, a line is too long, or the first line has too
            many columns.
    """
    if not os.path.exists(path):
        return  # DuckDB reports it
    with refusing(path):
        file = RegularFile(path)
        if path.lower().endswith(_JSON):
            return
        with file.open() as text:
            head = text.read(_AHEAD)
        marks = np.frombuffer(head, np.uint8)
        ends = np.flatnonzero((marks == ord("\n")) | (marks == ord("\r")))
        if np.diff(ends, prepend=0, append=len(head)).max() > _LINE:
            raise file.refusal(f"is no CSV file: it has a line of more than {_LINE} bytes")
        first = head[: ends[0]] if len(ends) else head
        columns = 1 + max(first.count(mark) for mark in _BETWEEN)
        if columns > COLUMNS:
            raise file.refusal(f"has {columns} columns, more than {COLUMNS}")


def may_be_table(path: str) -> bool:
    """True if DuckDB may read a file as a table, by its name; the file is not opened."""
    return _unpacked(path).endswith((*_TEXTS, ".parquet"))


def _unpacked(path: str) -> str:
    low = path.lower()
    for packed in _PACKED:
        low = low.removesuffix(packed)
    return low


def is_table(path: str) -> bool:
    """True if FROM reads a file, or the files of a pattern, as a table of DuckDB.

    These are text files of rows, and Parquet files without columns of fixed-shape tensors. The
    first file decides for a pattern.

    Raises:
        OperationalError: A Parquet file is missing or damaged.
    """
    low = _unpacked(path)
    if low.endswith(_TEXTS):
        if low == path.lower() and "://" not in path:
            for name in named(path):
                _check_text(name)
        return True
    if suffix_of(path) != ".parquet":
        return False
    if "://" in path:
        return True
    with refusing(path):
        names = named(path)
        if not names:
            raise OperationalError(f"No file matches '{path}'")
        return not parquet.holds_tensors(RegularFile(names[0]))
