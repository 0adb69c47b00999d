"""The evaluation: a small experiment from its processes to its tables, and the committed page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluation import claims, page, peers, pictures, run, statistics
from benchmarks.evaluation.contents import PARTS
from benchmarks.evaluation.running import Settings, measured
from benchmarks.evaluation.worker import experiment

SMALL = "tests.support.evaluated"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The content of a run of one small experiment."""
    monkeypatch.setitem(PARTS, "Small", (SMALL,))
    monkeypatch.setattr(run, "machine", lambda: {
        "lines": ["CPU: one"], "memory_bytes": 1, "kernel": "6", "load": 0.0,
    })  # fmt: skip
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "absent-peer.txt").write_text("nothing==1")
    monkeypatch.setattr(peers, "PINS", tmp_path / "pins")
    made = run.Run.opened(tmp_path / "run.json", False, 2)
    of, settings = experiment(SMALL), Settings(False, 2, tmp_path)
    made.content["experiments"][SMALL] = {
        "cases": {c.name: measured(SMALL, of, c, settings) for c in of.cases(False)},
        "tables": run.computed(SMALL, False),
        "complete": True,
    }
    made.write()
    again = run.Run.opened(tmp_path / "run.json", False, 2)  # an interrupted run continues
    again.add(SMALL, settings)
    assert again.content == json.loads((tmp_path / "run.json").read_text())
    return again.content


def test_an_experiment_runs_from_processes_to_tables(small: dict[str, Any], tmp_path: Path) -> None:
    (case,) = small["experiments"][SMALL]["cases"].values()
    entries = case["contestants"]
    assert [len(entries[n]["seconds"]) for n in ("einsql", "NumPy")] == [2, 2]
    assert max(entries[n]["difference"] for n in ("einsql", "NumPy")) < 1e-5
    assert entries["wrong"]["absent"].startswith("a wrong answer")
    assert entries["absent"]["absent"].startswith("it is not installed")
    text = page.text(small)
    assert "- absent is empty for 64²: it is not installed" in text
    assert "| 2 | 5 | 7 | eindecomp |\n| 4 | 9 | 8 | equal |" in text
    assert f"Where eindecomp is not the least: {page.NO_REASON}" in text
    drawn = {p.name: p.read_text() for p in pictures.write(small, tmp_path / "pictures")}
    assert set(drawn) == {"times.svg", f"{SMALL}-0.svg"}
    assert all(number in drawn[n] for n, number in pictures.fingerprints(small).items())


def test_verdicts_follow_intervals() -> None:
    clear = statistics.verdict({"einsql": [1.0, 1.1, 1.0], "a": [2.0, 2.1, 2.2]})
    assert (clear.fastest, clear.word) == ("einsql", "won")
    close = statistics.verdict({"einsql": [1.0, 1.3, 1.0], "a": [1.1, 0.9, 0.95]})
    assert (close.fastest, close.word, close.tied) == ("a", "tie", ("einsql", "a"))
    slow = statistics.verdict({"einsql": [2.0, 2.1, 2.2], "a": [1.0, 1.1, 1.0]})
    assert (slow.word, slow.tied) == ("lost", ("a",))


def test_every_experiment_has_its_place_and_pins_its_peers() -> None:
    folder = Path(run.__file__).parent
    listed = run.names()
    assert sorted(listed) == sorted(
        p.stem for p in (folder / "experiments").glob("*.py") if p.stem != "__init__"
    )
    pinned = {p.stem for p in (folder / "peers").glob("*.txt")} | {"scalapack", "einsql"}
    for name in listed:
        of = experiment(name)
        assert {c.peer for c in of.contestants} <= pinned, name
        for full in (False, True):
            cases = [c.name for c in of.cases(full)]
            assert len(set(cases)) == len(cases), name
    for pins in (folder / "peers").glob("*.txt"):
        assert all(re.fullmatch(r"[\w.-]+==\S+", line) for line in pins.read_text().split())


@pytest.mark.skipif(not run.complete(), reason="there is no complete run yet")
def test_the_page_shows_the_newest_run() -> None:
    content = json.loads(run.complete()[-1].read_text(encoding="utf-8"))
    shown = page.DOCUMENT.read_text(encoding="utf-8").partition(page.BEGIN)[2]
    assert shown.partition(page.END)[0].strip() == page.text(content)
    readme = claims.README.read_text(encoding="utf-8").partition(claims.BEGIN)[2]
    assert readme.partition(claims.END)[0].strip() == claims.text(content)
    drawn = {p.name: p.read_text(encoding="utf-8") for p in page.FOLDER.glob("*.svg")}
    expected = pictures.fingerprints(content)
    assert set(drawn) == set(expected)
    assert [n for n, number in expected.items() if number not in drawn[n]] == []


@pytest.mark.skipif(len(run.complete()) < 2, reason="there are no two complete runs yet")
def test_the_newest_runs_agree_on_who_is_fastest() -> None:
    one, other = (json.loads(p.read_text(encoding="utf-8")) for p in run.complete()[-2:])
    for name in set(one["experiments"]) & set(other["experiments"]):
        first, second = (page.verdicts(r["experiments"][name]) for r in (one, other))
        for case in set(first) & set(second):
            if len(first[case].tied) == len(second[case].tied) == 1:
                assert first[case].fastest == second[case].fastest, f"{name}, {case}"
