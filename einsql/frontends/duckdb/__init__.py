"""einsql on a user's own DuckDB connection.

`attached.py` is the public interface. `functions.py` registers the functions of tiles. They
read their arguments with `tiles.py`, run the kernels of `kernels.py` and return their results
with `results.py`. `calls.py` finds the calls of `einsql('…')` in a statement. `tables.py` reads
the tables of a call, and `rows.py` passes its rows to DuckDB.
"""

from einsql.frontends.duckdb.attached import Attached, attach

__all__ = ["Attached", "attach"]
