"""Opens the page in the browser and waits for the end of the session."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import mkdtemp

from einsql.frontends.console.settings import Leave
from einsql.frontends.console.shell import Shell
from einsql.frontends.console.ui.server import Server
from einsql.frontends.console.ui.workbench import Workbench

_DOORWAY = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>einsql</title>
<meta name="referrer" content="no-referrer"><script>location.replace({link!r})</script></head>
<body><a href="{shown}">Open einsql</a></body></html>
"""
"""The file that leads to the page: other users could read a link in the arguments of a browser."""


def serve(shell: Shell) -> None:
    """Serves the page of a shell's connection until Ctrl-C or the end of the process."""
    database = shell.database
    name = "in memory" if database.path in ("", ":memory:") else os.path.basename(database.path)
    workbench = Workbench(shell.connection, name, database.read_only)
    server = Server(workbench)
    threading.Thread(target=server.serve_forever, name="einsql page", daemon=True).start()
    folder = Path(mkdtemp(prefix="einsql-"))  # for this user only
    try:
        with _ended_by_signal():
            _invite(server, folder)
    finally:
        server.shutdown()
        server.server_close()
        workbench.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _invite(server: Server, folder: Path) -> None:
    """Writes and opens a link; on a terminal, Enter asks for another one."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        link, doorway = server.access.new_link(), folder / "open.html"
        descriptor = os.open(doorway, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_DOORWAY.format(link=link, shown=escape(link)))
        if not at_terminal:  # the output may be a log, which shall not hold the link
            print(f"The page is at {doorway.as_uri()}, once. Ctrl-C ends it.", flush=True)
            threading.Event().wait()
        webbrowser.open(doorway.as_uri())
        print(f"The page is open in the browser, or at\n  {link}")
        input("This link works once. Enter makes another one, Ctrl-C ends the session. ")


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Makes SIGTERM end the session as Ctrl-C does."""

    def end(*_: object) -> None:
        raise Leave(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (EOFError, KeyboardInterrupt):
        print()  # Ctrl-D or Ctrl-C ends the session
    finally:
        signal.signal(signal.SIGTERM, before)
