"""A plan's faces: value, drawing and page, the page as a real browser shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.units import duration, quantity
from einsql.explain.drawing.figure import figure_of, folded
from einsql.explain.drawing.layout import GAP, layered
from einsql.explain.explanation import Explanation
from einsql.explain.repetitions import repetition
from einsql.explain.report import GraphReport
from einsql.frontends.console.main import main
from tests.support.samples import sample

SOFTMAX = """WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) AS v FROM x)
SELECT i, j, v / SUM(v) OVER (PARTITION BY i) AS v FROM e"""
PRODUCT = "SELECT i, k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY i, k"
GOLDEN = Path(__file__).parents[1] / "planner" / "plans" / "product.svg"


def connection() -> einsql.Connection:
    con = einsql.connect(config={"jit": "never"})
    con.register("x", np.ones((16, 32), np.float32), ("i", "j"))
    con.register("y", np.ones((32, 8), np.float32), ("j", "k"))
    return con


def network(layers: int) -> tuple[einsql.Connection, str]:
    con = connection()
    ctes = ["h0 AS (SELECT i, j, val AS v FROM x)"]
    for n in range(layers):
        con.register(f"w{n}", np.ones((32, 32), np.float32), ("j", "k"))
        ctes += [
            f"p{n} AS (SELECT h.i, w.k, SUM(h.v * w.val) AS v FROM h{n} h JOIN w{n} w USING (j) "
            "GROUP BY h.i, w.k)",
            f"h{n + 1} AS (SELECT h.i, h.j, h.v + TANH(p.v) AS v FROM h{n} h JOIN p{n} p "
            "ON h.i = p.i AND h.j = p.k)",
        ]
    return con, f"WITH {', '.join(ctes)} SELECT i, j, v FROM h{layers}"


# ---- the value


def test_a_plan_is_text_and_value_as_explain_gives_them() -> None:
    con = connection()
    plan = con.explain(SOFTMAX)
    assert str(plan) == "\n".join(r[0] for r in con.execute(f"EXPLAIN {SOFTMAX}").fetchall())
    assert repr(plan) == str(plan)
    sited = con.explain(PRODUCT, sites=4, verbose=True)
    for form, text in [("json", sited.to_json()), ("svg", sited.svg()), ("html", sited.html())]:
        query = f"EXPLAIN VERBOSE (FORMAT {form}, SITES 4) {PRODUCT}"
        (row,) = con.execute(query).fetchall()
        if form != "svg":  # how long each rule took differs
            assert without_times(row[0]) == without_times(text)
        else:
            assert row[0] == text
    assert json.loads(sited.to_json()) == sited.to_dict()
    assert con.settings.sites == 1


def without_times(text: str) -> str:
    return re.sub(r'"seconds": [^,}]*', "", text)


@pytest.mark.parametrize("form", ["svg", "json", "pdf"])
def test_explain_says_how_to_get_a_format(form: str) -> None:
    with pytest.raises(einsql.InterfaceError, match="has every format") as caught:
        einsql.connect().explain("SELECT 1", sites=2, format=form)
    assert "explain(sql).svg() is the drawing" in caught.value.hint
    assert ".html()" in caught.value.hint


def test_the_report_has_the_graph() -> None:
    report = connection().explain(PRODUCT, sites=4).to_dict()
    assert [i["id"] for i in report["inputs"]] == ["x", "y"]
    assert report["inputs"][0]["keys"] == {"i": [0, 16], "j": [0, 32]}
    node = report["nodes"][0]
    assert node["text"][0] == "r0[i:16, k:8]"
    assert [(r["id"], r["stored"], r["labels"]) for r in node["reads"]] == [
        ("x", True, ["i", "j"]), ("y", True, ["j", "k"]),
    ]  # fmt: skip
    assert len(node["cells"]) == 4
    assert report["result"] == report["nodes"][-1]["id"]
    # What operations bring here adds up to what they send, with the merging of sums.
    softmax = connection().explain(SOFTMAX, sites=3).to_dict()
    brought = sum(r["bytes_sent"] for n in softmax["nodes"] for r in n["reads"])
    assert brought <= softmax["total"]["bytes_sent"]


def test_one_site_tells_kernels_and_what_they_took() -> None:
    con = connection()
    node = con.explain(PRODUCT, analyze=True).to_dict()["nodes"][0]
    assert (node["kernel"], node["points"]) == ("blas", 16 * 32 * 8)
    assert node["measured"]["seconds"] > 0
    assert "measured" not in con.explain(PRODUCT).to_dict()["nodes"][0]
    assert "ms" in str(con.explain(PRODUCT, analyze=True))


def test_rewrites_show_what_changed() -> None:
    report = connection().explain("SELECT i, val * 1 + 0 AS v FROM x", verbose=True).to_dict()
    assert report["rewrites"]
    assert all(r["changes"] and r["law"] and r["fired"] for r in report["rewrites"])
    lines = [line for r in report["rewrites"] for line in r["changes"]]
    assert any(line.startswith("- ") for line in lines)
    assert any(line.startswith("+ ") for line in lines)


@pytest.mark.parametrize("sql", ["SELECT 1 + 1 AS two", "SELECT i, j, val FROM x"])
@pytest.mark.parametrize("sites", [1, 4])
def test_the_smallest_plans_are_drawn(sql: str, sites: int) -> None:
    for analyze in (False, True):
        plan = connection().explain(sql, sites=sites, analyze=analyze, verbose=True)
        ElementTree.fromstring(plan.svg())
        assert "<svg" in plan.html()


def test_the_page_names_the_tier_of_a_kernel() -> None:
    with einsql.connect(config={"sites": 3, "jit": "auto"}) as con:
        con.register("y", np.arange(12.0).reshape(3, 4), dims=("u", "i"))
        for _ in range(200):
            plan = con.explain("SELECT u, SUM(val) AS v FROM y GROUP BY u", analyze=True)
            page = plan.html()
            if "compiled" in plan.to_json():
                break
            time.sleep(0.05)  # until the kernel is compiled
        assert "compiled" in page


# ---- the drawing


@pytest.mark.parametrize("sites", [1, 2])
def test_what_a_group_took_is_said_once(sites: int) -> None:
    con = einsql.connect(config={"jit": "always"})
    con.register("x", np.ones((1024, 1024), np.float32), ("i", "j"))
    report = con.explain(SOFTMAX, sites=sites, analyze=True).report
    assert isinstance(report, GraphReport)
    assert report.nodes[0].group is not None
    assert report.nodes[0].group.nodes == ["r0", "r1", "r2", "r3"]
    *others, last = figure_of(report).boxes[1:]
    assert {(b.notes[-1], b.share) for b in others} == {("measured with r3", None)}
    assert last.share is not None
    assert last.notes[-1].startswith("measured ")


def test_the_drawing_is_golden() -> None:
    drawn = connection().explain(PRODUCT, sites=8).svg()
    if os.environ.get("EINSQL_GOLDEN"):
        GOLDEN.write_text(drawn, encoding="utf-8")
    assert drawn == GOLDEN.read_text(encoding="utf-8")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    n = draw(st.integers(0, 14))
    sizes = [
        (float(draw(st.integers(20, 300))), float(draw(st.integers(20, 120)))) for _ in range(n)
    ]
    pairs = [(a, b) for b in range(n) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    return sizes, edges


@settings(max_examples=sample(20, 150))
@given(graphs())
def test_boxes_stand_apart_and_edges_run_down(
    graph: tuple[list[tuple[float, float]], list[tuple[int, int]]],
) -> None:
    sizes, edges = graph
    made = layered(sizes, edges)
    assert made == layered(sizes, edges)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(made.corners, sizes, strict=True)]
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert min(left, top) >= 0
        assert right <= made.width
        assert bottom <= made.height
        for other in boxes[:n]:
            beside = right + GAP / 2 <= other[0] or other[2] + GAP / 2 <= left
            assert beside or bottom <= other[1] or other[3] <= top
    for (source, target), path in zip(edges, made.paths, strict=True):
        assert all(a[1] <= b[1] for a, b in pairwise(path))
        assert boxes[source][0] <= path[0][0] <= boxes[source][2]
        assert boxes[target][0] <= path[-1][0] <= boxes[target][2]
        assert path[0][1] == boxes[source][3]
        assert path[-1][1] == boxes[target][1]


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ("abcabcabcabcx", (0, 3, 4)), ("xyabcdabcdabcdabcdz", (2, 4, 4)), ("abcabc", None),
        ("aaaaaaa", (0, 1, 7)), ("aaa", None), ("", None), ("abcdefgh", None),
    ],
)  # fmt: skip
def test_repetition(items: str, found: tuple[int, int, int] | None) -> None:
    assert repetition(items) == found


def test_layers_are_folded_and_nothing_is_lost() -> None:
    con, sql = network(12)
    report = con.explain(sql, sites=4).report
    assert isinstance(report, GraphReport)
    whole = figure_of(report)
    short = folded(whole, report)
    assert short is not None
    (repeat,) = [b for b in short.boxes if b.kind == "repeat"]
    kept = {b.id for b in short.boxes} - {repeat.id}
    assert len(kept) < len(whole.boxes) / 2
    assert {b.id for b in whole.boxes if b.kind != "input"} == set(repeat.members) | {
        i for i in kept if not i.startswith("input")
    }
    for a in short.arrows:
        assert a.source < a.target


def test_numbers_are_short() -> None:
    assert [quantity(n) for n in (0, 7, 999, 1000, 1536, 999_499, 999_500, 2.5e10)] == [
        "0 ", "7 ", "999 ", "1 k", "1.54 k", "999 k", "1 M", "25 G",
    ]  # fmt: skip
    assert [duration(s) for s in (2.0, 0.0123, 4.56e-6)] == ["2 s", "12.3 ms", "4.56 µs"]


def test_the_console_writes_documents_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    make = "CREATE TENSOR t (i DIM(3), val FLOAT) DEFAULT 0;"
    for mode in ("duckbox", "csv", "markdown"):
        for form, first in (("html", "<!doctype html>"), ("svg", "<svg "), ("json", '{"strategy"')):
            script = (
                f"{make}\n.mode {mode}\n.output plan\n"
                f"EXPLAIN (FORMAT {form}) SELECT SUM(val) AS s FROM t;\n"
            )
            Path("s.sql").write_text(script)
            assert main(["-f", "s.sql"]) == 0
            assert Path("plan").read_text(encoding="utf-8").startswith(first), mode
    assert capsys.readouterr() == ("", "")


# ---- the page


HOSTILE = '</script><b onclick="x">&\'"<!-- ü→🙂 ]]>'


def hostile() -> Explanation:
    con = connection()
    con.register(HOSTILE, np.ones((4, 4)), ("<i>", 'j"&'))
    name = '"' + HOSTILE.replace('"', '""') + '"'
    sql = f"""SELECT "<i>", SUM(val) AS "{"<script>alert(1)</script>"}" FROM {name} GROUP BY "<i>"
    -- {HOSTILE}"""
    return con.explain(sql, sites=2, verbose=True)


def test_names_and_text_are_escaped_and_nothing_is_requested() -> None:
    plan = hostile()
    ElementTree.fromstring(plan.svg())
    page = plan.html()
    assert page.count("</script>") == page.count("<script>") == 1
    assert "<b onclick" not in page
    assert "alert(1)" in page
    for request in ("src=", "@import", "url(h", "fetch(", "https:"):
        assert request not in page
    assert set(re.findall(r"http:[^\"]*", page)) == {"http://www.w3.org/2000/svg"}
    frame = plan._repr_html_()
    assert frame.count("<") == 2


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def shown(page: str, folder: Path, fragment: str = "", script: str = "") -> str:
    """The document after its scripts ran in a browser, and after one of the test's own."""
    path = folder / "plan.html"
    acts = f"<script>{script}</script></body>"
    path.write_text(page.replace("</body>", acts), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--virtual-time-budget=2000", f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr", "--dump-dom", f"{path.as_uri()}#{fragment}",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "CONSOLE" not in ran.stderr, ran.stderr
    assert "data-error" not in ran.stdout.split("<head>")[0]
    return ran.stdout


browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium to show the page")


def opened(document: str) -> list[str]:
    return re.findall(r'<section class="details open" id="([^"]*)"', document)


@browser
def test_a_browser_shows_every_node_and_the_one_the_link_names(tmp_path: Path) -> None:
    plan = connection().explain(SOFTMAX, sites=8, analyze=True, verbose=True)
    document = shown(plan.html(), tmp_path, "r1")
    nodes = set(re.findall(r'data-id="([\w-]*)"', document))
    assert nodes == {"input-0", *(n["id"] for n in plan.to_dict()["nodes"])}
    assert f'data-ready="{len(nodes)}"' in document
    assert opened(document) == ["r1"]
    assert opened(shown(plan.html(), tmp_path, "nothing")) == []


@browser
def test_clicks_keys_and_search_work_on_folded_layers(tmp_path: Path) -> None:
    con, sql = network(12)
    page = con.explain(sql, sites=4).html()
    # A hidden operation is searched for, which unfolds; Enter opens it.
    act = """
    const s = document.getElementById('search'), report = [];
    const now = () => report.push(document.documentElement.dataset.open + ' ' +
      document.querySelector('svg:not([hidden])').id);
    for (const id of ['r1', 'repeat']) {
      document.querySelector(`[data-id=${id}]`).dispatchEvent(
        new MouseEvent('click', {bubbles: true, cancelable: true}));
      now();
    }
    s.value = 'r20 '; s.dispatchEvent(new Event('input'));
    s.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
    now();
    document.getElementById('fold').click(); now();
    document.querySelector('svg:not([hidden]) [data-id=r0]').focus();
    document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true}));
    report.push(document.activeElement.dataset.id);
    document.documentElement.dataset.report = report.join('|');
    """
    document = shown(page, tmp_path, script=act)
    (report,) = re.findall(r'data-report="([^"]*)"', document)
    assert report == "r1 folded|repeat folded|r20 whole|r20 folded|r1"


@browser
def test_hostile_names_and_the_frame_of_a_notebook_are_shown(tmp_path: Path) -> None:
    document = shown(hostile().html(), tmp_path, "input-0")
    assert opened(document) == ["input-0"]
    click = """
    addEventListener('load', () => {
      const inner = document.querySelector('iframe').contentDocument;
      inner.querySelector('a[href="#r0"]').dispatchEvent(
        new MouseEvent('click', {bubbles: true, cancelable: true}));
      const now = inner.querySelector('.details.open');
      document.documentElement.dataset.report = now && now.id;
    });"""
    frame = f"<!doctype html><html><head></head><body>{hostile()._repr_html_()}</body></html>"
    assert 'data-report="r0"' in shown(frame, tmp_path, script=click)


def test_the_text_shows_repeated_layers_once_unless_it_is_verbose() -> None:
    con, sql = network(12)
    plan = con.explain(sql)
    nodes = len(plan.to_dict()["nodes"])
    text = plan.lines()
    (graph, steps) = (n for n, line in enumerate(text) if line.startswith("  … "))
    hidden, period = map(int, re.findall(r"\d+", text[graph]))
    assert 0 < hidden <= nodes - 2 * period
    assert sum(re.match(r"r\d+\[", line) is not None for line in text) == nodes - hidden
    assert text.index("-- steps") < steps
    whole = con.explain(sql, verbose=True).lines()
    assert not any("VERBOSE shows them" in line for line in whole)
