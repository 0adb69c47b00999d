"""The evaluation: a small experiment from its processes to its tables, and the committed page."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluation import claims, comparisons, page, peers, pictures, run
from benchmarks.evaluation.contents import PARTS
from benchmarks.evaluation.processes import Process
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
    settings = Settings(False, 3, tmp_path, passes=2)
    begun = run.Run.opened(tmp_path / "run.json", settings)
    of = experiment(SMALL)
    begun.content["experiments"][SMALL] = {
        "cases": {c.name: measured(SMALL, of, c, settings) for c in of.cases(False)},
        "tables": run.computed(SMALL, False),
        "passes": 1,
    }
    begun.write()
    again = run.Run.opened(tmp_path / "run.json", settings)  # an interrupted run continues
    again.add(SMALL, settings, 0)
    assert again.content == begun.content
    for _ in range(2):  # a pass that the file has is not run again
        again.add(SMALL, settings, 1)
    assert again.content == json.loads((tmp_path / "run.json").read_text())
    return again.content


def test_an_experiment_runs_from_processes_to_tables(small: dict[str, Any], tmp_path: Path) -> None:
    (case,) = small["experiments"][SMALL]["cases"].values()
    entries = case["contestants"]
    assert [len(entries[n]["seconds"]) for n in ("einsql", "NumPy")] == [3, 3]
    assert max(entries[n]["difference"] for n in ("einsql", "NumPy")) < 1e-5
    assert entries["wrong"]["absent"].startswith("a wrong answer")
    assert entries["absent"]["absent"].startswith("it is not installed")
    text = page.text(small)
    assert "3 rounds of each case in 2 passes over all experiments." in text
    assert "- absent is empty for 64²: it is not installed" in text
    assert "| 2 | 5 | 7 | eindecomp |\n| 4 | 9 | 8 | equal |" in text
    assert f"Where eindecomp is not the least: {page.NO_REASON}" in text
    drawn = {p.name: p.read_text() for p in pictures.write(small, tmp_path / "pictures")}
    assert set(drawn) == {"times.svg", f"{SMALL}-0.svg"}
    assert all(number in drawn[n] for n, number in pictures.fingerprints(small).items())


def test_a_missing_generator_of_inputs_is_the_reason_of_all_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    networks = experiment("networks")
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    found = measured("networks", networks, networks.cases(False)[0], Settings(False, 1, tmp_path))
    reasons = {entry["absent"] for entry in found["contestants"].values()}
    assert list(found["contestants"]) == [c.name for c in networks.contestants]
    assert reasons == {f"the generators are missing: it is not installed: {peers.INSTALL}"}


def test_a_run_of_another_commit_is_discarded_and_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    settings = Settings(False, 2, tmp_path)
    run.Run.opened(path, settings).write()
    capsys.readouterr()
    monkeypatch.setattr(run, "commit", lambda: "other")
    assert run.Run.opened(path, settings).content["commit"] == "other"
    assert "is discarded: a run of commit" in capsys.readouterr().err


def test_the_seconds_of_an_experiment_are_those_of_all_its_parts() -> None:
    clock = iter([0.0, 2.0, 5.0, 100.0, 104.0]).__next__
    done: dict[str, Any] = {}
    lap = run.Lap(done, clock)
    lap.add()
    lap.add()
    run.Lap(done, clock).add()  # after an interruption
    assert done == {"seconds": 9.0}


def test_threads_of_a_contestant_do_not_depend_on_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_PROC_BIND", "VECLIB_MAXIMUM_THREADS", "MKL_DYNAMIC"):
        monkeypatch.setenv(name, "7")
    assert not [n for n in peers.environment() if n.startswith(("OMP", "VECLIB", "MKL"))]
    own = peers.environment(peers.usable_cores())
    assert {own[name] for name in peers.THREADS} == {str(peers.usable_cores())}
    assert "OMP_PROC_BIND" not in own


def test_memory_is_that_of_private_and_shared_pages() -> None:
    """Two processes share 64 MiB, and each has 32 MiB of its own that it frees."""
    process = Process([sys.executable, "-c", MEMORY_OF_TWO], dict(os.environ))
    try:
        process.ask("start")
        process.forget_peak()
        before = process.memory()
        process.ask("allocate")
        after = process.memory()
    finally:
        process.close()
    mib = 1 << 20
    assert 64 * mib <= before["now"] < 128 * mib
    assert 60 * mib <= after["peak"] - before["now"] <= 80 * mib
    assert after["now"] - before["now"] < 16 * mib


MEMORY_OF_TWO = """
import mmap, os, sys
shared = mmap.mmap(-1, 64 << 20)
def touch(memory, value=b"x"):
    for place in range(0, len(memory), 4096):
        memory[place:place + 1] = value
there, back = os.pipe(), os.pipe()
child = os.fork() == 0
print('{"ready": 1}', flush=True) if not child else None
while True:
    word = os.read(there[0], 1) if child else sys.stdin.readline()[:1].encode()
    if not word or word == b"q":
        break
    if not child:
        os.write(there[1], word)
    if word == b"s":
        touch(shared)
    else:
        own = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        touch(own)
        own.close()
    if child:
        os.write(back[1], b"1")
    else:
        os.read(back[0], 1)
        print('{"done": 1}', flush=True)
if not child:
    os.write(there[1], b"q")
"""


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
        lines = [x for x in pins.read_text().splitlines() if not x.startswith("#")]
        assert all(re.fullmatch(r"[\w.-]+==\S+", line) for line in lines)


@pytest.mark.skipif(not run.complete(), reason="there is no complete run yet")
def test_the_page_shows_the_newest_run() -> None:
    content, previous = page.newest()
    shown = page.DOCUMENT.read_text(encoding="utf-8").partition(page.BEGIN)[2]
    assert shown.partition(page.END)[0].strip() == page.text(content, previous)
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
        first, second = (comparisons.verdicts(r["experiments"][name]) for r in (one, other))
        for case in set(first) & set(second):
            if len(first[case].tied) == len(second[case].tied) == 1:
                assert first[case].fastest == second[case].fastest, f"{name}, {case}"
