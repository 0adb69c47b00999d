"""BFLOAT16 from end to end: declared, stored, computed, fetched, in files and on sites."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.core.bfloat16 import narrow, rounded, widen
from einsql.core.schema import DType
from einsql.storage import files
from tests.engine.test_sites import explained

VALUES = np.array([[0.1, -2.5, 3e38], [np.nan, np.inf, 2.0**-133]])
HELD = rounded(VALUES)
"""The BFLOAT16 nearest to them, as float32."""


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    connection.register("x", narrow(VALUES), ("i", "j"))
    return connection


def typed(con: einsql.Connection, sql: str) -> list[str]:
    return [d[1] for d in con.execute(sql).description or ()]


def test_types_are_those_of_half_with_one_exception(con: einsql.Connection) -> None:
    con.register("h", np.ones((2, 3), np.float16), ("i", "j"))
    con.register("f", np.ones((2, 3), np.float32), ("i", "j"))
    expressions = [
        "x.val", "-x.val", "x.val + x.val", "x.val + 1", "x.val * 0.5", "x.val + 1e0",
        "x.val + f.val", "SQRT(x.val)", "FLOOR(x.val)", "x.val > 1", "COALESCE(x.val, 0)",
        "GREATEST(x.val, x.val)", "SIGN(x.val)", "x.val / x.val",
    ]  # fmt: skip
    joined = "SELECT i, j, {} AS v FROM {} AS x JOIN f USING (i, j)"
    for e in expressions:
        ours = typed(con, joined.format(e, "x"))
        halves = typed(con, joined.format(e, "h"))
        assert [t.replace("BFLOAT16", "HALF") for t in ours] == halves, e
    for aggregate in (
        "SUM(val)",
        "AVG(val)",
        "MIN(val)",
        "MAX(val)",
        "STDDEV(val)",
        "PRODUCT(val)",
    ):
        (brain,) = typed(con, f"SELECT {aggregate} AS v FROM x")
        (half,) = typed(con, f"SELECT {aggregate} AS v FROM h")
        assert brain.replace("BFLOAT16", "HALF") == half
    mixed = (
        "SELECT i, j, x.val + h.val AS v, GREATEST(x.val, h.val) AS g FROM x JOIN h USING (i, j)"
    )
    assert typed(con, mixed)[2:] == ["FLOAT", "FLOAT"]


def test_declared_inserted_updated_deleted(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), j DIM(3), val BFLOAT16)")
    assert [r[:2] for r in con.execute("DESCRIBE w").fetchall()][-1] == ("val", "BFLOAT16")
    con.execute("INSERT INTO w VALUES (0, 0, 0.1), (1, 2, -3)")
    con.execute("INSERT INTO w VALUES (0, 1, ?)", [1.00390625])  # a tie, which goes to even
    assert con.execute("SELECT * FROM w").fetchall() == [
        (0, 0, 0.10009765625), (0, 1, 1.0), (1, 2, -3.0),
    ]  # fmt: skip
    con.execute("UPDATE w SET val = val * 3 WHERE i = 0")
    con.execute("DELETE FROM w WHERE i = 1")
    assert con.execute("SELECT val FROM w").fetchall() == [(0.30078125,), (3.0,)]
    con.execute("INSERT OR REPLACE INTO w SELECT i, j, i + j + 0.1e0 FROM x")
    wanted = rounded(np.add.outer(range(2), range(3)) + 0.1)
    np.testing.assert_array_equal(con.execute("SELECT * FROM w").fetch_numpy(), wanted)
    with pytest.raises(einsql.DataError, match="out of range in CAST"):
        con.execute("INSERT OR REPLACE INTO w VALUES (0, 0, 1e39)")
    with pytest.raises(einsql.DataError, match=r"CAST\(BFLOAT16 AS HALF\)"):
        con.execute("SELECT i, j, CAST(val AS HALF) AS v FROM x").fetchall()


def test_a_default(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(1000000), j DIM(1000000), val BFLOAT16) DEFAULT 0.3")
    assert con.execute("SELECT val FROM w WHERE i = 7 AND j = 8").fetchall() == [(0.30078125,)]
    with pytest.raises(einsql.IntegrityError) as caught:
        con.execute("DELETE FROM w WHERE i = 0")
    assert "0.30078125" in caught.value.hint


@pytest.mark.parametrize("jit", ["never", "always"])
def test_arithmetic_is_that_of_float(jit: str) -> None:
    con = einsql.connect(config={"jit": jit})
    values = np.random.default_rng(0).standard_normal((40, 50))
    held = rounded(values)
    con.register("x", narrow(values), ("i", "j"))
    con.register("f", held, ("i", "j"))
    for sql in (
        "SELECT i, j, EXP(val) + val * val AS v FROM {}",
        "SELECT i, SUM(val) AS v FROM {} GROUP BY i",
        "SELECT i, MAX(val * 3) AS v FROM {} GROUP BY i",
        "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS v "
        "FROM {0} a JOIN {0} b USING (j) GROUP BY a.i, b.i",
        "SELECT a.i, b.i AS k, MIN(a.val + b.val) AS v "
        "FROM {0} a JOIN {0} b USING (j) GROUP BY a.i, b.i",
        "SELECT i, j, SUM(val) OVER (PARTITION BY i) AS v FROM {}",
        "SELECT i, ARG_MAX(j, val) AS v FROM {} GROUP BY i",
        "SELECT i // 4 AS q, SUM(val) AS v FROM {} GROUP BY i // 4",
    ):
        ours, theirs = (con.execute(sql.format(t)).fetch_numpy() for t in ("x", "f"))
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, err_msg=sql)
    rounding = "SELECT i, j, CAST(CAST(val AS BFLOAT16) * 3 AS BFLOAT16) AS v FROM f"
    np.testing.assert_array_equal(con.execute(rounding).fetch_numpy(), rounded(held * 3))
    assert con.execute("SELECT MIN(val) AS v, MAX(val) AS w FROM x").fetchall() == [
        (held.min(), held.max())
    ]


def test_results(con: einsql.Connection) -> None:
    sql = "SELECT i, j, val FROM x"
    array = con.execute(sql).fetch_numpy()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, HELD)
    rows = con.execute(sql).fetchall()
    np.testing.assert_array_equal([r[2] for r in rows], HELD.ravel())
    assert {type(r[2]) for r in rows} == {float}
    table = con.execute(sql).fetch_arrow_table()
    assert str(table.schema.field("val").type) == "float"
    np.testing.assert_array_equal(table["val"].to_numpy(), HELD.ravel())
    holes = con.execute("SELECT i, j, val FROM x WHERE i <> j").fetch_numpy(fill=0.3)
    np.testing.assert_array_equal(holes[[0, 0, 1], [0, 2, 1]], [0.30078125, HELD[0, 2], 0.30078125])
    tiles = con.execute("SELECT i, tile FROM TILES(x, 2, 1)").fetchall()
    np.testing.assert_array_equal(np.concatenate([t for _, t in tiles]), HELD)
    np.testing.assert_array_equal(con.einsum("ij->ji", [narrow(VALUES)]), HELD.T)


def test_arrays_of_other_packages(con: einsql.Connection) -> None:
    with pytest.raises(einsql.InterfaceError, match="complex64 is no tensor") as caught:
        con.register("u", np.ones((2, 2), np.complex64), ("i", "j"))
    assert "bfloat16" in caught.value.hint
    torch = pytest.importorskip("torch", reason="has tensors of this type")
    tensor = torch.tensor(VALUES, dtype=torch.bfloat16)
    con.register("t", tensor.T, ("j", "i"))
    np.testing.assert_array_equal(con.execute("SELECT i, j, val FROM t").fetch_numpy(), HELD)
    assert tensor.view(torch.int16).numpy().tobytes() == narrow(VALUES).tobytes()
    tensor[0, 1] = 7  # no copy was made
    assert con.execute("SELECT val FROM t WHERE i = 0 AND j = 1").fetchall() == [(7.0,)]


def test_torch_rounds_alike() -> None:
    torch = pytest.importorskip("torch", reason="has a rounding to compare with")
    bits = np.random.default_rng(1).integers(0, 2**32, 10**6, np.uint32)
    floats = np.concatenate([bits, bits & 0xFFFF8000]).view(np.float32)
    theirs = torch.from_numpy(floats).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(rounded(floats), theirs)


def test_ml_dtypes(con: einsql.Connection) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="has arrays of this type")
    array = VALUES.astype(ml_dtypes.bfloat16)
    con.register("m", array, ("i", "j"))
    np.testing.assert_array_equal(con.execute("SELECT * FROM m").fetch_numpy(), HELD)
    con.execute("CREATE TENSOR one (val BFLOAT16)")
    con.execute("INSERT INTO one VALUES (?)", [array[0, 0]])
    assert con.execute("SELECT val FROM one").fetchall() == [(0.10009765625,)]


@pytest.mark.parametrize("suffix", ["safetensors", "arrow"])
def test_files(con: einsql.Connection, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w.{suffix}"
    con.execute(f"COPY x TO '{path}'")
    found = files.open_tensor(str(path))
    assert found.dtype is DType.BFLOAT16
    assert found.array.nbytes == 2 * VALUES.size
    np.testing.assert_array_equal(widen(found.array), HELD)
    named = con.execute(f"SELECT i, j, val * 1 AS v FROM '{path}' AS w(i, j)")
    np.testing.assert_array_equal(named.fetch_numpy(), HELD)
    con.execute("CREATE TENSOR y (i DIM(2), j DIM(3), val BFLOAT16)")
    con.execute(f"COPY y FROM '{path}'")
    np.testing.assert_array_equal(con.execute("SELECT * FROM y").fetch_numpy(), HELD)
    con.execute("CREATE TENSOR z (i DIM(2), j DIM(3), val FLOAT)")
    with pytest.raises(einsql.DataError, match="holds bfloat16, but val is FLOAT"):
        con.execute(f"COPY z FROM '{path}'")


def test_safetensors_are_those_of_torch(con: einsql.Connection, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="reads and writes BF16")
    saved = pytest.importorskip("safetensors.torch", reason="the format's own package")
    theirs, ours = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensor = torch.tensor(VALUES, dtype=torch.bfloat16)
    saved.save_file({"x": tensor}, theirs)
    con.execute(f"COPY x TO '{ours}'")
    length = int.from_bytes(ours.read_bytes()[:8], "little")
    assert json.loads(ours.read_bytes()[8 : 8 + length])["x"]["dtype"] == "BF16"
    assert torch.equal(saved.load_file(ours)["x"].view(torch.int16), tensor.view(torch.int16))
    found = con.execute(f"SELECT i, j, val FROM '{theirs}' AS w(i, j)").fetch_numpy()
    np.testing.assert_array_equal(found, HELD)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_numpy_files_cannot_hold_it(con: einsql.Connection, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(einsql.NotSupportedError, match="cannot hold BFLOAT16") as caught:
        con.execute(f"COPY x TO '{tmp_path}/w.{suffix}'")
    assert "safetensors" in caught.value.hint
    assert not list(tmp_path.iterdir())
    bits = narrow(VALUES).view(np.dtype(np.uint16))
    np.save(tmp_path / "u.npy", bits)
    read = con.execute(f"SELECT i, j, val FROM '{tmp_path}/u.npy' AS w(i, j)").fetch_numpy()
    np.testing.assert_array_equal(read, bits.astype(np.int32))  # without the mark they are numbers


def test_the_console_shows_the_fewest_digits() -> None:
    from einsql.storage.results.value_text import format_value

    bits = np.arange(0, 0x7F80, 7, dtype=np.uint16)
    for value in widen(bits).tolist():
        text = format_value(value, "BFLOAT16", "")
        assert rounded(np.asarray(float(text))) == value
        assert len(text.lower().split("e")[0].strip("0.").replace(".", "")) <= 4 or "e" not in text
    shown = [format_value(v, "BFLOAT16", "") for v in (0.10009765625, 1.0, -0.0, np.inf)]
    assert shown == ["0.1", "1.0", "-0.0", "inf"]


MATMUL = """SELECT /*+ PARTITION(i=4) */ a.i, b.k, SUM(a.val * b.val) AS val
FROM a JOIN b USING (j) GROUP BY a.i, b.k"""


def test_sites_move_two_bytes_an_element() -> None:
    a, b = (np.random.default_rng(n).integers(-8, 8, (16, 16)) / 2 for n in (0, 1))
    sent = {}
    for kind in ("BFLOAT16", "FLOAT"):
        con = einsql.connect()
        con.execute("SET sites = 4")
        for name, array, first, second in (("a", a, "i", "j"), ("b", b, "j", "k")):
            con.register("given", array, (first, second))
            con.execute(
                f"CREATE TENSOR {name} PARTITION BY ({first} 4) AS "
                f"SELECT {first}, {second}, CAST(val AS {kind}) AS val FROM given"
            )
        np.testing.assert_array_equal(con.execute(MATMUL).fetch_numpy(), a @ b)
        planned, ran = explained(con, MATMUL), explained(con, MATMUL, "ANALYZE, ")
        sent[kind] = [s["bytes_sent"] for s in ran["per_site"]]
        assert sent[kind] == [s["bytes_sent"] for s in planned["per_site"]]
    assert sent["FLOAT"] == [2 * n for n in sent["BFLOAT16"]] == [3 * 64 * 4] * 4


def test_parts_of_extremes_are_merged() -> None:
    values = np.random.default_rng(0).standard_normal((6, 8))
    values[0, 3], values[1] = np.nan, np.nan
    con = einsql.connect()
    con.register("x", narrow(values), ("i", "j"))
    for what in ("MIN(val)", "MAX(val)", "ARG_MIN(j, val)", "SUM(val)"):
        sql = f"SELECT {{}} i, {what} AS v FROM x GROUP BY i"
        con.execute("SET sites = 1")
        whole = con.execute(sql.format("")).fetch_numpy()
        con.execute("SET sites = 4")
        parts = con.execute(sql.format("/*+ PARTITION(j=4) */")).fetch_numpy()
        np.testing.assert_allclose(parts, whole, rtol=1e-6 if "SUM" in what else 0)
