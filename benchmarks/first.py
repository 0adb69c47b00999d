"""The first answer of a statement, beside NumPy doing the same: fresh processes, new shapes.

`python -m benchmarks first` prints medians and the worst;
`python -m benchmarks.first [--only TEXT] [--rounds 5] [--json PATH]` prints a line for each
statement, or for those with TEXT in their name.

A process is measured from its start to its end. `empty` and `warm` run a statement once, with an
empty cache of kernels and with one that has the statement's kernels. NumPy's process loads the
same arrays and computes the same without einsql. `start` imports einsql, connects, registers the
arrays and ends. A session of its own repeats the statement, and runs it on arrays of another
shape and on the first shape again; the cache has no kernels of the other shape.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.report import Finding, Section, duration
from benchmarks.statements import STATEMENTS, Statement

ROUNDS = 5
SHOWN = 5
"""Slowest statements of a mode, which are named."""
TOLERANCE = 1e-4
"""Largest difference from NumPy, as a share of the largest element: sums of FLOAT."""
EMPTY, EMPTY_WORST, WARM, SHAPE = 0.2, 0.5, 0.03, 0.01
"""Seconds aimed for."""
DEMO = ("digits_knn.sql", "digits_covariance.sql", "karate_shortest_paths.sql")
"""Parts of examples/demo.py."""


@dataclass(frozen=True)
class Line:
    """Seconds of a statement, medians of the rounds.

    Attributes:
        name: The statement's name.
        numpy: NumPy's process.
        start: A process of einsql that ends before the statement.
        empty: The process with an empty cache.
        warm: The process with the statement's kernels.
        first: The first run in a session with the statement's kernels.
        repeated: A repeated run.
        new: The first run on another shape.
        new_repeated: A repeated run on it.
        seen: The first run on the first shape again.
        processor: Seconds of all processors in the processes, by what runs.
        rounds: The seconds of all rounds, by the attribute of their median.
    """

    name: str
    numpy: float
    start: float
    empty: float
    warm: float
    first: float
    repeated: float
    new: float
    new_repeated: float
    seen: float
    processor: Mapping[str, float]
    rounds: Mapping[str, Sequence[float]]

    def above(self) -> dict[str, float]:
        """Seconds above what each mode is compared with."""
        return {
            "empty − NumPy": self.empty - self.numpy,
            "warm − NumPy": self.warm - self.numpy,
            "warm − start − repeated": self.warm - self.start - self.repeated,
            "new shape − repeated": self.new - self.new_repeated,
            "seen shape − repeated": self.seen - self.repeated,
        }


AIMS: dict[str, tuple[float | None, float | None]] = {
    "empty − NumPy": (EMPTY, EMPTY_WORST),
    "warm − NumPy": (None, None),
    "warm − start − repeated": (None, WARM),
    "new shape − repeated": (None, SHAPE),
    "seen shape − repeated": (None, SHAPE),
}
"""The most seconds that are aimed for, of the median statement and of the worst."""


def first() -> Section:
    """All statements, and the examples of the demo beside DuckDB."""
    lines = [line(number) for number in range(len(STATEMENTS))]
    return Section(
        f"First answers of {len(lines)} statements: seconds above NumPy's or a repeated run's",
        (*findings(lines), *demo()),
    )


def findings(lines: Sequence[Line]) -> Iterator[Finding]:
    """The median and the worst statements of each mode."""
    for mode, (aim, worst) in AIMS.items():
        above = sorted(((x.above()[mode], x.name) for x in lines), reverse=True)
        yield _finding(f"{mode}, median", median(a for a, _ in above), aim)
        for number, (seconds, name) in enumerate(above[:SHOWN]):
            what = f"{mode}, {'the next' if number else 'the worst'}"
            yield _finding(what, seconds, None if number else worst, name)

    for what in ("empty", "einsql"):
        seconds = median(x.processor[what] - x.processor["numpy"] for x in lines)
        mode = "empty" if what == "empty" else "warm"
        yield _finding(f"{mode} − NumPy, median, seconds of the processors", seconds, None)


def _finding(what: str, seconds: float, aim: float | None, name: str = "") -> Finding:
    target = "" if aim is None else f"≤ {aim * 1e3:.0f} ms"
    met = None if aim is None else seconds <= aim
    return Finding(what, f"{seconds * 1e3:+.1f} ms", target, met, name)


def line(number: int, rounds: int = ROUNDS) -> Line:
    """Measures a statement, in processes that take turns.

    Raises:
        AssertionError: An answer is not NumPy's.
    """
    statement = STATEMENTS[number]
    with TemporaryDirectory(prefix="einsql-first-") as name:
        folder = Path(name)
        _store(statement, folder)
        run = _Process(number, folder)
        run("session", run.warm, jit="wait")  # compiles the kernels of both shapes
        _check(statement, folder)
        shutil.rmtree(run.warm)
        for what in ("numpy", "start", "einsql"):  # compiles the kernels of the first shape
            run(what, run.warm, jit="wait")
        with run.cache() as empty:
            run("einsql", empty, answer="first.answer.npy")
        _check(statement, folder)
        run.processor.clear()
        taken: dict[str, list[float]] = {}
        turns = _turns(run)
        shuffle = Random(0)
        for _ in range(rounds):
            for what in shuffle.sample(list(turns), len(turns)):
                for mode, seconds in turns[what]().items():
                    taken.setdefault(mode, []).append(seconds)
        _check(statement, folder)
    medians = {mode: median(seconds) for mode, seconds in taken.items()}
    processor = {what: median(seconds) for what, seconds in run.processor.items()}
    return Line(statement.name, **medians, processor=processor, rounds=taken)


def _turns(run: _Process) -> dict[str, Callable[[], dict[str, float]]]:
    def session() -> dict[str, float]:
        with run.cache(run.warm) as copy:
            run("session", copy)
        read = json.loads((run.folder / "session.json").read_text())
        return {
            "first": read["first"],
            "repeated": read["first, repeated"],
            "new": read["new"],
            "new_repeated": read["new, repeated"],
            "seen": read["seen"],
        }

    def empty() -> dict[str, float]:
        with run.cache() as cache:
            return {"empty": run("einsql", cache)}

    return {
        "numpy": lambda: {"numpy": run("numpy", run.warm)},
        "start": lambda: {"start": run("start", run.warm)},
        "warm": lambda: {"warm": run("einsql", run.warm)},
        "empty": empty,
        "session": session,
    }


@dataclass(frozen=True)
class _Process:
    """Runs processes of a statement.

    Attributes:
        number: The statement's number.
        folder: The directory of its arrays.
        processor: Seconds of all processors in each process so far, by what ran.
    """

    number: int
    folder: Path
    processor: dict[str, list[float]] = field(default_factory=dict)

    @property
    def warm(self) -> Path:
        return self.folder / "warm"

    def __call__(self, what: str, cache: Path, *, jit: str = "auto", answer: str = "") -> float:
        """Runs a process to its end; its seconds."""
        cache.mkdir(0o700, exist_ok=True)
        arguments = [what, str(self.number), str(self.folder)]
        if answer:
            arguments.append(str(self.folder / answer))
        seconds, processor = _whole([*_MODULE, *arguments], cache, jit).split()
        mode = "empty" if what == "einsql" and cache != self.warm else what
        self.processor.setdefault(mode, []).append(float(processor))
        return float(seconds)

    @contextmanager
    def cache(self, of: Path | None = None) -> Iterator[Path]:
        """A directory that ends with the context: empty, or a copy of another."""
        copy = self.folder / "cache"
        if of is not None:
            shutil.copytree(of, copy)
        yield copy
        shutil.rmtree(copy)


_MODULE = (sys.executable, "-m", "benchmarks.first_run")


def _whole(command: Sequence[str], cache: Path, jit: str) -> str:
    """Runs a process to its end; what it printed, its seconds and the processors'."""
    environment = {**os.environ, "EINSQL_CACHE_DIR": str(cache), "EINSQL_JIT": jit}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    wrapped = [sys.executable, "-S", "-m", "benchmarks.whole_process", *command]
    ran = subprocess.run(wrapped, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


def _store(statement: Statement, folder: Path) -> None:
    for shape, sizes in (("", statement.sizes), ("larger.", statement.larger())):
        for name, array in statement.arrays(sizes).items():
            np.save(folder / f"{shape}{name}.npy", array)


def _check(statement: Statement, folder: Path) -> None:
    shapes = {"first": statement.sizes, "new": statement.larger(), "seen": statement.sizes}
    for what, sizes in shapes.items():
        answer = np.load(folder / f"{what}.answer.npy")
        expected = np.asarray(statement.numpy(*statement.arrays(sizes).values()))
        error = np.abs(answer - expected).max() / np.abs(expected).max()
        if answer.shape != expected.shape or not error <= TOLERANCE:
            raise AssertionError(f"{statement.name}, {what}: {error} of the largest element")


_DEMO = """
import os, sys
from pathlib import Path
os.chdir(sys.argv[3])
sys.path.insert(0, "")
from examples import demo
sql = Path("examples", sys.argv[2]).read_text(encoding="utf-8")
print(getattr(demo, sys.argv[1])(sql)[1])
"""


def demo(rounds: int = ROUNDS) -> list[Finding]:
    """First runs of the demo's parts in fresh processes, with an empty cache, beside DuckDB."""
    found = []
    root = Path(__file__).parents[1]
    for part in DEMO:
        seconds: dict[str, list[float]] = {"run_einsql": [], "run_duckdb": []}
        for _ in range(rounds):
            for what, taken in seconds.items():
                with TemporaryDirectory(prefix="einsql-first-") as cache:
                    command = [sys.executable, "-c", _DEMO, what, part, str(root)]
                    taken.append(float(_whole(command, Path(cache), "auto").split()[0]))
        ours, theirs = (median(taken) for taken in seconds.values())
        found.append(
            Finding(
                f"demo, {part}: DuckDB / einsql",
                f"{theirs / ours:.2f}×",
                "≥ 1.0×",
                theirs >= ours,
                f"einsql {duration(ours)}, DuckDB {duration(theirs)}",
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    lines = []
    print("  ".join([*AIMS, "repeated", "statement"]))
    for number, statement in enumerate(STATEMENTS):
        if options.only in statement.name:
            lines.append(line(number, options.rounds))
            above = (f"{a * 1e3:{len(mode)}.1f}" for mode, a in lines[-1].above().items())
            print(*above, f"{lines[-1].repeated * 1e3:8.2f}", statement.name, sep="  ", flush=True)
    for finding in findings(lines):
        print("  ".join(finding.cells()))
    if not options.only:
        for finding in demo(options.rounds):
            print("  ".join(finding.cells()))
    if options.json:
        entries = [{**asdict(x), "above": x.above()} for x in lines]
        options.json.write_text(json.dumps(entries, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
