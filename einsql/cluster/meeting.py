"""Where ranks call: a socket of this machine, or one that others reach."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from einsql.cluster.messages import Started
from einsql.cluster.wire import receive, send
from einsql.errors import OperationalError

KEY = "EINSQL_CLUSTER_KEY"
"""The variable that hands a rank the key, which nobody else may read."""

UPPERMOST = 1000
"""Files have lower numbers in a rank, whose libraries may know no number beyond 1023."""

_NUMBERS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Where launchers say which rank a process will be."""


class Meeting:
    """Listens for the ranks' calls.

    Attributes:
        address: `@name` of a socket of this machine, or `host:port`.
        key: What the driver and its ranks know each other by.
    """

    def __init__(self, host: str | None = None) -> None:
        """Begins to listen.

        Args:
            host: The name or address under which ranks elsewhere reach this machine; an
                empty text is the machine's own name. None if all ranks are here.

        Raises:
            OperationalError: The address is none of this machine.
        """
        self.key = secrets.token_bytes(32)
        if host is None:
            # A name that is in no file system has not to be removed from one.
            self.address = f"@einsql-{secrets.token_hex(8)}"
            self._listener = Listener(
                self.address.replace("@", "\0"), "AF_UNIX", backlog=128, authkey=self.key
            )
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

    @contextlib.contextmanager
    def accepting(self, ranks: int, note: Callable[[Connection, Started], None]) -> Iterator[None]:
        """Meanwhile processes that call are noted.

        Args:
            ranks: How many may call.
            note: Told of the line to each and of what it says of itself.
        """
        enough = threading.Event()

        def accept() -> None:
            calls = 0
            while calls < ranks and not enough.is_set():
                with contextlib.suppress(AuthenticationError, OSError, EOFError):
                    line = self._listener.accept()
                    started = receive(line)
                    if isinstance(started, Started):
                        prompt(line)
                        note(line, started)
                        calls += 1

        thread = threading.Thread(target=accept, name="einsql ranks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            while thread.is_alive():  # it may wait for a caller
                with contextlib.suppress(OSError, AuthenticationError, EOFError):
                    Client(self._listener.address).close()
                thread.join(0.02)


def reach(address: str, key: bytes) -> Connection:
    """A rank's line to the driver, which is told of this process.

    Args:
        address: As a Meeting gives it.
        key: Likewise.

    Raises:
        OSError: There is nobody.
        EOFError: There is nobody any more.
    """
    if address.startswith("@"):
        line = _uppermost(Client(address.replace("@", "\0", 1), "AF_UNIX", authkey=key))
    else:
        host, _, port = address.rpartition(":")
        line = _uppermost(Client((host, int(port)), "AF_INET", authkey=key))
        prompt(line)
    number = next((int(n) for k in _NUMBERS if (n := os.environ.get(k, "")).isdigit()), None)
    send(line, Started(number, os.getpid(), socket.gethostname()))
    return line


def _uppermost(line: Connection) -> Connection:
    """The same line under a number above all others of this process.

    When a process ends Linux closes its files from the last number to the first. A launcher
    kills the other ranks as soon as the socket closes that this one has to it; the driver
    must see this line close before, or it takes one of the others for the first to end.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = UPPERMOST if limit == resource.RLIM_INFINITY else min(UPPERMOST, limit - 8)
    with line:
        return Connection(fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, least))


def prompt(line: Connection) -> None:
    """Sends small messages at once: by default TCP waits for the answer to the former one."""
    with (
        contextlib.suppress(OSError),  # a socket of this machine never waits
        socket.socket(fileno=os.dup(line.fileno())) as end,
    ):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
