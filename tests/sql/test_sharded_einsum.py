"""EINSUM(…, sharded := true): the examples of the sharded index notation, to the byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import einsql
from tests.engine.test_sites import explained
from tests.explain.test_sharded_notation import notation
from tests.support.samples import sample

Moves = list[tuple[str, list[str], int]]
SHAPES = {
    "x": ("bsd", (4, 8, 6)),
    "w0": ("de", (6, 16)),
    "w1": ("ed", (16, 6)),
    "p": ("d", (8,)),
    "q": ("d", (8,)),
    "m": ("de", (8, 12)),
    "v": ("e", (12,)),
}


def session(mesh: str) -> tuple[einsql.Connection, dict[str, np.ndarray]]:
    """A session with tensors of whole numbers, whose sums are exact in any order."""
    con = einsql.connect(config={"mesh": mesh, "jit": "never"})
    chance = np.random.default_rng(7)
    arrays = {}
    for name, (keys, shape) in SHAPES.items():
        arrays[name] = chance.integers(-4, 5, shape).astype(np.float32)
        con.register(name, arrays[name], dims=tuple(keys))
    return con, arrays


def moved(con: einsql.Connection, sql: str) -> Moves:
    """The collectives of a statement along mesh axes; a run sends as many bytes as planned."""
    report = explained(con, sql, "ANALYZE, ")
    assert sum(s["bytes_sent"] for s in report["per_site"]) == report["total"]["bytes_sent"]
    for node in report["nodes"]:
        assert node["measured"]["bytes_sent"] == node["bytes_sent"]
    found = [move for _, moves in notation(report) for move in moves]
    assert sum(nbytes for *_, nbytes in found) == report["total"]["bytes_sent"]
    return found


def mlp(x: str, h: str, z: str) -> str:
    """A perceptron whose weights are sharded over the axis of the hidden label."""
    up, down = h.split()[-1], h.split()[-1]
    return f"""
    WITH h AS (SELECT b, s, e, GREATEST(val, 0) AS val
        FROM EINSUM('{x}, d {up} -> {h}', x, w0, sharded := true))
    SELECT b, s, d, val FROM EINSUM('{h}, {down} d -> {z}', h, w1, sharded := true)"""


Z = 4 * 8 * 6 * 4
"""Bytes of the input x and of the output z of the perceptron."""


@pytest.mark.parametrize(
    ("mesh", "sql", "moves"),
    [
        # tensor parallel: exactly one all-reduce
        (
            "model=4", mlp("b s d", "b s e_model", "b s d"),
            [("all-reduce", ["model"], 2 * 3 * Z)],
        ),
        # sequence parallel: an all-gather and a reduce-scatter
        (
            "model=4", mlp("b s_model d", "b s e_model", "b s_model d"),
            [("all-gather", ["model"], 3 * Z), ("reduce-scatter", ["model"], 3 * Z)],
        ),
        # the batch over one axis, the hidden label over the other
        (
            "data=2, model=2", mlp("b_data s d", "b_data s e_model", "b_data s d"),
            [("all-reduce", ["model"], 2 * Z)],
        ),
        # one label over two axes: the batch in four parts
        ("data=2, model=2", mlp("b_data_model s d", "b_data_model s e", "b_data_model s d"), []),
    ],
    ids=["tensor", "sequence", "data and tensor", "two axes of one label"],
)  # fmt: skip
def test_a_perceptron_takes_the_collectives_of_its_notation(
    mesh: str, sql: str, moves: Moves
) -> None:
    con, a = session(mesh)
    assert moved(con, sql) == moves
    hidden = np.maximum(np.einsum("bsd,de->bse", a["x"], a["w0"]), 0)
    expected = np.einsum("bse,ed->bsd", hidden, a["w1"])
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), expected)
    rows = con.execute(sql).fetchall()
    con.execute("SET sites = 1")  # the notation has no effect at one site
    assert con.execute(sql).fetchall() == rows


@pytest.mark.parametrize(
    ("text", "tensors", "moves"),
    [
        ("d_0, d_0 ->", "p, q", [("all-reduce", ["r"], 2 * 3 * 4)]),
        ("d e_r, e_r -> d", "m, v", [("all-reduce", ["r"], 2 * 3 * 8 * 4)]),
        ("d e_r, e_r -> d_r", "m, v", [("reduce-scatter", ["r"], 3 * 8 * 4)]),
        ("d_r -> d", "p", [("all-gather", ["r"], 3 * 8 * 4)]),
        ("d -> d_r", "p", []),
        ("d_r e -> d e_r", "m", [("all-to-all", ["r"], 8 * 12 * 4 * 3 // 4)]),
        # an operand is gathered where two labels would be on one axis
        ("d_r e, e_r -> d_r", "m, v", [("all-gather", ["r"], 3 * 12 * 4)]),
        ("d_r e, e -> d_r", "m, v", []),
        ("d_r e, e ->", "m, v", [("all-reduce", ["r"], 2 * 3 * 4)]),
    ],
)
def test_a_notation_takes_its_collectives(text: str, tensors: str, moves: Moves) -> None:
    con, a = session("r=4")
    call = f"EINSUM('{text}', {tensors}, sharded := true)"
    assert moved(con, f"SELECT * FROM {call}") == moves
    plain = text.replace("_0", "").replace("_r", "").replace(" ", "")
    expected = np.einsum(plain, *(a[t] for t in tensors.split(", ")))
    np.testing.assert_array_equal(
        np.squeeze(con.execute(f"SELECT * FROM {call}").fetch_numpy()), expected
    )


def test_fsdp_gathers_the_weights_of_tensor_parallel_layers() -> None:
    con, a = session("fsdp=2, tp=2")
    con.execute("CREATE TENSOR xs PARTITION BY (b fsdp) AS SELECT * FROM x")
    con.execute("CREATE TENSOR ws PARTITION BY (d fsdp, e tp) AS SELECT * FROM w0")
    text = "b_fsdp s d, d_fsdp e_tp -> b_fsdp s e_tp"
    sql = f"SELECT * FROM EINSUM('{text}', xs, ws, sharded := true)"
    assert moved(con, sql) == [("all-gather", ["fsdp"], 6 * 16 * 4)]
    lines = [line for line, _ in notation(explained(con, sql))]
    assert lines[:2] == ["d_fsdp e_tp -> d e_tp", "b_fsdp s d, d e_tp -> b_fsdp s e_tp"]
    expected = np.einsum("bsd,de->bse", a["x"], a["w0"])
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), expected)


def test_a_result_lies_in_the_tensor_that_declares_the_same() -> None:
    con, _ = session("data=2, model=2")
    con.execute(
        "CREATE TENSOR h PARTITION BY (b data, e model) AS SELECT * FROM "
        "EINSUM('b_data s d, d e_model -> b_data s e_model', x, w0, sharded := true)"
    )
    assert con.execute("DESCRIBE h").fetchall()[-1][-1] == (
        "DeviceMesh(data=2, model=2) [Shard(b), Shard(e)]"
    )
    sql = "SELECT * FROM EINSUM('b_data s e_model -> b_data s e_model', h, sharded := true)"
    assert moved(con, sql) == []


def test_uneven_parts_and_axes_out_of_order() -> None:
    con, a = session("data=3, model=2")
    text = "d_model_data e, e -> d_model_data"
    got = con.execute(f"SELECT * FROM EINSUM('{text}', m, v, sharded := true)").fetch_numpy()
    np.testing.assert_array_equal(got, a["m"] @ a["v"])
    lines = notation(explained(con, f"SELECT * FROM EINSUM('{text}', m, v, sharded := true)"))
    assert lines[0] == (text, [])


@pytest.mark.parametrize(
    ("call", "reason", "at"),
    [
        ("EINSUM('d_data e_data, e -> d', m, v, sharded := true)", 'shards "d" and "e"', "data,"),
        ("EINSUM('d_dat e, e -> d', m, v, sharded := true)", 'no axis "dat"', "dat "),
        ("EINSUM('d e, e -> d_9', m, v, sharded := true)", 'no axis "9"', "9'"),
        ("EINSUM('d_ e, e -> d', m, v, sharded := true)", "no axis", " e, e"),
        ("EINSUM('d_data d, d -> d', m, v, sharded := true)", "occurs twice", "data d"),
        ("EINSUM('d e, e -> d', m, v, shared := true)", "no option shared", "shared"),
        ("EINSUM('d e, e -> d', m, v, sharded := 1)", "no option sharded := 1", "sharded"),
        ("EINSUM('de, e -> d', m, v, sharded := true)", "names 1 axis of an operand", "EINSUM"),
    ],
)
def test_contradictions_are_pointed_out_in_the_notation(call: str, reason: str, at: str) -> None:
    con, _ = session("data=2, model=2")
    sql = f"SELECT * FROM {call}"
    with pytest.raises(einsql.Error, match=reason) as error:
        con.execute(sql)
    assert error.value.position == sql.index(at, sql.index("EINSUM"))


def test_several_sites_need_a_mesh() -> None:
    con, _ = session("data=2, model=2")
    sql = "SELECT * FROM EINSUM('d e, e -> d', m, v, sharded := true)"
    con.execute("SET sites = 3")
    with pytest.raises(einsql.ProgrammingError, match="needs a mesh of the 3 sites"):
        con.execute(sql)


def test_an_underscore_is_part_of_a_label_without_the_option() -> None:
    con, a = session("data=2, model=2")
    got = con.execute("SELECT * FROM EINSUM('d_data e_x, e_x -> d_data', m, v)").fetch_numpy()
    np.testing.assert_array_equal(got, a["m"] @ a["v"])


def test_a_part_of_a_hybrid_statement_is_sharded() -> None:
    con, a = session("data=2, model=2")
    text = "d_data e_model, e_model -> d_data"
    rows: list[Any] = con.execute(
        f"SELECT val FROM EINSUM('{text}', m, v, sharded := true) ORDER BY val LIMIT 2"
    ).fetchall()
    assert rows == [(n,) for n in np.sort(a["m"] @ a["v"])[:2]]


@pytest.mark.parametrize("seed", sample([1], range(4)))
def test_any_placements_give_the_same_answer_and_send_what_is_planned(seed: int) -> None:
    chance = random.Random(seed)
    mesh = chance.choice([{"a": 2, "b": 3}, {"a": 4}, {"a": 2, "b": 2, "c": 2}, {"a": 7}])
    con, a = session(", ".join(f"{name}={size}" for name, size in mesh.items()))

    def placed(labels: str) -> str:
        axes = dict.fromkeys(labels, "")
        for name in chance.sample(sorted(mesh), len(mesh)):
            label = chance.choice([*labels, None])
            if label is not None:
                axes[label] += f"_{name}"
        return " ".join(label + names for label, names in axes.items())

    for terms, output, tensors in (
        (("bsd", "de"), "ebs", ("x", "w0")),
        (("de", "e"), "d", ("m", "v")),
        (("bsd",), "sb", ("x",)),
        (("bsd", "de", "ef"), "bf", ("x", "w0", "w1")),
    ):
        for _ in range(3):
            result = placed(output)
            text = f"{', '.join(map(placed, terms))} -> {result}"
            sql = f"SELECT * FROM EINSUM('{text}', {', '.join(tensors)}, sharded := true)"
            expected = np.einsum(f"{','.join(terms)}->{output}", *(a[t] for t in tensors))
            np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), expected, err_msg=text)
            report = explained(con, sql, "ANALYZE, ")
            for node in report["nodes"]:
                assert node["measured"]["bytes_sent"] == node["bytes_sent"], text
            lines = [line for line, _ in notation(report)]
            assert any(line.endswith(f"-> {result}") for line in lines), (text, lines)
