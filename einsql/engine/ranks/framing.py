"""Messages over a socket: a pickle, and its arrays behind it without a copy.

Arrays go in pieces, so that a long message can be withdrawn between two of them, and one
that does not fit into memory leaves the socket where the next message starts. Small arrays
are copied into the pickle instead: a message of nothing else is written and read at once.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PIECE = 2**23
"""Bytes that are sent without asking whether the message is still wanted."""

PACKED = 2**13
"""Bytes of an array, at most, that is copied: to write and read it by itself takes longer."""

_MORE, _NO_MORE = b"\1", b"\0"


class Withdrawn(Exception):  # noqa: N818 - the sender's change of mind is no error
    """The sender did not finish this message; nothing of it counts."""


class Unread(Exception):  # noqa: N818 - it carries an error to the caller that waits for an answer
    """A message arrived that cannot be read; the next one can.

    Attributes:
        number: Of the message.
        together: True if others do the same at the same time.
        reason: Why.
    """

    def __init__(self, number: int, together: bool, reason: BaseException) -> None:
        super().__init__(number, together, reason)
        self.number = number
        self.together = together
        self.reason = reason


def send(
    connection: Connection, message: object, wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Sends a message.

    Args:
        connection: The connection to the receiver.
        message: Anything that can be pickled.
        wanted: Asked between pieces of its arrays; when it says no, the message is withdrawn.

    Returns:
        Whether all of it was sent.

    Raises:
        OSError: Nobody listens any more.
    """
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [b.raw() for b in buffers]
    head = (getattr(message, "number", 0), getattr(message, "together", False), body)
    packed = [bytearray(v) if v.nbytes <= PACKED else v.nbytes for v in views]
    connection.send_bytes(pickle.dumps((*head, packed), protocol=5))
    out = connection.fileno()
    for view in (v for v in views if v.nbytes > PACKED):
        for start in range(0, view.nbytes, PIECE):
            if not wanted():
                os.write(out, _NO_MORE)
                return False
            _write(out, [memoryview(_MORE), view[start : start + PIECE]])
    return True


def receive(
    connection: Connection,
    glance: Callable[[], None] = lambda: None,
    into: Sequence[np.ndarray] = (),
) -> Any:
    """Waits for a message; its arrays are writable and their own.

    Args:
        connection: The connection to the sender.
        glance: Called between pieces of arrays; must not raise.
        into: Where the arrays belong if there are as many; those that are contiguous and
            as large are received in place.

    Raises:
        Withdrawn: The sender took it back.
        Unread: It cannot be read here, for want of memory perhaps.
        EOFError: The other side has gone.
        OSError: Likewise.
    """
    number, together, body, packed = pickle.loads(connection.recv_bytes())
    source, buffers = connection.fileno(), list[np.ndarray | bytearray]()
    reason: BaseException | None = None
    spare: memoryview | None = None
    targets = into if len(into) == len(packed) else (None,) * len(packed)
    for size, target in zip(packed, targets, strict=True):
        if isinstance(size, bytearray):
            buffers.append(size if target is None else _copied(size, target))
            continue
        buffer = None
        if reason is None:
            try:
                buffer = _memory(target, size)
                buffers.append(buffer)
            except MemoryError as error:
                reason = error
        if buffer is None and spare is None:
            spare = memoryview(bytearray(PIECE))
        for start in range(0, size, PIECE):
            glance()
            length = min(PIECE, size - start)
            mark = memoryview(bytearray(1))
            _read(source, mark)
            if bytes(mark) == _NO_MORE:
                raise Withdrawn
            block = spare if buffer is None else buffer.data[start:]
            assert block is not None
            _read(source, block[:length])
    try:
        if reason is not None:
            raise reason
        return pickle.loads(body, buffers=buffers)
    except Exception as error:
        raise Unread(number, together, error) from error


def _memory(target: np.ndarray | None, size: int) -> np.ndarray:
    """Bytes to receive into: the target's own if they are as many and in one piece."""
    if target is None or target.nbytes != size or not target.flags.c_contiguous:
        return np.empty(size, np.uint8)
    return target.reshape(-1).view(np.uint8)


def _copied(packed: bytearray, target: np.ndarray) -> np.ndarray:
    """The packed bytes as an array, in the target if they fit there."""
    array = _memory(target, len(packed))
    array[:] = np.frombuffer(packed, np.uint8)
    return array


def _write(out: int, parts: list[memoryview]) -> None:
    while parts:
        done = os.writev(out, parts)
        while parts and done >= parts[0].nbytes:
            done -= parts.pop(0).nbytes
        if done:
            parts[0] = parts[0][done:]


def _read(source: int, view: memoryview) -> None:
    while view.nbytes:
        done = os.readv(source, [view])
        if done == 0:
            raise EOFError
        view = view[done:]
