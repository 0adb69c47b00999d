"""SQLAlchemy over einsql: tensors and tables in its own terms; `make sqlalchemy` has its suite."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import einsql
from tests.support.samples import sample

pytest.importorskip("sqlalchemy")

import duckdb
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import registry

from einsql.core.quoting import RESERVED
from einsql.frontends.sqlalchemy import DIM, NAMED, EinsqlDialect
from einsql.frontends.sqlalchemy.types import named_type

ROOT = Path(__file__).parents[3]

registry.register("einsql", "einsql.frontends.sqlalchemy", "EinsqlDialect")


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = sa.create_engine(f"einsql:///{tmp_path}/model.db")
    yield made
    made.dispose()


def described(meta: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    x = sa.Table(
        "x", meta, sa.Column("i", DIM(3), primary_key=True),
        sa.Column("j", DIM(2), primary_key=True), sa.Column("val", sa.Float),
    )  # fmt: skip
    label = sa.Table(
        "label", meta, sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("row", sa.BigInteger, nullable=False, index=True), sa.Column("name", sa.String),
        sa.UniqueConstraint("name"),
    )  # fmt: skip
    return x, label


def test_tensors_and_tables_are_made_changed_and_joined(engine: sa.Engine) -> None:
    meta = sa.MetaData()
    x, label = described(meta)
    meta.create_all(engine)
    with engine.begin() as con:
        values = [{"i": i, "j": j, "val": 10.0 * i + j} for i in range(3) for j in range(2)]
        con.execute(x.insert(), values)
        names = [{"row": 0, "name": "a"}, {"row": 2, "name": "b"}]
        made = con.execute(label.insert().returning(label.c.id), names)
        assert made.scalars().all() == [1, 2]
        assert con.execute(label.insert().values(row=1)).inserted_primary_key == (3,)
        total = sa.func.sum(x.c.val).label("total")
        joined = sa.select(label.c.name, total).join(x, x.c.i == label.c.row).group_by(label.c.name)
        assert con.execute(joined.order_by(total)).all() == [("a", 1.0), (None, 21.0), ("b", 41.0)]
        con.execute(x.update().where(x.c.j == 1).values(val=x.c.val * 2))
        con.execute(x.delete().where(x.c.i == 0))
        found = con.execute(sa.select(x.c.i, x.c.val).where(x.c.j == 1, x.c.val > 5.0))
        assert found.all() == [(1, 22.0), (2, 42.0)]
    meta.drop_all(engine)
    left = sa.inspect(engine)
    assert (left.get_table_names(), left.get_sequence_names()) == ([], [])


def test_tensors_have_defaults(engine: sa.Engine) -> None:
    meta = sa.MetaData()
    zero = sa.Column("val", sa.Float, server_default=sa.text("0"))
    x = sa.Table("x", meta, sa.Column("i", DIM(3), primary_key=True), zero)
    meta.create_all(engine)
    with engine.begin() as con:
        con.execute(x.update().where(x.c.i == 1).values(val=2.5))
        assert con.execute(sa.select(x)).all() == [(0, 0.0), (1, 2.5), (2, 0.0)]
    x.append_column(sa.Column("other", sa.Float))
    with pytest.raises(sa.exc.CompileError, match="one default"):
        sa.schema.CreateTable(x).compile(engine)


def test_what_a_database_holds_is_reflected(engine: sa.Engine) -> None:
    meta = sa.MetaData()
    described(meta)
    meta.create_all(engine)
    with engine.begin() as con:
        con.exec_driver_sql("CREATE VIEW total AS SELECT i, SUM(val) AS s FROM x GROUP BY i")
        con.exec_driver_sql("CREATE VIEW named AS SELECT name, val FROM x, label WHERE i = row")
        con.exec_driver_sql(
            "CREATE TENSOR y AS SELECT i + 2 AS k, i > 0 AS b FROM range(3) AS r(i)"
        )
        con.exec_driver_sql("CREATE TEMP TENSOR z (i DIM(2), val HALF)")
    inspector = sa.inspect(engine)
    assert inspector.get_table_names() == ["label", "x", "y"]
    assert inspector.get_view_names() == ["named", "total"]
    assert inspector.get_pk_constraint("x")["constrained_columns"] == ["i", "j"]
    assert inspector.get_indexes("label")[0]["column_names"] == ["row"]
    assert inspector.get_unique_constraints("label")[0]["column_names"] == ["name"]
    assert "SUM(val)" in inspector.get_view_definition("total")
    types = {c["name"]: repr(c["type"]) for c in inspector.get_columns("named")}
    assert types == {"name": "VARCHAR()", "val": "DOUBLE()"}
    found = sa.MetaData()
    found.reflect(engine, views=True)
    assert repr(found.tables["y"].c.k.type) == "DIM(2, 5)"
    assert found.tables["y"].primary_key.columns.keys() == ["k"]
    again = sa.MetaData()
    found.tables["x"].to_metadata(again, name="x2")
    again.create_all(engine)
    assert repr(sa.inspect(engine).get_columns("x2")[0]["type"]) == "DIM(0, 3)"
    with pytest.raises(sa.exc.CompileError, match="begin with 0"):
        sa.schema.CreateTable(found.tables["y"]).compile(engine)
    with pytest.raises(sa.exc.NoSuchTableError):
        inspector.get_columns("nothing")


class Base(orm.DeclarativeBase):
    pass


class Model(Base):
    __tablename__ = "model"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]
    layers: orm.Mapped[list[Layer]] = orm.relationship(back_populates="model")


class Layer(Base):
    __tablename__ = "layer"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    model_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("model.id"))
    model: orm.Mapped[Model] = orm.relationship(back_populates="layers")


def test_a_temporary_table_hides_another_in_reflection(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        for sql in (
            "CREATE TABLE tt (x INTEGER PRIMARY KEY)",
            "CREATE TEMP TABLE tt (y INTEGER, z INTEGER)",
            "CREATE TABLE one (x INTEGER PRIMARY KEY)",
        ):
            connection.execute(sa.text(sql))
        inspector = sa.inspect(connection)
        assert [c["name"] for c in inspector.get_columns("tt")] == ["y", "z"]
        assert inspector.get_pk_constraint("tt")["constrained_columns"] == []
        assert [c["name"] for c in inspector.get_columns("one")] == ["x"]
        assert inspector.get_pk_constraint("one")["constrained_columns"] == ["x"]


def test_names_with_quotes_have_sequences(engine: sa.Engine) -> None:
    table = sa.Table("it's", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                     sa.Column("v", sa.Integer))  # fmt: skip
    table.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"v": 5}, {"v": 6}])
        assert connection.execute(sa.select(table).order_by("id")).fetchall() == [(1, 5), (2, 6)]


def test_objects_are_mapped(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Model(name="small", layers=[Layer(), Layer()]))
        session.commit()
        model = session.scalars(sa.select(Model)).one()
        assert (model.name, sorted(layer.id for layer in model.layers)) == ("small", [1, 2])
        model.name = "large"
        session.rollback()
        assert model.name == "small"


def test_transactions_begin_with_their_first_statement(engine: sa.Engine) -> None:
    x, _ = described(meta := sa.MetaData())
    meta.create_all(engine)
    count = sa.select(sa.func.count()).select_from(x)
    with engine.connect() as reader, engine.connect() as writer:
        reader.begin()
        with writer.begin():
            writer.execute(x.insert().values(i=0, j=0, val=1.0))
        assert reader.scalar(count) == 1  # it had not begun
        automatic = writer.execution_options(isolation_level="AUTOCOMMIT")
        automatic.execute(x.insert().values(i=1, j=0, val=1.0))
        assert reader.scalar(count) == 1
        reader.rollback()
        assert reader.scalar(count) == 2


def test_urls() -> None:
    dialect = EinsqlDialect()

    def arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
        return dialect.create_connect_args(sa.make_url(text))

    assert arguments("einsql://") == ([":memory:"], {"read_only": False})
    assert arguments("einsql:///a/b.db?read_only=true&sites=2&mpi=4") == (
        ["a/b.db"], {"read_only": True, "config": {"sites": "2", "mpi": 4}},
    )  # fmt: skip
    assert arguments("einsql:////a/b.db")[0] == ["/a/b.db"]
    with pytest.raises(einsql.InterfaceError, match="is a file"):
        arguments("einsql://host/a.db")
    with pytest.raises(sa.exc.ProgrammingError, match="no_such"):
        sa.create_engine("einsql://?no_such=1").connect()


def test_pandas_reads_and_writes_through_an_engine(engine: sa.Engine) -> None:
    pd = pytest.importorskip("pandas")
    days = pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"])
    made = pd.DataFrame({"row": [0, 1, 2], "name": ["a", None, "c"], "at": days})
    assert made.to_sql("label", engine, index=False) == 3
    assert made.to_sql("label", engine, index=False, if_exists="append") == 3
    found = pd.read_sql_table("label", engine)
    assert found.name.isna().sum() == 2
    assert str(found["at"].dtype).startswith("datetime64")
    wanted = sa.text(
        "SELECT row, COUNT(*) AS n FROM label WHERE row > :low GROUP BY row ORDER BY row"
    )
    assert pd.read_sql(wanted, engine, params={"low": 0}).n.tolist() == [2, 2]


def test_types_by_name() -> None:
    names = ("BOOLEAN", "DOUBLE", "DECIMAL(9, 2)", "VARCHAR", "UUID", "JSON", "INTEGER[]")
    dialect = EinsqlDialect()
    assert [named_type(n).compile(dialect) for n in names] == list(names)
    for name in ("HUGEINT", "HALF", "UTINYINT", "STRUCT(a INTEGER)", "TIMESTAMP WITH TIME ZONE"):
        assert named_type(name).compile(dialect) == name
    assert isinstance(named_type("MAP(INTEGER, VARCHAR)"), NAMED)
    assert isinstance(named_type("DECIMAL(4,1)[3][2]"), sa.ARRAY)
    assert named_type("ENUM('it''s', 'b')").enums == ["it's", "b"]  # type: ignore[attr-defined]  # an Enum


def test_reserved_words_are_duckdbs() -> None:
    with duckdb.connect() as con:
        rows = con.execute(
            "SELECT keyword_name FROM duckdb_keywords() "
            "WHERE keyword_category IN ('reserved', 'type_function')"
        ).fetchall()
    assert {row[0] for row in rows} <= RESERVED


def test_entry_points_lead_to_the_adapters() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("sqlalchemy.dialects", "harlequin.adapter"):
        for name, target in points[group].items():
            module, _, attribute = target.partition(":")
            assert name.startswith("einsql")
            if group == "harlequin.adapter":
                pytest.importorskip("harlequin")
            assert getattr(import_module(module), attribute)


@pytest.mark.parametrize(
    "chosen", sample([], ["FetchLimit or Returning or Sequence or HasTable or CTETest"])
)
def test_a_part_of_sqlalchemys_suite(chosen: str) -> None:
    """`make sqlalchemy` runs all of it."""
    command = [sys.executable, "-m", "tests.frontends.sqlalchemy.suite", "-k", chosen]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
