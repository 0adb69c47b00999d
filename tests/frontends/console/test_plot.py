import io
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.frontends.console import colours
from einsql.frontends.console.chart import draw_chart
from einsql.frontends.console.heat import draw_heat, means
from einsql.frontends.console.main import main
from einsql.frontends.console.picture import Picture, picture_of
from einsql.frontends.console.settings import CommandError

CODE = re.compile(r"\x1b\[[0-9;]*m")

Draw = Callable[[str], Picture]


@pytest.fixture
def draw() -> Draw:
    connection = einsql.connect()
    connection.register("x", np.arange(12.0).reshape(3, 4), dims=("i", "j"))
    connection.register("c", np.ones((2, 2, 2)), dims=("a", "b", "c"))
    return lambda sql: picture_of(connection.execute(sql))


def test_results_become_pictures(draw: Draw) -> None:
    whole = draw("SELECT j, i, val FROM x WHERE i > 0")
    assert (whole.keys, whole.origin) == (("j", "i"), (0, 1))
    assert whole.values["val"].tolist() == [[4, 8], [5, 9], [6, 10], [7, 11]]
    assert whole.bounds(1) == (1, 2)
    lines = draw("SELECT SUM(val) AS s, i, COUNT(*) AS n FROM x GROUP BY i")
    assert {name: list(a) for name, a in lines.values.items()} == {"s": [6, 22, 38], "n": [4] * 3}
    tiles = draw("SELECT i, j, tile FROM TILES(x, 3, 2)")
    assert tiles.values["tile"].shape == (3, 4)
    holes = draw("SELECT i, j, CAST(val AS INTEGER) AS n FROM x WHERE i <> j")
    assert np.isnan(holes.values["n"]).sum() == 3
    rows = draw("SELECT val FROM x WHERE i = 1")  # its keys are not shown
    assert (rows.keys, rows.values["val"].tolist()) == (("row",), [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT a, b, c, val FROM c", "has 3: a, b, c"),
        ("SELECT SUM(val) AS s FROM x", "single row"),
        ("SELECT i, j FROM x", "keys only"),
        ("SELECT i, j, val FROM x WHERE val > 99", "no rows"),
        ("SELECT i, val FROM x", "same i"),
        ("SHOW SETTINGS", "no column of numbers"),
        ("SELECT i, j, val / 0 AS v FROM x", "no finite value"),
    ],
)
def test_what_cannot_be_drawn_says_why(draw: Draw, sql: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        draw(sql)


def test_a_heat_map_shows_each_value_and_leaves_holes() -> None:
    picture = Picture(("i", "j"), (0, 5), {"v": np.array([[0.0, 1], [np.nan, 2]])})
    lines = list(draw_heat(picture, 20, 9, colours.NONE))
    assert lines[0] == "v over i (down) and j (across)"
    assert [line[2:] for line in lines[1:5]] == ["....++++", "....++++", "    @@@@", "    @@@@"]
    assert lines[1].startswith("0 ")
    assert lines[4].startswith("1 ")
    for bits, first in ((colours.FULL, "38;2;68;1;84"), (colours.INDEXED, "38;5;53")):
        drawn = list(draw_heat(picture, 20, 7, bits))
        assert f"\x1b[{first}m" in drawn[1]
        assert [CODE.sub("", line)[2:] for line in drawn[1:3]] == ["▀▀▀▀", "  ▀▀"]
        assert all(line.endswith(colours.RESET) for line in drawn[1:3])


def test_a_large_map_shows_means() -> None:
    array = np.arange(1000.0 * 900).reshape(1000, 900)
    array[0, :] = np.nan
    picture = Picture(("i", "j"), (0, 0), {"v": array})
    lines = [CODE.sub("", line) for line in draw_heat(picture, 60, 24, colours.FULL)]
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 60
    assert "means of" in lines[0]
    assert np.allclose(means(array[1:], (1, 1)), np.nanmean(array))
    assert means(array[:2, :4], (2, 2))[1].tolist() == [900.5, 902.5]


def test_a_chart_runs_from_corner_to_corner() -> None:
    picture = Picture(("t",), (10,), {"v": np.linspace(-1, 1, 300), "w": np.full(300, np.nan)})
    lines = list(draw_chart(picture, 40, 12, colours.NONE))
    assert lines[0] == "v, w over t"
    assert len(lines) <= 11
    assert max(map(len, lines)) <= 40
    assert lines[1].startswith(" 1.0 ┤")
    assert lines[-3].startswith("-1.0 ┤")
    assert lines[-3][6] != " "
    assert lines[1][-1] != " "
    assert re.fullmatch(r" +10 +309", lines[-1])


@pytest.mark.parametrize("values", [[3.0], [np.nan, 2, np.nan], [1e308, -1e308], [5.0, np.inf]])
def test_odd_values_are_drawn(values: list[float]) -> None:
    line = Picture(("t",), (0,), {"v": np.array(values)})
    flat = Picture(("i", "j"), (0, 0), {"v": np.array([values])})
    for bits in (colours.NONE, colours.INDEXED, colours.FULL):
        assert any(0x2800 < ord(c) < 0x2900 for c in "".join(draw_chart(line, 40, 10, bits)))
        assert len(list(draw_heat(flat, 40, 10, bits))) >= 4


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def depth(term: str, colour: str = "", off: str = "") -> int:
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLORTERM", colour)
        monkeypatch.setenv("NO_COLOR", off)
        return colours.depth(Terminal())

    assert depth("xterm", "truecolor") == colours.FULL
    assert depth("xterm-256color") == colours.INDEXED
    assert depth("xterm") == depth("dumb", "truecolor") == colours.NONE
    assert depth("xterm", "truecolor", "1") == colours.NONE
    assert colours.depth(io.StringIO()) == colours.NONE


def test_images_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="images need matplotlib")
    heat, line = tmp_path / "heat.png", tmp_path / "line.svg"
    status = main([
        "-no-init",
        "-c", "SELECT a.i, b.j, a.i - b.j AS v FROM range(5) AS a(i), range(4) AS b(j)",
        "-c", f".plot {heat}",
        "-c", "SELECT a.i, 1 AS v, 2 AS w FROM range(5) AS a(i)", "-c", f".plot {line}",
    ])  # fmt: skip
    assert (status, capsys.readouterr().err) == (0, "")
    assert struct.unpack(">8s8xII", heat.read_bytes()[:24]) == (b"\x89PNG\r\n\x1a\n", 960, 720)
    assert "</svg>" in line.read_text()


def test_plots_that_fail_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    query = "SELECT a.i, 1 AS v FROM range(5) AS a(i)"
    for commands, reason in [
        ([".plot"], "no result to plot"),
        ([query, ".open", ".plot"], "no result to plot"),
        ([query, ".plot x.doc"], "does not end in .png"),
        ([query, ".plot w"], ".plot draws the last result"),
        ([query, ".plot w"], "SELECT it first"),
        ([query, f".plot {tmp_path}/x.png"], 'pip install "einsql[plot]"'),
    ]:
        status = main(["-no-init", *(word for c in commands for word in ("-c", c))])
        assert (status, reason in capsys.readouterr().err) == (1, True)
