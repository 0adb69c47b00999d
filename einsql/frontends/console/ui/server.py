"""The HTTP server of the page: files without data, and requests with the token."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar

from einsql.frontends.console.ui.access import HEADERS, Access
from einsql.frontends.console.ui.workbench import Busy, Workbench

_FILES = {
    "/": (__package__, "page.html", "text/html"),
    "/page.css": (__package__, "page.css", "text/css"),
    "/page.js": (__package__, "page.js", "text/javascript"),
    "/graph.css": ("einsql.explain.drawing", "graph.css", "text/css"),
}
"""The files of the page by path, each with its package and its type."""

_BODY = 4_000_000
"""The most bytes of a request's body."""
_SILENCE = 60.0
"""The seconds after which a connection without a request is closed."""


class _RequestError(Exception):
    """The request has a wrong form."""


class _UsedLinkError(Exception):
    """The code of a link is wrong or has been used."""


class Server(ThreadingHTTPServer):
    """A server on 127.0.0.1 and a free port that answers the page of one workbench."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, workbench: Workbench) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.workbench = workbench
        self.access = Access(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints nothing: a browser may close a connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE
    server: Server
    READS: ClassVar = {"/api/catalog": Workbench.catalog, "/api/status": Workbench.status}

    def do_GET(self) -> None:
        """Sends a file of the page, the catalog or the status."""
        if self._is_refused():
            return
        if self.path in _FILES:
            package, name, kind = _FILES[self.path]
            self._send(200, files(package).joinpath(name).read_bytes(), kind)
        elif self.path in self.READS:
            self._with_token(lambda: self.READS[self.path](self.server.workbench))
        else:
            self._refuse(404, "There is no such page")

    def do_POST(self) -> None:
        """Exchanges the code of a link, or runs, plans, plots or stops statements."""
        if self._is_refused():
            return
        if self.path == "/api/exchange":
            self._answer(self._exchange)
        elif self.path in _POSTS:
            self._with_token(lambda: _POSTS[self.path](self.server.workbench, self._body()))
        else:
            self._refuse(404, "There is no such page")

    # ---- checks

    def _is_refused(self) -> bool:
        reason = self.server.access.refusal(self.command, self._headers())
        if reason is not None:
            self._refuse(403, f"Refused: {reason}")
        return reason is not None

    def _headers(self) -> dict[str, str]:
        """The headers of the request; one that is sent twice equals no expected value."""
        names = dict.fromkeys(self.headers)
        return {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in names}

    def _with_token(self, work: Callable[[], dict[str, Any]]) -> None:
        if self.server.access.has_token(self._headers()):
            self._answer(work)
        else:
            self._refuse(401, "Refused: the request has no token")

    def _exchange(self) -> dict[str, Any]:
        token = self.server.access.exchange(self._body().get("code"))
        if token is None:
            raise _UsedLinkError
        workbench = self.server.workbench
        return {"token": token, "name": workbench.name, "readOnly": workbench.read_only}

    def _body(self) -> dict[str, Any]:
        """The JSON object of the request.

        Raises:
            _RequestError: There is none, or it is too long.
        """
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        length = self.headers.get("Content-Length", "")
        if kind != "application/json" or not length.isdecimal() or int(length) > _BODY:
            raise _RequestError
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as e:
            raise _RequestError from e
        if not isinstance(body, dict):
            raise _RequestError
        return body

    # ---- answers

    def _answer(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = work()
        except Busy:
            self._refuse(409, "Another statement runs")
        except _UsedLinkError:
            self._refuse(401, "Refused: this link has been used, or is no link of this session")
        except _RequestError:
            self._refuse(400, "The request has a wrong form")
        except Exception as e:  # an internal error must not end the session
            self._refuse(500, f"Internal error ({type(e).__name__}): {e}. Please report it.")
        else:
            text = json.dumps(answer, ensure_ascii=False)
            self._send(200, text.encode("utf-8", "replace"), "application/json")

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True  # the body may be unread
        text = json.dumps({"error": reason}, ensure_ascii=False)
        self._send(status, text.encode("utf-8", "replace"), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        for header in HEADERS.items():
            self.send_header(*header)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request that is no GET or POST, or no HTTP."""
        self._refuse(code, message or "The request has a wrong form")

    def version_string(self) -> str:
        """The name of the server, without versions."""
        return "einsql"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def _text(body: dict[str, Any]) -> str:
    text = body.get("sql")
    if not isinstance(text, str):
        raise _RequestError
    return text


def _columns(workbench: Workbench, body: dict[str, Any]) -> dict[str, Any]:
    name = body.get("name")
    if not isinstance(name, str):
        raise _RequestError
    return workbench.columns(name)


def _complete(workbench: Workbench, body: dict[str, Any]) -> dict[str, Any]:
    return workbench.complete(_text(body), _offset(body))


def _offset(body: dict[str, Any]) -> int:
    at = body.get("at")
    if not isinstance(at, int) or not 0 <= at <= len(_text(body)):
        raise _RequestError
    return at


def _plan(workbench: Workbench, body: dict[str, Any]) -> dict[str, Any]:
    analyze = body.get("analyze", False)
    if not isinstance(analyze, bool):
        raise _RequestError
    return workbench.plan(_text(body), _offset(body), analyze)


_POSTS: dict[str, Callable[[Workbench, dict[str, Any]], dict[str, Any]]] = {
    "/api/run": lambda workbench, body: workbench.run(_text(body)),
    "/api/plan": _plan,
    "/api/complete": _complete,
    "/api/columns": _columns,
    "/api/plot": lambda workbench, body: workbench.plot(),
    "/api/stop": lambda workbench, body: workbench.stop(),
}
"""The requests that run, plan, draw or cancel statements."""
