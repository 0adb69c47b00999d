"""The socket at which ranks connect to the driver: local, or reachable from other machines."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from einsql.engine.ranks.handshake import Answering, Refused, introduce
from einsql.engine.ranks.messages import Started
from einsql.errors import OperationalError

KEY = "EINSQL_CLUSTER_KEY"
"""The environment variable with a rank's key; only this user can read it."""

LOG = "EINSQL_CLUSTER_LOG"
"""The environment variable with the path of the driver's log; unset for ranks elsewhere."""

UPPERMOST = 1000
"""Upper bound of the descriptors that a rank's libraries handle: `select` ends at 1023."""

HANDSHAKE = 10.0
"""Seconds for both sides to authenticate; the handshake normally takes a millisecond."""

REACH = 60.0
"""Seconds for a rank to reach the driver, which waits as long for its ranks."""

_PENDING = 256
"""Greatest number of concurrent handshakes; more drop the oldest, which may not be a rank."""
_AGAIN = 0.1
"""Seconds until a dropped rank connects again."""

_NUMBERS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables in which launchers store the rank of a process."""


class Meeting:
    """A listener for the connections of ranks.

    Attributes:
        address: `@name` of a local socket, or `host:port`.
        key: The secret that the driver and its ranks share.
    """

    def __init__(self, host: str | None = None) -> None:
        """Opens the listening socket.

        Args:
            host: The name or address of this machine for ranks on other machines; an empty text is
                the machine's own name. None if all ranks are on this machine.

        Raises:
            OperationalError: The address does not belong to this machine.
        """
        self.key = secrets.token_bytes(32)
        if host is None:
            # The name is outside the file system, so no file has to be removed.
            self.address = f"@einsql-{secrets.token_hex(8)}"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.address.replace("@", "\0"))
        else:
            try:
                # A host name may resolve to the loopback, which other machines cannot reach.
                self._listener = socket.create_server((host or "0.0.0.0", 0))
            except OSError as error:
                raise OperationalError(
                    f"Ranks cannot reach this process at {host}: {error.strerror}",
                    hint="Set mpi_host to a name or an address of the machine that has the "
                    "connection.",
                ) from error
            port = self._listener.getsockname()[1]
            self.address = f"{host or socket.gethostname()}:{port}"
        self._listener.listen(_PENDING)
        self._listener.setblocking(False)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()

    @contextlib.contextmanager
    def accepting(self, ranks: int, note: Callable[[Connection, Started], None]) -> Iterator[None]:
        """Accepts connections of ranks while the context is active.

        Args:
            ranks: The greatest number of ranks.
            note: Callback in another thread with each connection and the rank's Started.
        """
        bell, ring = socket.socketpair()
        desk = _Desk(self._listener, self.key, bell)
        thread = threading.Thread(
            target=desk.serve, args=(ranks, note), name="einsql ranks", daemon=True
        )
        with bell, ring:
            thread.start()
            try:
                yield
            finally:
                ring.send(b"\0")
                thread.join()


class _Caller:
    """A process that has connected and may be a rank."""

    def __init__(self, line: socket.socket, key: bytes) -> None:
        self.line = line
        self.deadline = time.monotonic() + HANDSHAKE
        self.talk = Answering(key)


class _Desk:
    """Runs concurrent handshakes in one thread, so that a silent caller delays no other.

    Args:
        listener: The listening socket.
        key: The secret of the driver and its ranks.
        bell: A socket that becomes readable to stop.
    """

    def __init__(self, listener: socket.socket, key: bytes, bell: socket.socket) -> None:
        self._listener = listener
        self._key = key
        self._bell = bell
        self._callers: dict[int, _Caller] = {}

    def serve(self, ranks: int, note: Callable[[Connection, Started], None]) -> None:
        """Accepts connections until all ranks have authenticated, or `bell` becomes readable."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while ranks:
                    ready = {key.fd for key, _ in selector.select(self._left())}
                    if self._bell.fileno() in ready:
                        return
                    for number in ready & self._callers.keys():
                        ranks -= ranks > 0 and self._listen(selector, number, note)
                    # New callers come last: they may drop the oldest handshakes.
                    if self._listener.fileno() in ready:
                        self._take(selector)
                    for number, caller in list(self._callers.items()):
                        if time.monotonic() > caller.deadline:
                            self._drop(selector, number)
            finally:
                for number in list(self._callers):
                    self._drop(selector, number)

    def _left(self) -> float | None:
        """Returns the seconds until the first caller's timeout."""
        first = next(iter(self._callers.values()), None)  # in the order of their connections
        return None if first is None else max(0.0, first.deadline - time.monotonic())

    def _take(self, selector: selectors.BaseSelector) -> None:
        """Accepts a connection if it comes from a process of this user."""
        try:
            line, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the connection stays in the queue
                time.sleep(_AGAIN)
                for number in list(self._callers)[:1]:
                    self._drop(selector, number)
            return
        if not _is_own(line):
            line.close()
            return
        line.setblocking(False)
        caller = _Caller(line, self._key)
        self._callers[line.fileno()] = caller
        selector.register(line, selectors.EVENT_READ)
        try:
            line.send(caller.talk.challenge)
        except OSError:  # the caller has closed the connection
            self._drop(selector, line.fileno())
        if len(self._callers) > _PENDING:
            self._drop(selector, next(iter(self._callers)))

    def _listen(
        self,
        selector: selectors.BaseSelector,
        number: int,
        note: Callable[[Connection, Started], None],
    ) -> bool:
        """Reads from a caller. Returns whether it is a rank; `note` has been called for it then."""
        caller = self._callers[number]
        talk = caller.talk
        try:
            text = caller.line.recv(talk.missing)
            talk.hear(text)
            if text and talk.missing:
                return False
            answer, started = talk.answer() if text else (b"", None)
            caller.line.send(answer)
        except BlockingIOError:
            return False
        except OSError:
            started = None
        if started is None:
            self._drop(selector, number)
            return False
        selector.unregister(caller.line)
        del self._callers[number]
        caller.line.setblocking(True)
        line = Connection(caller.line.detach())
        prompt(line)
        note(line, started)
        return True

    def _drop(self, selector: selectors.BaseSelector, number: int) -> None:
        caller = self._callers.pop(number)
        selector.unregister(caller.line)
        caller.line.close()


def _is_own(line: socket.socket) -> bool:
    """Returns False if a local socket leads to another user's process."""
    if line.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return True
    facts = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(facts)
    return bool(user == os.geteuid())


_CREDENTIALS = struct.Struct("iII")
"""Process, user and group, as the kernel reports them."""


def reach(address: str, key: bytes) -> Connection:
    """Connects a rank to the driver, and sends the description of this process.

    Args:
        address: The `address` of a Meeting.
        key: The `key` of the Meeting.

    Raises:
        OSError: No driver answers in time, or it does not know the key.
    """
    number = next((int(n) for k in _NUMBERS if (n := os.environ.get(k, "")).isdigit()), None)
    started = Started(number, os.getpid(), socket.gethostname())
    deadline = time.monotonic() + REACH
    while True:
        try:
            line = _introduced(address, key, started)
        except (Refused, ConnectionRefusedError):
            raise
        except (ConnectionError, TimeoutError, BlockingIOError):
            # A driver with too many callers drops the oldest.
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN)
        else:
            prompt(line)
            return line


def _introduced(address: str, key: bytes, started: Started) -> Connection:
    """Returns a connection on which both sides have authenticated."""
    with _uppermost(_dialled(address)) as line:
        if not _is_own(line):
            raise Refused(f"{address} belongs to another user")
        line.settimeout(HANDSHAKE)
        introduce(line, key, started)
        line.settimeout(None)
        return Connection(line.detach())


def _dialled(address: str) -> socket.socket:
    """Opens a connection to an address, with a timeout for each side's answer."""
    if not address.startswith("@"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), HANDSHAKE)
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(HANDSHAKE)
        line.connect(address.replace("@", "\0", 1))
    except BaseException:
        line.close()
        raise
    return line


def _uppermost(line: socket.socket) -> socket.socket:
    """Moves a socket to a descriptor above all others of this process.

    Linux closes the files of a process in descending order of their descriptors. A launcher kills
    the other ranks as soon as its socket to this rank closes. The driver must see this connection
    close before, or it reports one of the other ranks as the first to end.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = UPPERMOST if limit == resource.RLIM_INFINITY else min(UPPERMOST, limit - 8)
    with line:
        return socket.socket(fileno=fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, least))


def patience(line: Connection, seconds: float) -> None:
    """Sets the timeout of reads from a connection; 0 seconds means none."""
    whole_seconds = int(seconds)
    with socket.socket(fileno=os.dup(line.fileno())) as end:
        limit = struct.pack("ll", whole_seconds, int((seconds - whole_seconds) * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def prompt(line: Connection) -> None:
    """Sends small messages at once; by default TCP waits for an acknowledgement."""
    with (
        contextlib.suppress(OSError),  # a local socket never waits
        socket.socket(fileno=os.dup(line.fileno())) as end,
    ):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
