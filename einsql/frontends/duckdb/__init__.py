"""einsql on a user's own DuckDB connection.

`attached.py` is the public interface. `functions.py` registers the functions of tiles. They
read their arguments with `tiles.py`, run the kernels of `kernels.py` and return their results
with `results.py`.

`table_function.py` creates the table function `einsql('…')`. `session.py` binds its query,
`inputs.py` receives the rows of the tables, and `scans.py` runs the query when DuckDB scans it. In
`edb.sql`, `calls.py` finds the calls in a statement, `tables.py` reads their tables, and `rows.py`
passes their rows to DuckDB. `user_database.py` reads the tables that the statements of
`edb.session` name, and whether DuckDB allows files.
"""

from einsql.frontends.duckdb.attached import Attached, attach

__all__ = ["Attached", "attach"]
