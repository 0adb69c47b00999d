"""Each benchmark of whole statements on its smallest ones: answers agree, and all is measured."""

import json
from random import Random

import duckdb
import numpy as np
import pytest

from benchmarks import encoder, first, graphs, recommender, spellings
from benchmarks.respelling import respelled
from benchmarks.spelled import QUERIES, Query
from benchmarks.statements import STATEMENTS
from tests.support.samples import sample


@pytest.mark.parametrize("name", sample([], ["running sums by row", "gradient, logistic"]))
def test_first_measures_every_mode(name: str) -> None:
    found = first.line([s.name for s in STATEMENTS].index(name), rounds=1)
    assert found.name == name
    assert set(found.above()) == set(first.AIMS)
    assert min(found.numpy, found.start, found.empty, found.warm, found.new, found.seen) > 0
    assert len(list(first.findings([found]))) == 2 * len(first.AIMS) + 2


@pytest.mark.parametrize("name", ["product by heads", "sparse product"])
def test_spellings_agree_and_are_measured(name: str) -> None:
    query = next(q for q in QUERIES if q.name == name)
    small = Query(query.name, query.sql, query.tensors, query.small())
    found = spellings.line(small, count=3)
    assert len({s.sql for s in found.spellings}) == len(found.seconds) == 3
    assert found.ratio >= 1
    assert spellings.line(small, count=3).spellings == found.spellings  # of the same seed
    assert next(iter(spellings.findings([found]))).what == "median"


def test_a_spelling_is_a_different_text_of_the_same_relation() -> None:
    sql = """WITH p AS (
      SELECT i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (k) GROUP BY i, j)
    SELECT i, j, 2 * p.val AS val FROM p JOIN c USING (j) WHERE c.val < 3"""
    tensors = {"a": ("i", "k"), "b": ("k", "j"), "c": ("j",)}
    drawn = [respelled(sql, tensors, Random(seed)) for seed in range(40)]
    texts = " ".join(s.sql for s in drawn)
    for part in ("USING (k)", "ON ", "WHERE a.k = b.k", "(SELECT ", "WITH p", "2.0", "AS REAL)",
                 "p.val * 2", "b.val * a.val", "3 > c.val", "FROM b", "FROM c"):  # fmt: skip
        assert part in texts
    assert {s.keys for s in drawn} == {("i", "j"), ("j", "i")}
    chance = np.random.default_rng(0)
    with duckdb.connect() as con:
        for name, keys in tensors.items():
            con.execute(f"CREATE TABLE {name} ({', '.join(f'{k} INT' for k in keys)}, val FLOAT)")
            for place in np.ndindex(*(3,) * len(keys)):
                con.execute(
                    f"INSERT INTO {name} VALUES ({', '.join('?' * (len(keys) + 1))})",
                    [*place, int(chance.integers(9))],
                )
        answers = {
            json.dumps(sorted(con.sql(f"SELECT i, j, val FROM ({s.sql})").fetchall()))
            for s in drawn
        }
    assert len(answers) == 1


@pytest.mark.parametrize("batch", sample([(2, 3)], [(1, 6), (2, 3)]))
def test_encoder_agrees_with_its_peers(batch: tuple[int, int]) -> None:
    taken = encoder.measured(*batch, rounds=1, layers=1)
    assert "einsql" in taken.seconds


def test_encoder_is_numpys() -> None:
    tokens = np.array([[3, 1, 4], [1, 5, 9]])
    of = encoder.weights(1)
    found = encoder.connected(of, tokens, 1).execute(encoder.text(1)).fetch_numpy()
    np.testing.assert_allclose(found, _encoded(of, tokens), rtol=1e-3, atol=1e-4)


def _encoded(of: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    w = {name: array.astype(np.float64) for name, array in of.items()}

    def norm(x: np.ndarray, gain: str, constant: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + encoder.EPSILON)
        return np.asarray(centred / deviation * w[gain] + w[constant])

    x = norm(w["word"][tokens] + w["position"][: tokens.shape[1]], "g", "c")
    q, k, v = (np.einsum("bti,hdi->bhtd", x, w[f"w{p}0"]) + w[f"b{p}0"][:, None] for p in "qkv")
    e = np.exp(np.einsum("bhtd,bhud->bhtu", q, k) / np.sqrt(encoder.DEPTH))
    a = np.einsum("bhtu,bhud->bthd", e / e.sum(-1, keepdims=True), v)
    y = norm(np.einsum("bthd,ohd->bto", a, w["wo0"]) + w["bo0"] + x, "g10", "c10")
    h = y @ w["w10"].T + w["b10"]
    z = (0.5 * h * (1 + erf(h / np.sqrt(2)))) @ w["w20"].T + w["b20"]
    return np.asarray(norm(z + y, "g20", "c20").mean(1))


def test_graph_algorithms_are_networkx_and_scipys() -> None:
    networkx = pytest.importorskip("networkx")
    g = graphs.graph(9)  # of more keys than are read as an array
    directed = networkx.from_scipy_sparse_array(g.directed, create_using=networkx.DiGraph)
    found = {}
    for name, algorithm in graphs.ALGORITHMS.items():
        ours, theirs = algorithm(g)
        found[name] = ours()
        np.testing.assert_allclose(found[name], theirs(), rtol=1e-9)
    start = int(np.argmax(g.directed.sum(axis=1)))
    depths = networkx.single_source_shortest_path_length(directed, start)
    assert dict(enumerate(found["breadth-first search"])) == {
        v: depths.get(v, -1) for v in range(g.vertices)
    }
    undirected = directed.to_undirected()
    for part in networkx.connected_components(undirected):
        assert set(found["components"][list(part)]) == {min(part)}
    assert found["triangles"] == sum(networkx.triangles(undirected).values()) // 3
    lengths = networkx.from_scipy_sparse_array(g.lengths, create_using=networkx.DiGraph)
    nearest = networkx.single_source_dijkstra_path_length(lengths, start)
    for v, length in nearest.items():
        assert found["shortest paths"][v] == length


def test_recommender_agrees_with_duckdb() -> None:
    found = list(recommender.findings(2_000, only=" of ", rounds=1))
    assert len(found) == 4
