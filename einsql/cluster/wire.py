"""Messages over a socket: a pickle, and its arrays behind it without a copy."""

from __future__ import annotations

import pickle
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


def receive(connection: Connection) -> Any:
    """Waits for a message; its arrays are writable and their own.

    Raises:
        EOFError: The other side has gone.
        OSError: Likewise.
    """
    body, sizes = pickle.loads(connection.recv_bytes())
    buffers = []
    for size in sizes:
        buffer = np.empty(size, np.uint8)
        if size:
            connection.recv_bytes_into(buffer.data)
        buffers.append(buffer)
    return pickle.loads(body, buffers=buffers)
