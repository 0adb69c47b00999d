"""EINSUM with tensors that are unreduced over a mesh axis: `d e_model, e_model -> d _model`."""

from __future__ import annotations

import random

import numpy as np
import pytest

import einsql
from einsql.storage.objects import Tensor
from tests.engine.test_sites import explained
from tests.sql.test_partial_tensors import is_kept, values
from tests.sql.test_sharded_einsum import moved, session
from tests.support.samples import sample


def einsum(text: str, tensors: str) -> str:
    return f"SELECT * FROM EINSUM('{text}', {tensors}, sharded := true)"


def sent(con: einsql.Connection, sql: str) -> int:
    """The bytes that a statement sends, as planned and as measured."""
    report = explained(con, sql, "ANALYZE, ")
    total = int(report["total"]["bytes_sent"])
    assert sum(site["bytes_sent"] for site in report["per_site"]) == total
    return total


def placed(con: einsql.Connection, name: str) -> str:
    """The placement of a tensor as DESCRIBE shows it."""
    return str(con.execute(f"DESCRIBE {name}").fetchall()[-1][-1])


def test_the_local_sums_of_a_dot_product_are_a_partial_tensor() -> None:
    con, a = session("r=4")
    con.execute(f"CREATE TENSOR z AS {einsum('d_0, d_0 -> _0', 'p, q')}")
    assert is_kept(con, "z")
    assert placed(con, "z") == "DeviceMesh(r=4) [Partial(SUM)]"
    sql = einsum("_0 ->", "z")
    assert moved(con, sql) == [("all-reduce", ["r"], 2 * 3 * 4)]
    assert con.execute(sql).fetchall() == [(a["p"] @ a["q"],)]


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("d _r -> d", [("all-reduce", ["r"], 2 * 3 * 8 * 4)]),
        ("d _r -> d_r", [("reduce-scatter", ["r"], 3 * 8 * 4)]),
    ],
)
def test_a_kept_product_is_completed_by_the_collective_of_its_reader(
    text: str, moves: list[tuple[str, list[str], int]]
) -> None:
    con, a = session("r=4")
    con.execute(f"CREATE TENSOR z AS {einsum('d e_r, e_r -> d _r', 'm, v')}")
    assert is_kept(con, "z")
    assert con.execute("SHOW TENSORS").fetchall()[-1][4] == "(); PARTIAL(SUM) OVER (r)"
    assert moved(con, einsum(text, "z")) == moves
    np.testing.assert_array_equal(values(con, einsum(text, "z")), a["m"] @ a["v"])


def test_a_kept_operand_is_a_linear_one() -> None:
    con, a = session("data=2, model=2")
    con.execute(f"CREATE TENSOR z AS {einsum('d_data e_model, e_model -> d_data _model', 'm, v')}")
    assert placed(con, "z") == "DeviceMesh(data=2, model=2) [Shard(d), Partial(SUM)]"
    con.execute(f"CREATE TENSOR y AS {einsum('d_data _model, d_data -> d_data _model', 'z, p')}")
    con.execute(f"CREATE TENSOR s AS {einsum('d_data _model -> d _model', 'z')}")
    con.execute("CREATE TENSOR c AS SELECT d, val FROM z")
    assert [is_kept(con, name) for name in "ysc"] == [True, True, False]
    z = a["m"] @ a["v"]
    for name, expected in (("y", z * a["p"]), ("s", z), ("c", z)):
        np.testing.assert_array_equal(values(con, f"SELECT * FROM {name}"), expected)
    np.testing.assert_array_equal(
        values(con, einsum("d_data _model, d_data ->", "z, p")), z @ a["p"]
    )


def test_gradients_of_two_batches_are_completed_once() -> None:
    """Data parallel weights: each batch leaves its gradient partial; their sum is scattered."""
    con, _ = session("data=4")
    chance = np.random.default_rng(5)
    arrays = {}
    for name, keys in (("x1", "nd"), ("y1", "nk"), ("x2", "nd"), ("y2", "nk")):
        arrays[name] = chance.integers(-4, 5, (8, {"d": 6, "k": 4}[keys[1]])).astype(np.float32)
        con.register(f"{name}0", arrays[name], dims=tuple(keys))
        con.execute(f"CREATE TENSOR {name} PARTITION BY (n data) AS SELECT * FROM {name}0")
    for n in (1, 2):
        step = einsum("n_data d, n_data k -> d k _data", f"x{n}, y{n}")
        con.execute(f"CREATE TENSOR g{n} AS {step}")
        assert is_kept(con, f"g{n}")
    con.execute(
        "CREATE TENSOR g PARTIAL(SUM) OVER (data) AS "
        "SELECT d, k, g1.val + g2.val AS val FROM g1 JOIN g2 USING (d, k)"
    )
    sql = einsum("d k _data -> d_data k", "g")
    assert moved(con, sql) == [("reduce-scatter", ["data"], 3 * 6 * 4 * 4)]
    expected = arrays["x1"].T @ arrays["y1"] + arrays["x2"].T @ arrays["y2"]
    np.testing.assert_array_equal(values(con, sql), expected)


def test_unreduced_results_are_read_in_the_same_statement() -> None:
    con, a = session("data=2, model=2")
    call = "(" + einsum("d_data e_model, e_model -> d_data _model", "m, v") + ")"
    z = a["m"] @ a["v"]
    for text, nbytes in (("d_data", 64), ("d_data_model", 32), ("d_data _model", 32)):
        sql = einsum(f"d_data _model -> {text}", call)
        assert sent(con, sql) == nbytes
        np.testing.assert_array_equal(values(con, sql), z)
    sql = f"WITH a AS {call} SELECT d, a.val + a.val * 2::FLOAT AS val FROM a"
    np.testing.assert_array_equal(values(con, sql), 3 * z)
    con.execute(f"CREATE TENSOR t AS {sql}; CREATE VIEW w AS {call[1:-1]}")
    con.execute("CREATE TENSOR u AS SELECT d AS n, val AS x FROM w")
    assert [is_kept(con, name) for name in "tu"] == [True, True]
    np.testing.assert_array_equal(values(con, "SELECT * FROM u"), z)
    con.execute("CREATE TENSOR c PARTITION BY (d data) AS SELECT * FROM w")  # a clause decides
    assert not is_kept(con, "c")
    con.execute("SET sites = 1; CREATE TENSOR o AS SELECT * FROM w")
    stored = con.store.get("o")
    assert isinstance(stored, Tensor)
    assert stored.partition is None
    np.testing.assert_array_equal(values(con, "SELECT * FROM o"), z)


def test_integers_and_absent_keys_are_completed() -> None:
    con, a = session("data=2, model=2")
    con.register("k", np.arange(12), dims=("e",))
    con.execute("CREATE TENSOR f (e DIM(12), val FLOAT); INSERT INTO f VALUES (3, 2.5)")
    for tensors, expected in (("k, k", 506), ("f, v", 2.5 * a["v"][3])):
        for result in ("_model", "_data_model"):
            sql = einsum(f"e_{'data_' * ('data' in result)}model, e -> {result}", tensors)
            assert con.execute(sql).fetchall() == [(expected,)]
            con.execute(f"CREATE OR REPLACE TENSOR z AS {sql}")
            assert not is_kept(con, "z")
    sql = einsum("e_model, e_model d -> d _model", "f, (SELECT e, d, val FROM m)")
    np.testing.assert_array_equal(
        con.execute(sql).fetch_numpy(fill=0), np.float32(2.5) * a["m"][:, 3]
    )


@pytest.mark.parametrize(
    ("text", "tensors", "reason", "at"),
    [
        ("d_data e, e -> d _data", "m, v", 'not unreduced over "data"', "_data'"),
        ("d e, e -> d _rack", "m, v", 'no axis "rack"', "rack"),
        ("d e, e -> d _", "m, v", 'no axis ""', "', m"),
        ("d_data e, e -> d_data _data", "m, v", "stands alone and at", "data'"),
        ("d _model -> d", "p", "Operand 1 is not unreduced over model", "_model"),
        ("d _data -> d", "z", "unreduced over data, but over model", "_data"),
        ("d _model, d _model ->", "z, z", "A product of two unreduced", "_model ->"),
        ("d_data e_model, e -> _data_model", "m, v", "cut different labels", "_data_model"),
    ],
)
def test_wrong_axes_are_pointed_out(text: str, tensors: str, reason: str, at: str) -> None:
    con, _ = session("data=2, model=2")
    con.execute(f"CREATE TENSOR z AS {einsum('d e_model, e_model -> d _model', 'm, v')}")
    sql = einsum(text, tensors)
    with pytest.raises(einsql.Error, match=reason) as error:
        con.execute(sql)
    assert error.value.position == sql.index(at)
    assert error.value.hint


@pytest.mark.parametrize("seed", sample([0], range(6)))
def test_any_unreduced_placement_gives_the_same_answer(seed: int) -> None:
    chance = random.Random(seed)
    mesh = chance.choice([{"a": 2, "b": 3}, {"a": 4}, {"a": 2, "b": 2, "c": 2}, {"a": 7}])
    con, a = session(", ".join(f"{name}={size}" for name, size in mesh.items()))

    def shards(labels: str, whole: list[str | None]) -> str:
        words = dict.fromkeys([*labels, ""], "")
        for name in chance.sample(sorted(mesh), len(mesh)):
            label = chance.choice([*labels, *whole])
            if label is not None:
                words[label] += f"_{name}"
        return " ".join(label + names for label, names in words.items())

    kept = 0
    for terms, output, tensors in (
        (("bsd", "de"), "ebs", "x, w0"),
        (("de", "e"), "d", "m, v"),
        (("bsd",), "sb", "x"),
        (("d", "d"), "", "p, q"),
    ):
        expected = np.einsum(
            f"{','.join(terms)}->{output}", *(a[name] for name in tensors.split(", "))
        )
        for _ in range(4):
            inputs = ", ".join(shards(term, [None]) for term in terms)
            sql = einsum(f"{inputs} -> {shards(output, [None, '', ''])}", tensors)
            try:
                got = values(con, sql)
            except (einsql.ProgrammingError, einsql.NotSupportedError):
                continue  # no label of the sum is on the axis
            np.testing.assert_array_equal(np.squeeze(got), expected, err_msg=sql)
            sent(con, sql)
            con.execute(f"CREATE OR REPLACE TENSOR z AS {sql}")
            kept += is_kept(con, "z")
            got = values(con, "SELECT * FROM z")
            np.testing.assert_array_equal(np.squeeze(got), expected, err_msg=sql)
    assert kept
