"""Draws the pictures of README.md from the results of its examples: `python -m docs.pictures`."""

from __future__ import annotations

import doctest
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
BLUE = "#3a80c4"


def results() -> dict[str, Any]:
    """Runs the examples of README.md and returns their variables.

    Raises:
        SystemExit: An example gives another result than README.md shows.
    """
    os.chdir(ROOT)
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("```", "")
    names: dict[str, Any] = {"__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(text, names, "README.md", "README.md", 0)
    runner = doctest.DocTestRunner(verbose=False)
    if runner.run(test, clear_globs=False).failed:
        raise SystemExit("An example of README.md gives another result")
    return test.globs


def save(name: str) -> None:
    """Saves the current figure without what changes from run to run."""
    pyplot.savefig(IMAGES / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
    pyplot.close()


def edges(names: dict[str, Any]) -> None:
    """The digit, and the result of the filter."""
    digit = np.load(ROOT / "examples" / "data" / "digits.npy")[7].reshape(8, 8)
    _, axes = pyplot.subplots(1, 2, figsize=(5, 2.6))
    for axis, image, title in zip(
        axes, (digit, names["edges"]), ("the image", "its vertical edges"), strict=True
    ):
        axis.imshow(image, cmap="gray" if axis is axes[0] else "RdBu")
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    save("edges.png")


def losses(names: dict[str, Any]) -> None:
    """The loss of each step."""
    _, axis = pyplot.subplots(figsize=(5, 2.4))
    axis.plot(names["losses"], color=BLUE)
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.set_ylim(bottom=0)
    save("losses.png")


def ranks(names: dict[str, Any]) -> None:
    """The rank of each person."""
    values = names["con"].execute("SELECT i, val FROM rank").fetch_numpy()
    _, axis = pyplot.subplots(figsize=(5, 2.4))
    axis.bar(np.arange(len(values)), values, color=BLUE)
    axis.set_xlabel("person")
    axis.set_ylabel("PageRank")
    save("ranks.png")


def main() -> None:
    """Writes all pictures."""
    IMAGES.mkdir(exist_ok=True)
    names = results()
    for draw in (edges, losses, ranks):
        draw(names)
    (IMAGES / "plan.svg").write_text(names["plan"].svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
