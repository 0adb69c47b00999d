"""Ranks call in, whoever else does so: silent callers, garbage, other users, wrong keys."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import einsql
from einsql.engine.ranks import processes, rendezvous
from einsql.engine.ranks.messages import Started
from einsql.engine.ranks.rendezvous import Meeting, reach

HOSTS = [None, "127.0.0.1"]
"""Where a meeting listens: at an abstract socket of this machine, and by TCP."""


def caller(address: str) -> socket.socket:
    """A connection to a meeting that has said nothing."""
    if address.startswith("@"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(address.replace("@", "\0", 1))
        return line
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@contextlib.contextmanager
def callers(address: str, count: int, said: bytes = b"") -> Iterator[None]:
    """Meanwhile so many processes that are no ranks stay on the line."""
    with contextlib.ExitStack() as lines:
        for _ in range(count):
            lines.enter_context(caller(address)).sendall(said)
        yield


class Noted:
    """The lines that a meeting has noted."""

    def __init__(self) -> None:
        self.lines: list[tuple[Connection, Started]] = []
        self._came = threading.Semaphore(0)

    def __call__(self, line: Connection, started: Started) -> None:
        self.lines.append((line, started))
        self._came.release()

    def wait(self, count: int) -> list[Started]:
        """Waits for so many."""
        for _ in range(count):
            assert self._came.acquire(timeout=30)
        return [started for _, started in self.lines]

    def close(self) -> None:
        """Closes the lines."""
        for line, _ in self.lines:
            line.close()


@pytest.fixture
def noted() -> Iterator[Noted]:
    lines = Noted()
    yield lines
    lines.close()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("said", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(5000)])
def test_callers_that_are_no_ranks_delay_nobody(
    host: str | None, said: bytes, noted: Noted
) -> None:
    with Meeting(host) as place, callers(place.address, 40, said), place.accepting(2, noted):
        with callers(place.address, 40, said):
            lines = [reach(place.address, place.key) for _ in range(2)]
            assert [s.pid for s in noted.wait(2)] == [os.getpid()] * 2
        for line in lines:
            line.close()


@pytest.mark.parametrize("host", HOSTS)
def test_a_wrong_key_is_refused_and_its_owner_is_told(host: str | None, noted: Noted) -> None:
    with Meeting(host) as place, place.accepting(1, noted):
        with pytest.raises(OSError, match="key"):
            reach(place.address, secrets.token_bytes(32))
        reach(place.address, place.key).close()
        noted.wait(1)
        assert len(noted.lines) == 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_caller_has_so_long_and_no_longer(
    host: str | None, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "HANDSHAKE", 0.1)
    with Meeting(host) as place, place.accepting(1, noted), caller(place.address) as silent:
        silent.settimeout(30)
        while silent.recv(4096):  # what the meeting begins with, and then the end
            pass


def test_a_driver_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HANDSHAKE", 0.1)
    monkeypatch.setattr(rendezvous, "REACH", 0.3)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(OSError, match="timed out"):
        reach(f"127.0.0.1:{silent.getsockname()[1]}", secrets.token_bytes(32))


def test_a_driver_that_does_not_know_the_key_is_no_driver() -> None:
    """A rank unpickles what its driver sends, so it must know who that is."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            line, _ = impostor.accept()
            with line:
                line.sendall(secrets.token_bytes(64))
                line.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="key"):
            reach(f"127.0.0.1:{impostor.getsockname()[1]}", secrets.token_bytes(32))
        thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another user")
def test_another_user_is_not_heard(noted: Noted) -> None:
    with Meeting() as place, place.accepting(1, noted):
        text = f"""
            import os, socket
            os.setuid(54321)
            line = socket.socket(socket.AF_UNIX)
            line.connect({place.address.replace("@", chr(0), 1)!r})
            line.settimeout(30)
            print(line.recv(100))
        """
        other = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert other.stdout == "b''\n"
        reach(place.address, place.key).close()
        noted.wait(1)


LAUNCHER = """
import os, subprocess, sys
from einsql.engine.ranks.rendezvous import KEY, reach
from tests.engine.ranks.test_rendezvous import callers
address = sys.argv[-1]
with callers(address, 60):
    os.environ["PMI_RANK"] = "1"
    line = reach(address, bytes.fromhex(os.environ[KEY]))
    subprocess.run(["sleep", "600"])
"""


def test_who_never_came_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ranks one calls and starts no MPI, two never call; others call and say nothing."""
    pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")
    monkeypatch.setattr(processes, "START", 3.0)
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command = f"{sys.executable} {launcher} {{n}}"
    with pytest.raises(einsql.OperationalError) as refused:
        einsql.connect(config={"mpi": 3, "mpiexec": command, "mpi_host": "127.0.0.1"})
    reason = refused.value.reason
    assert "0 of 3 have reported; rank 1 (process" in reason
    assert "called, but MPI has not started there; ranks 0 and 2 have not called" in reason


def test_a_rank_that_stops_in_a_message_ends_the_meeting() -> None:
    """What begins a message and does not end it must not outlast the meeting."""
    left, right = socket.socketpair()
    with right, Connection(left.detach()) as line:
        right.sendall(b"\0\0\0\x09half")
        rendezvous.patience(line, 0.1)
        with pytest.raises(BlockingIOError):
            line.recv_bytes()
