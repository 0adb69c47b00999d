"""pytest's plugin: SQLAlchemy's own, and what it has to know of einsql."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.dialects import registry
from sqlalchemy.exc import IntegrityError

for _name in ("einsql", "einsql.einsql"):
    registry.register(_name, "einsql.frontends.sqlalchemy", "EinsqlDialect")
pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403 - after registering
from sqlalchemy.testing.provision import (  # noqa: E402 - as above
    delete_from_all_tables,
    temp_table_keyword_args,
)


@temp_table_keyword_args.for_db("einsql")  # type: ignore[untyped-decorator]  # it has no types
def _temporary(cfg: Any, eng: Any) -> dict[str, Any]:
    return {"prefixes": ["TEMPORARY"]}


@delete_from_all_tables.for_db("einsql")  # type: ignore[untyped-decorator]  # as above
def _delete(connection: Any, cfg: Any, metadata: Any) -> None:
    connection.rollback()
    try:
        # One transaction for each: DuckDB checks foreign keys against rows that the same
        # transaction has deleted.
        for table in reversed(metadata.sorted_tables):
            with cfg.db.begin() as con:
                con.execute(table.delete())
    except IntegrityError:  # a table refers to itself
        metadata.drop_all(cfg.db)
        metadata.create_all(cfg.db)
