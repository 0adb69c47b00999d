"""The scripts of examples/ that learn: what they print is what NumPy finds, or good enough."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from einsql.frontends.console.main import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Table = list[dict[str, float]]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[Table]]:
    """Runs a script at the command line, from the repository's root; gives what it prints."""

    def script(name: str) -> list[Table]:
        monkeypatch.chdir(ROOT)
        assert main(["-no-init", "-csv", "-f", f"examples/{name}"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        tables: list[list[str]] = []
        for line in out.splitlines():
            if line[0].isalpha():
                tables.append([])
            tables[-1].append(line)
        rows = [csv.DictReader(io.StringIO("\n".join(t))) for t in tables]
        return [[{k: float(v) for k, v in row.items()} for row in table] for table in rows]

    return script


def test_scripts_that_learn_are_short() -> None:
    for path in EXAMPLES.glob("*.sql"):
        if path.name == "llm.sql":  # a whole language model
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        assert sum(bool(line) and not line.startswith("--") for line in lines) <= 40, path.name


def test_k_means_is_lloyds_algorithm(run: Callable[[str], list[Table]]) -> None:
    steps, found = run("kmeans.sql")
    x = np.load(EXAMPLES / "data" / "digits.npy").astype(np.float64)
    labels = np.load(EXAMPLES / "data" / "labels.npy")
    centres, wanted = x[:10].copy(), []

    def distances() -> np.ndarray:
        return np.asarray(((x[:, None] - centres) ** 2).sum(2))

    for _ in range(25):
        nearest = distances().argmin(1)
        centres = np.stack([x[nearest == c].mean(0) for c in range(10)])
        wanted.append(distances().min(1).sum())
    np.testing.assert_allclose([row["inertia"] for row in steps], wanted, rtol=1e-6)
    nearest = distances().argmin(1)
    counts = {(r["cluster"], r["digit"]): r["images"] for r in found}
    assert counts == {
        (c, d): n for c in range(10) for d in range(10)
        if (n := np.sum((nearest == c) & (labels == d)))
    }  # fmt: skip


def test_neighbours_in_a_learnt_metric(run: Callable[[str], list[Table]]) -> None:
    steps, (found,) = run("riemannian_neighbours.sql")
    assert steps[-1]["error"] < 1e-12  # of the inverse
    x = np.load(EXAMPLES / "data" / "digits.npy").astype(np.float64)
    labels = np.load(EXAMPLES / "data" / "labels.npy")
    known = np.arange(len(x)) % 3 != 1
    apart = x - np.stack([x[known & (labels == d)].mean(0) for d in range(10)])[labels]
    metric = np.linalg.inv(apart[known].T @ apart[known] / known.sum() + 2 * np.eye(64))
    q, k = x[~known], x[known]
    near = np.stack([np.einsum("kp,pr,kr->k", k - one, metric, k - one).argmin() for one in q])
    assert found["accuracy"] == pytest.approx(np.mean(labels[known][near] == labels[~known]))


@pytest.mark.parametrize(
    ("name", "measure", "least"),
    [("logistic_regression.sql", "accuracy", 0.96), ("ffnn.sql", "accuracy", 0.97)],
)
def test_digits_are_learnt(
    run: Callable[[str], list[Table]], name: str, measure: str, least: float
) -> None:
    steps, (found,) = run(name)
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert steps[0]["loss"] > 2.2
    assert steps[-1]["loss"] < 0.1
    assert found[measure] >= least


def test_factors_predict_what_was_held_back(run: Callable[[str], list[Table]]) -> None:
    steps, (found,) = run("factorisation.sql")
    losses = [row["rmse"] for row in steps]
    assert losses[-1] < 0.1 < losses[0]
    assert found["rmse"] < 0.7 * found["rmse_of_means"]
