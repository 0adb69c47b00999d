"""SQLAlchemy on einsql: `create_engine("einsql:///model.db")`.

SQLAlchemy loads `dialect.py`. `compilers.py` compiles statements to text. `types.py` defines
the types that SQLAlchemy lacks. `reflection.py` reads the schema of a database: tables from
DuckDB's catalog, tensors and views from the session.
"""

from einsql.frontends.sqlalchemy.dialect import EinsqlDialect
from einsql.frontends.sqlalchemy.types import DIM, NAMED

__all__ = ["DIM", "NAMED", "EinsqlDialect"]
