"""How much a query's spelling matters."""

from __future__ import annotations

from benchmarks.evaluation.experiment import Experiment, Table

EVERY, FULL_COUNT, COUNT = 6, 8, 4
"""One of so many queries is measured within the hour, and spellings of each."""


def computed(full: bool) -> list[Table]:
    """The slowest and the fastest spelling of queries."""
    from benchmarks.spelled import QUERIES
    from benchmarks.spellings import line

    queries = QUERIES if full else QUERIES[::EVERY]
    lines = [line(query, count=FULL_COUNT if full else COUNT) for query in queries]
    lines.sort(key=lambda found: -found.ratio)
    rows = [(x.name, min(x.seconds), max(x.seconds), x.ratio) for x in lines]
    columns = ("query", "fastest spelling", "slowest spelling", "slowest / fastest")
    units = {columns[1]: "s", columns[2]: "s", columns[3]: "×"}
    note = (
        f"{len(lines)} of {len(QUERIES)} queries. A spelling's time is the least of at least "
        "seven interleaved runs. All spellings of a query agree, and over few elements with "
        "DuckDB."
    )
    return [Table("Spellings of queries", columns, rows, units, note=note)]


EXPERIMENT = Experiment(
    title="Spellings",
    source="benchmarks/spellings.py",
    about="A query in several spellings, drawn at random: orders of keys and of joins, USING, ON "
    "or WHERE, parts of WITH or subqueries, orders of factors, types of literals.",
    computed=computed,
)
