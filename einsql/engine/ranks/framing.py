"""Messages over a socket: a pickle, followed by its arrays without a copy.

Arrays are sent in pieces. A sender can withdraw a long message between two pieces, and after a
message that does not fit into memory the receiver reads up to the next message. Small arrays
are copied into the pickle: a message without large arrays takes one write and one read.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PIECE = 2**23
"""Bytes that are sent between two checks whether the message is still wanted."""

PACKED = 2**13
"""Greatest size in bytes of an array that is copied; separate reads and writes take longer."""

_MORE, _NO_MORE = b"\1", b"\0"


class Withdrawn(Exception):  # noqa: N818 - a withdrawal by the sender is no error
    """The sender withdrew this message; the receiver ignores its content."""


class Unread(Exception):  # noqa: N818 - it carries an error to the caller that waits for an answer
    """A message could not be read; the connection is ready for the next message.

    Attributes:
        number: The message's number.
        together: Whether all ranks run this command together.
        reason: The error.
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
        message: An object that can be pickled.
        wanted: Checked between pieces of arrays; False withdraws the message.

    Returns:
        Whether the complete message was sent.

    Raises:
        OSError: The receiver has closed the connection.
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
    """Waits for a message. Its arrays are writable and own their memory.

    Args:
        connection: The connection to the sender.
        glance: Callback between pieces of arrays; must not raise.
        into: Target arrays, used if the message has as many arrays; contiguous targets of the
            same size are received in place.

    Raises:
        Withdrawn: The sender withdrew the message.
        Unread: The message cannot be read, for example because memory is short.
        EOFError: The sender has closed the connection.
        OSError: The connection is broken.
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
    """Returns bytes to receive into: the target's memory if it is contiguous and of this size."""
    if target is None or target.nbytes != size or not target.flags.c_contiguous:
        return np.empty(size, np.uint8)
    return target.reshape(-1).view(np.uint8)


def _copied(packed: bytearray, target: np.ndarray) -> np.ndarray:
    """Returns the packed bytes as an array, in the target if they fit there."""
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
