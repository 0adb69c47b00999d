"""Who may send requests to the page of `einsql --ui`, and what its answers allow."""

import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import einsql
from einsql.frontends.console.ui.server import Server
from einsql.frontends.console.ui.workbench import Workbench
from tests.support.terminal import Terminal

SOURCE = Path(__file__).parents[3]
READS = ("/api/catalog", "/api/status")
WRITES = ("/api/run", "/api/plan", "/api/plot", "/api/complete", "/api/columns",
          "/api/stop")  # fmt: skip
FILES = ("/", "/page.css", "/page.js", "/graph.css")
MAKE = "CREATE TENSOR t AS SELECT a.i, a.i * 2e0 AS val FROM range(4) AS a(i)"


class Client:
    """Sends requests as the page does, or with other headers."""

    def __init__(self, server: Server) -> None:
        self.server, self.token = server, ""

    def send(
        self, method: str, path: str, body: object = None, **headers: str | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Sends a request; an argument of None leaves a header of the page out."""
        content = b"" if body is None else json.dumps(body).encode()
        access = self.server.access
        sent: dict[str, str | None] = {"Host": access.host, "X-Einsql-Token": self.token}
        if method == "POST":
            sent |= {"Origin": access.origin, "Content-Type": "application/json",
                     "Content-Length": str(len(content))}  # fmt: skip
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(access.host, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(content)
        answer = connection.getresponse()
        read = (answer.status, answer.headers, answer.read())
        connection.close()
        return read

    def ask(self, path: str, body: object = None) -> Any:
        status, _, content = self.send("GET" if body is None else "POST", path, body)
        assert status == 200, content
        return json.loads(content)

    def enter(self) -> None:
        """Exchanges a new link."""
        code = self.server.access.new_link().partition("#")[2]
        self.token = self.ask("/api/exchange", {"code": code})["token"]


def serving(connection: einsql.Connection, read_only: bool = False) -> Iterator[Client]:
    server = Server(Workbench(connection, "in memory", read_only))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield Client(server)
    server.shutdown()
    server.server_close()
    connection.close()


@pytest.fixture
def client() -> Iterator[Client]:
    yield from serving(einsql.connect())


def test_the_server_listens_on_this_machine_only(client: Client) -> None:
    host, port = client.server.server_address[:2]
    assert (host, client.server.access.host) == ("127.0.0.1", f"127.0.0.1:{port}")
    other = Server(client.server.workbench)
    assert other.server_address[1] not in (0, port)
    other.server_close()


def test_a_link_works_once_and_gives_a_token_of_256_bits(client: Client) -> None:
    access = client.server.access
    first, second = access.new_link(), access.new_link()
    address, _, code = second.partition("#")
    assert address == f"{access.origin}/"
    assert len(code) >= 43  # 256 bits by six
    replaced = {"code": first.partition("#")[2]}
    wrong: list[object] = [replaced, {"code": ""}, {"code": None}, {}, {"code": code[:-1]}]
    for body in wrong:
        assert client.send("POST", "/api/exchange", body)[0] == 401
    token = client.ask("/api/exchange", {"code": code})["token"]
    assert len(token) >= 43
    assert token != code
    assert client.send("POST", "/api/exchange", {"code": code})[0] == 401


def test_every_request_for_data_needs_the_token(client: Client) -> None:
    client.enter()
    token = client.token
    for wrong in (None, "", token[:-1], token + "x", "ü"):
        for path in READS:
            assert client.send("GET", path, X_Einsql_Token=wrong)[0] == 401
            assert client.send("GET", f"{path}?token={token}", X_Einsql_Token=wrong)[0] == 404
        for path in WRITES:
            body = {"sql": MAKE, "token": token}
            status, headers, content = client.send("POST", path, body, X_Einsql_Token=wrong,
                                                   Cookie=f"token={token}")  # fmt: skip
            assert status == 401
            assert "Set-Cookie" not in headers
            assert token not in content.decode()
    assert client.ask("/api/catalog")["total"] == 0
    for path in FILES:
        assert client.send("GET", path, X_Einsql_Token=None)[0] == 200


def test_another_host_or_page_is_refused(client: Client) -> None:
    client.enter()
    access = client.server.access
    port = access.host.partition(":")[2]
    hosts = ("evil.example", f"evil.example:{port}", f"localhost:{port}", "127.0.0.1", None)
    origins = ("http://evil.example", f"http://localhost:{port}", f"https://{access.host}", "null")
    for host in hosts:  # DNS rebinding names another host
        assert client.send("GET", "/", Host=host)[0] in (400, 403)
        assert client.send("POST", "/api/run", {"sql": MAKE}, Host=host)[0] in (400, 403)
    for origin in (*origins, None):
        assert client.send("POST", "/api/run", {"sql": MAKE}, Origin=origin)[0] == 403
    for origin in origins:
        assert client.send("GET", "/api/catalog", Origin=origin)[0] == 403
    for site in ("cross-site", "same-site"):
        assert client.send("GET", "/", Sec_Fetch_Site=site)[0] == 403
    assert client.ask("/api/catalog")["total"] == 0


def test_only_posts_of_json_change_anything(client: Client) -> None:
    client.enter()
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
        assert client.send(method, "/api/run", {"sql": MAKE})[0] in (404, 501)
    for path in READS:
        assert client.send("POST", path, {})[0] == 404
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        assert client.send("POST", "/api/run", {"sql": MAKE}, Content_Type=kind)[0] == 400
    wrong: list[object] = ["text", [MAKE], {"sql": 1}, {}]
    for body in wrong:
        assert client.send("POST", "/api/run", body)[0] == 400
    for length in (None, "-1", "x", "999999999"):
        assert client.send("POST", "/api/run", {}, Content_Length=length)[0] == 400
    assert client.ask("/api/catalog")["total"] == 0
    assert client.ask("/api/run", {"sql": MAKE})["results"][0]["changed"] == 4
    assert client.ask("/api/catalog")["total"] == 1


def test_no_other_page_may_read_answers(client: Client) -> None:
    client.enter()
    answers = [client.send("GET", path) for path in (*FILES, *READS, "/none")]
    answers.append(client.send("OPTIONS", "/api/run", Origin="http://evil.example",
                               Access_Control_Request_Method="POST"))  # fmt: skip
    assert answers[-1][0] == 501
    for _, headers, _ in answers:
        assert not [name for name in headers if name.startswith("Access-Control")]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Python" not in headers["Server"]


def test_the_page_has_nothing_inline_and_nothing_foreign(client: Client) -> None:
    text = {path: client.send("GET", path)[2].decode() for path in FILES}
    page = text["/"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=\"/page.js\")", page)
    for content in text.values():
        assert set(re.findall(r"https?://[\w.]*", content)) <= {"http://www.w3.org"}
    script = text["/page.js"]
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "console.",
    ):
        assert way not in script


def test_paths_lead_to_no_other_file(client: Client) -> None:
    for path in ("/../server.py", "/server.py", "/%2e%2e/serve.py", "/page.js?x"):
        assert client.send("GET", path)[0] == 404


@pytest.mark.skipif(os.name != "posix", reason="signals and permissions are POSIX's")
def test_the_link_is_in_a_file_of_the_user_and_nowhere_else(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path),
                   "PYTHONUNBUFFERED": "1"}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "einsql", "--ui", "-no-init"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    (doorway,) = tmp_path.glob("einsql-*/open.html")
    assert doorway.as_uri() in line
    assert stat.S_IMODE(doorway.stat().st_mode) == 0o600
    assert stat.S_IMODE(doorway.parent.stat().st_mode) == 0o700
    (link,) = set(re.findall(r"http://127\.0\.0\.1:\d+/#[\w-]{43,}", doorway.read_text()))
    code = link.partition("#")[2]
    assert code not in line
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert code not in rest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX's")
def test_the_browser_is_started_without_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, program = tmp_path / "arguments", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$@" >>{seen}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    terminal = Terminal(tmp_path, "-m", "einsql", "--ui", "-no-init")
    try:
        links = []
        for _ in range(2):  # Enter makes another link
            text = terminal.wait_for("ends the session. ")
            links += re.findall(r"http://127\.0\.0\.1:\d+/#([\w-]{43,})", text)
            terminal.send("\r")
        assert len(set(links)) == 2
        terminal.wait_for("ends the session. ")
        for _ in range(30):  # input() misses a signal right before it waits
            terminal.send("\x03")
            with suppress(subprocess.TimeoutExpired):
                assert terminal.process.wait(2) == 0
                break
        assert terminal.process.returncode == 0
    finally:
        terminal.close()
    arguments = seen.read_text()
    assert arguments.count("/open.html") == 3
    assert not any(code in arguments for code in links)
    assert not list(tmp_path.glob("einsql-*"))


def test_requests_are_not_logged(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    client.enter()
    client.send("GET", f"/{client.token}")
    client.send("POST", "/api/run", {"sql": "SELECT"}, Content_Length="3")
    assert capfd.readouterr() == ("", "")


def test_the_files_are_in_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(SOURCE)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folder = "einsql/frontends/console/ui"
    assert {f"{folder}/{name}" for name in ("page.html", "page.css", "page.js")} <= names
