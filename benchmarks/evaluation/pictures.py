"""The pictures of a run: ratios of times, and lines of computed tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

from benchmarks import plots
from benchmarks.evaluation.comparisons import verdicts
from benchmarks.evaluation.worker import experiment

COLOURS = ("#2166ac", "#b2182b", "#4d9221", "#7b3294", "#e08214", "#35978f", "#666666")
VERDICTS = {"won": "met", "tie": "", "lost": "MISSED"}
"""What benchmarks.plots calls the colours of a line."""

Json = Mapping[str, Any]


def write(content: Json, folder: Path) -> list[Path]:
    """Writes all pictures of a run, and removes those of others."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    files = [folder / "times.svg"]
    ratios = times(content)
    if ratios:
        plots.draw(ratios, files[0], _fingerprint(data(content)["times.svg"]))
    for name, found in content["experiments"].items():
        for number, table in enumerate(found["tables"]):
            if table["plotted"]:
                files.append(folder / f"{name}-{number}.svg")
                _lines(table, files[-1])
    return files


def data(content: Json) -> dict[str, Any]:
    """What each picture draws, by its file's name."""
    drawn: dict[str, Any] = {
        "times.svg": {
            title: [[line.what, line.value, line.low, line.high] for line in lines]
            for title, lines in times(content).items()
        }
    }
    for name, found in content["experiments"].items():
        for number, table in enumerate(found["tables"]):
            if table["plotted"]:
                drawn[f"{name}-{number}.svg"] = series(table)
    return drawn


def fingerprints(content: Json) -> dict[str, str]:
    """A number of what each picture draws, which the picture has in its metadata."""
    return {name: _fingerprint(drawn) for name, drawn in data(content).items()}


def _fingerprint(drawn: Any) -> str:
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def times(content: Json) -> dict[str, list[plots.Line]]:
    """Ratios of times by experiment: all the others' over einsql's."""
    panels: dict[str, list[plots.Line]] = {}
    for name, found in content["experiments"].items():
        for case, verdict in verdicts(found).items():
            for other, r in verdict.ratios.items():
                word = "tie" if r.low <= 1 <= r.high else "won" if r.value > 1 else "lost"
                line = plots.Line(f"{case}, {other}", r.value, r.low, r.high, 1, VERDICTS[word])
                panels.setdefault(experiment(name).title, []).append(line)
    return panels


def series(table: Json) -> dict[str, tuple[list[float], list[float]]]:
    """Points of the columns that compete over a table's x."""
    x = list(table["columns"]).index(table["plotted"])
    found: dict[str, tuple[list[float], list[float]]] = {}
    for column in table["compete"]:
        at = list(table["columns"]).index(column)
        points = [
            (float(row[x]), float(row[at]))
            for row in table["rows"]
            if isinstance(row[at], int | float) and row[at] > 0
        ]
        found[column] = [p[0] for p in points], [p[1] for p in points]
    return found


def _lines(table: Json, path: Path) -> None:
    rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "einsql", "font.size": 9})
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    drawn = series(table)
    for (name, (xs, ys)), colour in zip(drawn.items(), _cycle(len(drawn)), strict=True):
        wide = 2.2 if name == table["ours"] else 1.2
        axes.plot(xs, ys, marker="o", markersize=3.5, color=colour, label=name, linewidth=wide)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({x for xs, _ in drawn.values() for x in xs})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlabel(table["plotted"])
    axes.set_ylabel(table["units"].get(table["compete"][0], ""))
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Description": _fingerprint(drawn)})


def _cycle(number: int) -> Sequence[str]:
    return [COLOURS[n % len(COLOURS)] for n in range(number)]
