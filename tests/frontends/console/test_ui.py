"""The page of `einsql --ui`: its requests, and what a browser shows."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import einsql
from einsql.frontends.console.ui import workbench
from einsql.frontends.console.ui.workbench import Workbench
from tests.frontends.console.test_ui_access import Client, serving
from tests.support.browser import CHROMIUM, Browser

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>"
SLOW = "SELECT SUM(SIN(a.i * b.j)) AS s FROM range(60000) AS a(i), range(60000) AS b(j)"


@pytest.fixture
def client() -> Iterator[Client]:
    for client in serving(einsql.connect()):
        client.enter()
        yield client


def run(client: Client, sql: str) -> Any:
    return client.ask("/api/run", {"sql": sql})


def test_results_have_texts_counts_and_the_place_of_an_error(client: Client) -> None:
    answer = run(client, "CREATE TABLE t(i INTEGER, s VARCHAR);\nINSERT INTO t VALUES (1, 'é'), "
                 "(2, NULL);\nSELECT * FROM t ORDER BY i;\nSELECT ü FROM t; SELECT 1")  # fmt: skip
    results, error = answer["results"], answer["error"]
    assert [r.get("changed", r.get("total")) for r in results] == [-1, 2, 2]
    assert results[2]["columns"] == [["i", "int32", True], ["s", "varchar", False]]
    assert results[2]["rows"] == [["1", "é"], ["2", None]]
    assert "LINE 4: SELECT ü FROM t" in error["message"]
    assert error["at"] == len(
        "CREATE TABLE t(i INTEGER, s VARCHAR);\nINSERT INTO t VALUES (1, 'é'), (2, NULL);\n"
        "SELECT * FROM t ORDER BY i;\nSELECT "
    )
    assert run(client, "SELECT 'a")["error"]["message"].count("LINE 1") == 1
    assert run(client, " ; ") == {"results": [], "error": None, "notices": []}


def test_answers_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = run(client, "SELECT r.i FROM range(100000) AS r(i)")["results"]
    assert (len(answer["rows"]), answer["total"]) == (workbench.ROWS, 100000)
    (answer,) = run(client, "SELECT repeat('x', 1000000) AS x")["results"]
    assert len(answer["rows"][0][0]) < 3000
    columns = ", ".join(f"1 AS c{n}" for n in range(300))
    (answer,) = run(client, f"SELECT {columns}")["results"]
    assert len(answer["columns"]) + answer["hidden"] == 300
    assert len(answer["columns"]) == len(answer["rows"][0]) <= 200
    texts = "SELECT repeat('x', 2000) AS a, repeat('y', 2000) AS b FROM range(900)"
    (answer,) = run(client, texts)["results"]
    assert len(answer["rows"]) == 500
    results = run(client, "SELECT 1 AS a;" * 60)["results"]
    assert ["rows" in r for r in results] == [False] * 10 + [True] * 50
    run(client, "SELECT a.i, b.j, a.i - b.j AS v FROM range(900) AS a(i), range(500) AS b(j)")
    heat = client.ask("/api/plot", {})
    assert (heat["shape"], len(heat["cells"])) == ([160, 160], 160 * 160 * 6)
    assert heat["note"] == "means of up to 6 × 4 values"
    run(client, "SELECT r.i, SIN(r.i / 99.0) AS v FROM range(50000) AS r(i)")
    (line,) = client.ask("/api/plot", {})["lines"]
    assert len(line["points"]) <= 1000
    assert {0.0, 1.0} <= {y for _, y in line["points"]}


def test_a_read_only_database_stays_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR t AS SELECT a.i, a.i AS val FROM range(3) AS a(i)")
    for client in serving(einsql.connect(path, read_only=True), read_only=True):
        code = client.server.access.new_link().partition("#")[2]
        opened = client.ask("/api/exchange", {"code": code})
        client.token = opened["token"]
        assert opened["readOnly"] is True
        for sql in ("CREATE TABLE n(i INTEGER)", "DELETE FROM t", "DROP TABLE t"):
            assert run(client, sql)["error"] is not None
        assert run(client, "SELECT SUM(val) AS s FROM t")["results"][0]["rows"] == [["3"]]
        assert client.ask("/api/catalog")["total"] == 1


def test_plans_are_shown_but_nothing_else_is_run(client: Client) -> None:
    run(client, "CREATE TENSOR t AS SELECT a.i, a.i AS val FROM range(3) AS a(i)")
    text = "DELETE FROM t; SELECT SUM(val) AS s FROM t; SELECT nothing FROM t"
    plan = client.ask("/api/plan", {"sql": text, "at": 20})
    assert plan["sql"] == "SELECT SUM(val) AS s FROM t"
    assert plan["drawing"].startswith("<svg")
    assert "style=" not in plan["drawing"] + "".join(plan["details"])
    assert "hint" in client.ask("/api/plan", {"sql": text, "at": 2})
    assert "hint" in client.ask("/api/plan", {"sql": "ANALYZE DELETE FROM t", "at": 2})
    assert "hint" in client.ask("/api/plan", {"sql": "", "at": 0})
    assert "There is no column" in client.ask("/api/plan", {"sql": text, "at": 60})["error"]
    measured = client.ask("/api/plan", {"sql": text, "at": 20, "analyze": True})
    assert "measured" in "".join(measured["details"])
    assert run(client, "SELECT COUNT(*) AS n FROM t")["results"][0]["rows"] == [["3"]]


def test_stop_cancels_the_statement_and_those_after_it(client: Client) -> None:
    answers: list[Any] = []
    sql = f"CREATE TABLE before(i INTEGER); {SLOW}; CREATE TABLE after(i INTEGER)"
    runs = threading.Thread(target=lambda: answers.append(run(client, sql)))
    runs.start()
    while not client.ask("/api/status")["running"]:
        time.sleep(0.01)
    assert client.send("POST", "/api/run", {"sql": "SELECT 1"})[0] == 409
    assert client.send("GET", "/api/catalog")[0] == 409
    assert client.ask("/api/stop", {}) == {"stopped": True}
    runs.join(60)
    assert "error" in answers[0]
    assert answers[0]["error"]["message"]
    assert client.ask("/api/status") == {"running": False}
    assert "after" not in {o["name"] for o in client.ask("/api/catalog")["objects"]}
    assert run(client, "SELECT 1 AS a")["results"][0]["rows"] == [["1"]]


def test_a_loop_tells_its_steps(client: Client) -> None:
    desk: Workbench = client.server.workbench
    seen: list[Any] = []

    def probe(x: float) -> float:
        seen.append(desk.status())
        return x

    desk.connection.create_function("probe", probe, trace=False)
    run(client, "CREATE TENSOR w AS SELECT a.i, 1e0 AS val FROM range(3) AS a(i)")
    (answer,) = run(client, "FOR step IN range(2) DO UPDATE w SET val = w.val * 2; "
                    "SELECT probe(SUM(val)) AS loss FROM w; END FOR")["results"]  # fmt: skip
    assert answer["rows"] == [["0", "6.0"], ["1", "12.0"]]
    assert (seen[-1]["running"], seen[-1]["steps"]) == (True, 1)
    assert seen[-1]["newest"] == "step 0  loss 6.0"


def test_the_catalog_lists_names_and_columns(client: Client) -> None:
    run(client, "CREATE TENSOR t AS SELECT a.i, a.i AS val FROM range(3) AS a(i); "
        "CREATE MACRO twice(x) AS x + x; CREATE VIEW v AS SELECT i FROM t")  # fmt: skip
    assert client.ask("/api/catalog")["objects"] == [
        {"name": "t", "kind": "tensor", "call": "", "inFrom": True},
        {"name": "twice", "kind": "macro", "call": "twice(x)", "inFrom": False},
        {"name": "v", "kind": "view", "call": "", "inFrom": True},
    ]
    columns = client.ask("/api/columns", {"name": "t"})
    assert columns == {"columns": [["i", "key 3"], ["val", "BIGINT"]], "total": 2}
    run(client, "DROP TENSOR t")
    assert "error" in client.ask("/api/columns", {"name": "v"})


def test_names_are_completed(client: Client) -> None:
    run(client, "CREATE TENSOR weights AS SELECT a.i, a.i AS val FROM range(3) AS a(i)")
    text = "SELECT w.v FROM wei; .he"
    question = {"sql": text, "at": text.index(";")}
    assert client.ask("/api/complete", question) == {
        "replaced": 3, "words": [["weights", "tensor"]], "total": 1,
    }  # fmt: skip
    assert client.ask("/api/complete", {"sql": ".he", "at": 3})["words"] == []
    run(client, f"CREATE TABLE wide({', '.join(f'c{n} INTEGER' for n in range(60))})")
    many = client.ask("/api/complete", {"sql": "SELECT c FROM wide", "at": 8})
    assert len(many["words"]) == 40 < 60 <= many["total"]
    run(client, "SET enable_external_access = false")
    assert client.ask("/api/complete", {"sql": "FROM '/", "at": 7})["words"] == []
    for at in (-1, 9, "x", None):
        assert client.send("POST", "/api/complete", {"sql": "SELECT a", "at": at})[0] == 400


browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium to show the page")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    shown = Browser(tmp_path_factory.mktemp("chromium"))
    yield shown
    shown.close()


@pytest.fixture
def page(chromium: Browser) -> Browser:
    chromium.problems.clear()
    return chromium


def write(page: Browser, text: str, at: int = 0) -> None:
    page.run(f"""(() => {{ const e = document.getElementById('editor'); e.value = {text!r};
      e.setSelectionRange({at}, {at}); e.dispatchEvent(new Event('input')); }})()""")


def execute(page: Browser, text: str) -> None:
    """Runs a text as a user does."""
    count = int(page.run("document.documentElement.dataset.ran ?? '0'"))
    write(page, text)
    page.run("document.getElementById('run').click()")
    page.wait(f"document.documentElement.dataset.ran === '{count + 1}'")


@browser
def test_a_browser_shows_results_plots_and_plans(client: Client, page: Browser) -> None:
    link = client.server.access.new_link()
    page.open(link)
    page.wait("document.documentElement.dataset.ready === 'yes'")
    assert page.run("location.href") == f"{client.server.access.origin}/"  # without the code
    execute(page, "CREATE TENSOR w AS SELECT a.i, b.j, a.i * b.j AS val "
            "FROM range(4) AS a(i), range(5) AS b(j); SELECT i, j, val FROM w;")  # fmt: skip
    assert page.run("document.querySelectorAll('#results td').length") == 60
    assert "20 rows" in page.run("document.getElementById('results').innerText")
    assert "w" in page.run("document.getElementById('objects').innerText")
    page.run("document.getElementById('tab-plot').click()")
    page.wait("document.documentElement.dataset.plotted === 'heat'")
    pixel = "document.querySelector('#plot canvas').getContext('2d').getImageData(4, 3, 1, 1).data"
    assert page.run(f"[...{pixel}].join()") == "253,231,37,255"
    execute(page, "SELECT i, SUM(val) AS s, MAX(val) AS m FROM w GROUP BY i")
    assert page.wait("document.querySelectorAll('#plot .line').length") == 2
    page.run("document.getElementById('tab-plan').click()")
    write(page, "SELECT j, SUM(val) AS total FROM w GROUP BY j")
    page.wait("document.getElementById('drawing').textContent.includes('total')")
    write(page, "SELECT j, SUM(val) AS other FROM w GROUP BY j")  # the plan follows the text
    page.wait("document.getElementById('drawing').textContent.includes('other')")
    page.run("""document.querySelector('#drawing [data-id=r0]').dispatchEvent(
      new MouseEvent('click', {bubbles: true, cancelable: true}))""")
    assert "r0" in page.run("document.querySelector('#details .open').innerText")
    page.run("document.getElementById('measure').click()")
    page.wait("document.getElementById('plan-text').textContent.includes('ms')"
              " || document.getElementById('plan-text').textContent.includes('µs')")  # fmt: skip
    page.call("Page.reload")
    page.wait("document.documentElement?.dataset.ready === 'yes'")  # the tab keeps the token
    page.open(link)
    page.wait("document.getElementById('gate').className === 'error'")
    assert "has been used" in page.run("document.getElementById('gate').innerText")
    assert [p for p in page.problems if "401" not in p] == []


@browser
def test_names_and_values_stay_text(client: Client, page: Browser) -> None:
    name = HOSTILE.replace('"', '""')
    page.open(client.server.access.new_link())
    page.wait("document.documentElement.dataset.ready === 'yes'")
    value = HOSTILE.replace("'", "''")
    execute(
        page,
        f"""CREATE TABLE "{name}" ("{name}" VARCHAR); INSERT INTO "{name}" VALUES
      ('{value}'); SELECT * FROM "{name}" AS "a b"; SELECT 1 AS "{name}";""",
    )
    assert page.run("document.querySelector('#results td').textContent") == HOSTILE
    assert page.run("document.querySelector('#results th').firstChild.textContent") == HOSTILE
    page.run("document.querySelector('#objects details').open = true")
    page.wait("document.querySelectorAll('#objects li').length === 1")
    shown = page.run("document.getElementById('objects').textContent")
    assert shown.count(HOSTILE) == 2  # the table and its column
    execute(
        page,
        f"""CREATE TENSOR "{name}2" AS SELECT a.i, 15e-1 AS "{name}" FROM range(3) AS a(i);
      SELECT i, "{name}" FROM "{name}2";""",
    )
    page.run("document.getElementById('tab-plot').click()")
    page.wait("document.documentElement.dataset.plotted === 'chart'")
    assert HOSTILE in page.run("document.getElementById('plot').textContent")
    page.run("document.getElementById('tab-plan').click()")
    write(page, f'SELECT SUM("{name}") AS "{name}" FROM "{name}2"')
    page.wait("document.querySelectorAll('#drawing .node').length > 1")
    execute(page, f'SELECT "{name}x" FROM "{name}"')
    assert HOSTILE in page.run("document.querySelector('#results .error').textContent")
    assert page.run("document.querySelectorAll('img, script:not([src])').length") == 0
    assert page.problems == []


@browser
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fits_its_window(client: Client, page: Browser, width: int) -> None:
    page.open(client.server.access.new_link(), width)
    page.wait("document.documentElement.dataset.ready === 'yes'")
    long = "a_name_that_is_longer_than_any_column_of_a_narrow_window_could_be_on_a_telephone"
    execute(page, f"CREATE TENSOR {long} AS SELECT a.i, a.i * 5e-1 AS val FROM range(9) AS a(i); "
            f"SELECT i, val, {', '.join(f'val + {n} AS column_{n}' for n in range(20))} FROM {long}"
            f"; SELECT {'1 + ' * 50} nothing FROM {long}")  # fmt: skip
    line, caret = page.run("document.querySelector('#results .exact').textContent").split("\n")
    assert line.startswith("LINE 1: …")
    assert line[caret.index("^") :].startswith("nothing")
    assert page.run("""(({scrollWidth: needed, clientWidth: there}) => needed <= there)(
      document.querySelector('#results .exact'))""")
    for view in ("results", "plot", "plan"):
        page.run(f"document.getElementById('tab-{view}').click()")
        assert page.run("document.documentElement.scrollWidth") <= width
    page.run("document.getElementById('catalog').open = true")
    page.run("document.querySelector('#objects details').open = true")
    page.wait("document.querySelectorAll('#objects li').length === 2")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("""[...document.querySelectorAll('#objects .name, #tools button, #tabs button')]
      .every((e) => { const b = e.getBoundingClientRect();
        return b.left >= 0 && b.right <= innerWidth; })""")


@browser
def test_tab_completes_names(client: Client, page: Browser) -> None:
    page.open(client.server.access.new_link())
    page.wait("document.documentElement.dataset.ready === 'yes'")
    execute(page, "CREATE TENSOR weights AS SELECT a.row, a.row AS rate FROM range(3) AS a(row)")
    press = """document.getElementById('editor').dispatchEvent(
      new KeyboardEvent('keydown', {{key: '{}', cancelable: true}}))"""
    editor = "document.getElementById('editor').value"
    write(page, "FROM wei", 8)
    page.run(press.format("Tab"))
    page.wait(f"{editor} === 'FROM weights'")
    write(page, "SELECT w.r FROM weights w", 10)
    page.run(press.format("Tab"))
    page.wait("document.querySelectorAll('#words button').length === 2")
    page.run(press.format("ArrowDown"))
    page.run(press.format("Enter"))
    assert page.run(editor) == "SELECT w.rate FROM weights w"
    assert page.run("document.getElementById('words').hidden")
    assert page.problems == []


@browser
def test_the_stop_button_stops(client: Client, page: Browser) -> None:
    page.open(client.server.access.new_link())
    page.wait("document.documentElement.dataset.ready === 'yes'")
    write(page, SLOW)
    page.run("document.getElementById('run').click()")
    page.wait("!document.getElementById('stop').disabled")
    page.run("document.getElementById('stop').click()")
    page.wait("document.documentElement.dataset.ran === '1'")
    assert page.run("document.getElementById('stop').disabled")
    assert page.run("document.querySelector('#results .error').textContent")
