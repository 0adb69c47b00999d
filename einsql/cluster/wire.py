"""Messages over a socket: a pickle, and its arrays behind it without a copy."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def send(connection: Connection, message: object) -> None:
    """Sends a message.

    Raises:
        OSError: Nobody listens any more.
    """
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [b.raw() for b in buffers]
    connection.send_bytes(pickle.dumps((body, [v.nbytes for v in views])))
    for view in views:
        if view.nbytes:
            connection.send_bytes(view)


def receive(connection: Connection, into: Sequence[np.ndarray] = ()) -> Any:
    """Waits for a message; its arrays are writable and their own.

    Args:
        connection: From whom.
        into: Where the arrays belong if there are as many; those that are contiguous and
            as large are received in place.

    Raises:
        EOFError: The other side has gone.
        OSError: Likewise.
    """
    body, sizes = pickle.loads(connection.recv_bytes())
    buffers = []
    targets = into if len(into) == len(sizes) else (None,) * len(sizes)
    for size, target in zip(sizes, targets, strict=True):
        buffer = _memory(target, size)
        if size:
            connection.recv_bytes_into(buffer.data)
        buffers.append(buffer)
    return pickle.loads(body, buffers=buffers)


def _memory(target: np.ndarray | None, size: int) -> np.ndarray:
    """Bytes to receive into: the target's own if they are as many and in one piece."""
    if target is None or target.nbytes != size or not target.flags.c_contiguous:
        return np.empty(size, np.uint8)
    return target.reshape(-1).view(np.uint8)
