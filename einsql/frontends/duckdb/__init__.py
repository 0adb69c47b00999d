"""einsql on a user's own DuckDB connection.

`attached.py` is what users hold. `functions.py` registers the functions of tiles, which read
their arguments by `tiles.py`, run the kernels of `kernels.py` and give `results.py`.
`calls.py` finds the calls of `einsql('…')` in a statement, whose tables `tables.py` reads and
whose rows `rows.py` hands to DuckDB.
"""

from einsql.frontends.duckdb.attached import Attached, attach

__all__ = ["Attached", "attach"]
