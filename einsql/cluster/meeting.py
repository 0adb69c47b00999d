"""Where ranks report to the driver: a socket of this machine, or one that others reach."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol

from einsql.cluster.messages import Hello
from einsql.cluster.wire import receive
from einsql.errors import OperationalError

KEY = "EINSQL_CLUSTER_KEY"
"""The variable that hands a rank the key, which nobody else may read."""
START = 60.0
"""Seconds the ranks have to report."""


class Processes(Protocol):
    """The processes behind a session's ranks, however they were started.

    Attributes:
        lines: A connection to each rank, by its number.
        ranks: What each said of itself.
    """

    lines: list[Connection]
    ranks: list[Hello]

    def last_words(self) -> str:
        """What they have printed last."""

    def close(self) -> None:
        """Waits for ranks that were told to leave."""

    def kill(self) -> None:
        """Ends them at once."""


class Meeting:
    """Listens until every rank has reported.

    Attributes:
        address: `/path` of a socket of this machine, or `host:port`.
        key: What the driver and its ranks know each other by.
    """

    def __init__(self, folder: str, host: str | None = None) -> None:
        """Begins to listen.

        Args:
            folder: Where a socket of this machine may lie.
            host: The name or address under which ranks elsewhere reach this machine; an
                empty text is the machine's own name. None if all ranks are here.

        Raises:
            OperationalError: The address is none of this machine.
        """
        self.key = secrets.token_bytes(32)
        if host is None:
            self.address = str(Path(folder) / "driver")
            self._listener = Listener(self.address, "AF_UNIX", backlog=128, authkey=self.key)
            return
        try:
            # A machine's own name may stand for its loopback, which nobody else reaches.
            self._listener = Listener((host or "0.0.0.0", 0), backlog=128, authkey=self.key)
        except OSError as error:
            raise OperationalError(
                f"Ranks cannot reach this process at {host}: {error.strerror}",
                hint="mpi_host is a name or an address of the machine that holds the connection.",
            ) from error
        port = self._listener.address[1]
        self.address = f"{host or socket.gethostname()}:{port}"

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()

    def gather(self, ranks: int, going: Callable[[], bool]) -> dict[int, tuple[Hello, Connection]]:
        """Waits for ranks, as long as they can be expected.

        Args:
            ranks: How many there will be.
            going: Whether those that are missing may still come.

        Returns:
            The first message and the line of each rank that has reported, by its number.

        Raises:
            OperationalError: They belong to another job than was started.
        """
        found: dict[int, tuple[Hello, Connection]] = {}
        strangers: list[Hello] = []
        over = threading.Event()

        def accept() -> None:
            while len(found) < ranks and not over.is_set():
                with contextlib.suppress(AuthenticationError, OSError, EOFError):
                    line = self._listener.accept()
                    hello = receive(line)
                    if isinstance(hello, Hello):
                        prompt(line)
                        found[hello.rank] = hello, line
                        strangers.extend([hello] * (hello.ranks != ranks))

        thread = threading.Thread(target=accept, name="einsql ranks", daemon=True)
        thread.start()
        deadline = time.monotonic() + START
        try:
            while thread.is_alive() and time.monotonic() < deadline and not strangers:
                thread.join(0.02)
                if len(found) < ranks and not going():
                    break
        finally:
            over.set()
            with contextlib.suppress(OSError, AuthenticationError, EOFError):
                if thread.is_alive():  # it waits for a caller
                    Client(self._listener.address).close()
        if strangers:
            raise OperationalError(
                f"Of {ranks} processes one says that it is rank {strangers[0].rank} of "
                f"{strangers[0].ranks}: the launcher belongs to another MPI than mpi4py's",
                hint="config 'mpiexec' names the launcher; "
                "python -m mpi4py --mpi-lib-version tells which MPI is used.",
            )
        return found


def reach(address: str, key: bytes) -> Connection:
    """A rank's line to the driver.

    Args:
        address: As a Meeting gives it.
        key: Likewise.

    Raises:
        OSError: There is nobody.
    """
    if address.startswith("/"):
        return Client(address, "AF_UNIX", authkey=key)
    host, _, port = address.rpartition(":")
    line = Client((host, int(port)), "AF_INET", authkey=key)
    prompt(line)
    return line


def prompt(line: Connection) -> None:
    """Sends small messages at once: by default TCP waits for the answer to the former one."""
    with (
        contextlib.suppress(OSError),  # a socket of this machine never waits
        socket.socket(fileno=os.dup(line.fileno())) as end,
    ):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
