"""Which files are tables where FROM names them."""

from __future__ import annotations

from einsql.engine.files import suffix_of
from einsql.engine.files.globs import named
from einsql.engine.files.mapped import Found, refusing
from einsql.errors import OperationalError

_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""Text with rows, whoever wrote it."""
_PACKED = (".gz", ".zst")


def is_table(path: str) -> bool:
    """True if FROM reads a file, or the files of a pattern, as a table of DuckDB's.

    Text with rows is, and Parquet without columns of fixed-shape tensors; of a pattern the
    first file tells.

    Raises:
        OperationalError: A Parquet file is missing or damaged.
    """
    low = path.lower()
    for packed in _PACKED:
        low = low.removesuffix(packed)
    if low.endswith(_TEXTS):
        return True
    if suffix_of(path) != ".parquet":
        return False
    if "://" in path:
        return True
    with refusing(path):
        found = named(path)
        if not found:
            raise OperationalError(f"No file matches '{path}'")
        from einsql.engine.files import parquet  # pyarrow takes 60 ms

        return not parquet.holds_tensors(Found(found[0]))
