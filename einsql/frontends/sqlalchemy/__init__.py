"""SQLAlchemy on einsql: `create_engine("einsql:///model.db")`.

`dialect.py` is what SQLAlchemy loads. Statements become text by `compilers.py`, `types.py` has
the types that SQLAlchemy lacks, and `reflection.py` reads what a database holds: tables from
DuckDB's catalog, tensors and views from the session.
"""

from einsql.frontends.sqlalchemy.dialect import EinsqlDialect
from einsql.frontends.sqlalchemy.types import DIM, NAMED

__all__ = ["DIM", "NAMED", "EinsqlDialect"]
