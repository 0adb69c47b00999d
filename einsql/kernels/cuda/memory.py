"""Relations on a device, and those that are evicted to the processor's memory.

A buffer is the elements of one field, in one memory or in both; handles are views of buffers.
When room is needed, the least recently used buffers leave the device, and are copied out unless
the processor has their elements. Stored tensors never change, so their buffers are cached
between statements.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from einsql.kernels.cuda.device import Array, Device, is_shortage
from einsql.kernels.vectorized.views import unrepeated

View = Callable[[Array], Array]
"""An array, on the device or not, re-indexed without a copy where its memory allows."""


class Buffer:
    """The elements of a field, in C order when they come to the device.

    Attributes:
        array: Those on the device, or None.
        host: Those in the processor's memory, or None.
        stored: Whether a stored tensor has them, so that they need no copy when they leave.
        made: Whether a step computed them, so that the caller shares no memory with them.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, stored: bool = False) -> None:
        self.shape, self.dtype, self.stored = shape, dtype, stored
        self.made = False
        self.host: np.ndarray | None = None
        self.array: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Handle:
    """A field of a relation: a buffer, or a view of one.

    Attributes:
        memory: The memory that the buffer is in, or comes to.
        source: The stored tensor's array that the buffer is a copy of.
        views: Views to take of the buffer's array, in order.
    """

    memory: Memory
    buffer: Buffer
    shape: tuple[int, ...]
    source: np.ndarray | None = None
    views: tuple[View, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """The type of its elements."""
        return self.buffer.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def viewed(self, view: View, shape: tuple[int, ...]) -> Handle:
        """A view of this."""
        return replace(self, shape=shape, views=(*self.views, view))

    def whole(self) -> np.ndarray:
        """The buffer's elements in the processor's memory, where they are kept from now on."""
        if self.source is not None:
            return self.source
        return self.memory.held(self.buffer)

    def host(self) -> np.ndarray:
        """The elements in the processor's memory; they may be shared, so leave them alone."""
        return np.asarray(self._through(self.whole()))

    def device(self) -> Array:
        """The elements on the device, where `Memory.bring` has put the buffer."""
        return self._through(self.buffer.array)

    @property
    def is_given(self) -> bool:
        """True if it shows an array of a tensor or of the caller's."""
        return not self.buffer.made

    def _through(self, array: Any) -> Any:
        for view in self.views:
            array = view(array)
        return array


class Memory:
    """The memory of a device. All users share one object, because its limit is for all of them.

    Args:
        device: The device.

    Attributes:
        lock: Held by a step from bringing its operands until its results are entered, so that
            no other thread moves them, or takes the room, meanwhile. The device has one stream,
            so steps of several threads run one after the other anyway.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # Bytes and buffers, least recently used first. Those that are dropped leave by
        # themselves, at any moment and in any thread: that may not wait for the lock.
        self._there: dict[int, tuple[int, weakref.ref[Buffer]]] = {}
        self._stored: dict[int, tuple[weakref.ref[np.ndarray], Buffer]] = {}
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        """Bytes that buffers take on the device."""
        return sum(nbytes for nbytes, _ in list(self._there.values()))

    def given(self, array: np.ndarray, made: bool = False) -> Handle:
        """A handle on an array of the caller's, which may change after the statement.

        Args:
            array: The array, in the processor's memory.
            made: Whether a step has computed it, so that the caller does not have it.
        """
        core = unrepeated(array)
        buffer = Buffer(core.shape, core.dtype)
        buffer.host, buffer.made = core, made
        return self._repeated(buffer, array.shape)

    def stored(self, array: np.ndarray) -> Handle:
        """A handle on an array that never changes; its copy on the device is used again."""
        key = id(array)
        with self.lock:
            entry = self._stored.get(key)
            if entry is None or entry[0]() is not array:
                # The entry must not keep the array alive: a dropped array has to be freed.
                buffer = Buffer(array.shape, array.dtype, stored=True)
                gone = weakref.ref(array, lambda _: self._stored.pop(key, None))
                entry = self._stored[key] = gone, buffer
        return Handle(self, entry[1], array.shape, array)

    def made(self, array: Array) -> Handle:
        """A handle on a result of the device's."""
        core = unrepeated(array)
        buffer = Buffer(tuple(core.shape), np.dtype(core.dtype))
        with self.lock:
            buffer.array, buffer.made = core, True
            self._enter(buffer)
        return self._repeated(buffer, tuple(array.shape))

    def _repeated(self, buffer: Buffer, shape: tuple[int, ...]) -> Handle:
        """A handle on a buffer that is repeated along axes of length 1."""
        handle = Handle(self, buffer, buffer.shape)
        if buffer.shape == shape:
            return handle
        return handle.viewed(lambda a: np.broadcast_to(a, shape), shape)

    def held(self, buffer: Buffer) -> np.ndarray:
        """A buffer's elements in the processor's memory.

        Raises:
            MemoryError: There is too little of it, or on the device for the copy.
        """
        with self.lock:
            if buffer.host is None:
                try:
                    buffer.host = self.device.download(buffer.array)
                except Exception as error:
                    if isinstance(error, MemoryError) or not is_shortage(error):
                        raise
                    raise MemoryError(str(error)) from error
            return buffer.host

    def bring(self, handles: Sequence[Handle], room: int, limit: int) -> bool:
        """Puts handles on the device, with room for more bytes beside them.

        Args:
            handles: The arrays that have to be on the device.
            room: Bytes that are to be free.
            limit: Bytes that all buffers may take with these, at most the device's memory.

        Returns:
            False if that is more than the limit; nothing has moved then.

        Raises:
            Exception: The device has less free than the limit says; see `is_shortage`.
        """
        with self.lock:
            wanted = {id(h.buffer): h for h in handles}
            if sum(h.buffer.nbytes for h in wanted.values()) + room > limit:
                return False
            missing = [h for h in wanted.values() if h.buffer.array is None]
            self._clear(sum(h.buffer.nbytes for h in missing) + room, set(wanted), limit)
            for h in missing:
                h.buffer.array = self.device.upload(h.whole())
                self._enter(h.buffer)
            for key in wanted:
                self._there[key] = self._there.pop(key)
            return True

    def _clear(self, room: int, keep: set[int], limit: int) -> None:
        """Moves buffers out, but for those kept, until so many bytes are free."""
        over = self.used + room - limit
        # Lists of values are made without new objects, so that nothing is collected meanwhile.
        for nbytes, ref in list(self._there.values()):
            if over <= 0:
                return
            buffer = ref()
            if buffer is None or id(buffer) in keep:
                continue
            if not buffer.stored:
                self.held(buffer)
            del self._there[id(buffer)]
            buffer.array = None
            over -= nbytes

    def _enter(self, buffer: Buffer) -> None:
        key = id(buffer)
        gone = weakref.ref(buffer, lambda _: self._there.pop(key, None))
        self._there[key] = buffer.nbytes, gone
