"""A few hundred random queries against DuckDB; tests/fuzz.py runs many more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.oracle.campaign import Report, campaign
from tests.support.oracle.choices import Choices, shrink
from tests.support.oracle.compare import difference
from tests.support.oracle.coverage import missed
from tests.support.oracle.data import random_database
from tests.support.oracle.everywhere import everywhere
from tests.support.oracle.generate import Generator
from tests.support.samples import sample

QUERIES = sample(30, 50)
LEAST_IN_FRAGMENT = 0.9
MOST_EMPTY = 0.15


def healthy(report: Report) -> None:
    """Fails with the whole report if something differs or little is tested."""
    assert not report.findings, report.text()
    assert report.in_fragment >= LEAST_IN_FRAGMENT * report.expected, report.text()
    assert report.empty <= MOST_EMPTY * report.queries, report.text()
    assert report.verdicts["refused"] <= MOST_EMPTY * report.queries, report.text()


@pytest.mark.parametrize("seed", sample([1], range(1, 8)))
def test_random_queries_agree_with_duckdb(seed: int) -> None:
    healthy(campaign(QUERIES, seed, repros=2))


def test_compiled_kernels_agree_with_duckdb() -> None:
    healthy(campaign(QUERIES, 101, settings={"jit": "auto"}, repros=0))


@pytest.mark.parametrize("seed", sample([201], range(200, 204)))
def test_answers_depend_neither_on_sites_nor_on_strategy(seed: int) -> None:
    """Every query runs in eight ways; `make everywhere` runs 2000 queries in more than fifty."""
    found = everywhere(sample(6, 25), seed, sample=True)
    assert not found.findings, found.text()
    assert found.moved


@pytest.mark.parametrize("seed", sample([301], [301, 302, 303]))
def test_queries_run_as_blocks_agree_with_duckdb(seed: int) -> None:
    report = campaign(30, seed, settings={"jit": "never", "level": "blocks"}, repros=2)
    assert not report.findings, report.text()
    assert set(report.lowered) == {"lowered"}, report.text()


def test_generated_queries_reach_every_line_of_the_semantics_table() -> None:
    hits: Counter[str] = Counter()
    for seed in range(60):
        db = random_database(Choices(random.Random(seed)))
        for n in range(15):
            query = Generator(Choices(random.Random(1000 * seed + n)), db).query()
            hits.update(query.tags | db.tags)
    assert not missed(hits)


def test_shrinking_finds_a_small_witness() -> None:
    made = [random.Random(7).randrange(100) for _ in range(80)]
    made[33] = 90
    assert shrink(made, lambda c: any(v > 70 for v in c)) == [71]


def test_floats_are_compared_within_their_bounds() -> None:
    nan = float("nan")
    assert not difference([(0, 1.0)], [(0, 1.25, 0.125)], [1])
    assert difference([(0, 1.0)], [(0, 1.5, 0.125)], [1])
    assert difference([(0, None)], [(0, 1.0, 0.125)], [1])
    assert difference([(0, nan)], [(0, 1.0, 0.125)], [1])
    assert not difference([(0, nan)], [(0, nan, nan)], [1])
    assert difference([(0, 1)], [(0, 1.0)], [])
    assert difference([(1,), (1,)], [(1,), (2,)], [])
    assert not difference([(-0.0,), (nan,)], [(nan,), (0.0,)], [])
