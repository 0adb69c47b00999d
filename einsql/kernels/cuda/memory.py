"""Relations on a device, and their eviction to host memory.

A buffer contains the elements of one field, in device memory, host memory or both. Handles are
views of buffers. If memory is needed, the least recently used buffers are evicted, and copied to
the host unless it has their elements. Stored tensors never change, so their buffers are cached
between statements.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.kernels.cuda.device import Array, Device, is_shortage
from einsql.kernels.vectorized.views import unrepeated

View = Callable[[Array], Array]
"""A function that re-indexes a device or host array, without a copy if strides allow."""


class Buffer:
    """The elements of a field; they are copied to the device in C order.

    Attributes:
        array: The elements on the device, or None.
        host: The elements in host memory, or None.
        stored: Whether a stored tensor has the elements, so that eviction needs no copy.
        made: Whether a step computed the elements, so that the caller shares no memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, stored: bool = False) -> None:
        self.shape, self.dtype, self.stored = shape, dtype, stored
        self.made = False
        self.host: np.ndarray | None = None
        self.array: Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer on the device."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Handle:
    """A field of a relation: a buffer, or a view of one.

    Attributes:
        memory: The device memory of the buffer.
        source: The stored tensor's array of which the buffer is a copy.
        views: The views of the buffer's array, applied in order.
    """

    memory: Memory
    buffer: Buffer
    shape: tuple[int, ...]
    source: np.ndarray | None = None
    views: tuple[View, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return self.buffer.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    def viewed(self, view: View, shape: tuple[int, ...]) -> Handle:
        """Creates a view of this handle."""
        return replace(self, shape=shape, views=(*self.views, view))

    def whole(self) -> np.ndarray:
        """The buffer's elements in host memory, where they are cached."""
        if self.source is not None:
            return self.source
        return self.memory.held(self.buffer)

    def host(self) -> np.ndarray:
        """The elements in host memory; the array may be shared and must not be changed."""
        return np.asarray(self._through(self.whole()))

    def device(self) -> Array:
        """The elements on the device, after `Memory.bring`."""
        return self._through(self.buffer.array)

    @property
    def is_given(self) -> bool:
        """True if it shares memory with a tensor or an array of the caller."""
        return not self.buffer.made

    def _through(self, array: Any) -> Any:
        for view in self.views:
            array = view(array)
        return array


class Memory:
    """The memory of a device. All users share one object and its limit.

    Args:
        device: The device.

    Attributes:
        lock: Lock of a step, from copying its operands to the device until its results are
            registered, so that no other thread evicts them or uses the memory. The device has
            one stream, so steps of several threads are sequential anyway.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # Bytes and buffers, least recently used first. Garbage collection removes buffers
        # at any moment and in any thread, so removal must not wait for the lock.
        self._there: dict[int, tuple[int, weakref.ref[Buffer]]] = {}
        self._stored: dict[int, tuple[weakref.ref[np.ndarray], Buffer]] = {}
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        """The bytes of all buffers on the device."""
        return sum(nbytes for nbytes, _ in list(self._there.values()))

    def given(self, array: np.ndarray, made: bool = False) -> Handle:
        """Creates a handle of an array of the caller, which may change after the statement.

        Args:
            array: The array in host memory.
            made: Whether a step has computed it, so that the caller does not reference it.
        """
        core = unrepeated(array)
        buffer = Buffer(core.shape, core.dtype)
        buffer.host, buffer.made = core, made
        return self._repeated(buffer, array.shape)

    def stored(self, array: np.ndarray) -> Handle:
        """Returns a handle of an array that never changes; its device copy is cached."""
        key = id(array)
        with self.lock:
            entry = self._stored.get(key)
            if entry is None or entry[0]() is not array:
                # The entry must not reference the array, so that the array can be freed.
                buffer = Buffer(array.shape, array.dtype, stored=True)
                gone = weakref.ref(array, lambda _: self._stored.pop(key, None))
                entry = self._stored[key] = gone, buffer
        return Handle(self, entry[1], array.shape, array)

    def made(self, array: Array) -> Handle:
        """Creates a handle of a result on the device."""
        core = unrepeated(array)
        buffer = Buffer(tuple(core.shape), np.dtype(core.dtype))
        with self.lock:
            buffer.array, buffer.made = core, True
            self._enter(buffer)
        return self._repeated(buffer, tuple(array.shape))

    def _repeated(self, buffer: Buffer, shape: tuple[int, ...]) -> Handle:
        """Creates a handle of a buffer that is broadcast along axes of length 1."""
        handle = Handle(self, buffer, buffer.shape)
        if buffer.shape == shape:
            return handle
        return handle.viewed(lambda a: np.broadcast_to(a, shape), shape)

    def held(self, buffer: Buffer) -> np.ndarray:
        """A buffer's elements in host memory.

        Raises:
            MemoryError: The host lacks memory, or the device lacks memory for the copy.
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
        """Copies handles to the device and reserves free memory.

        Args:
            handles: The handles of arrays that have to be on the device.
            room: Bytes that have to be free.
            limit: Greatest bytes of all buffers with `room`, at most the device's memory.

        Returns:
            False, without any copy, if the limit is too small.

        Raises:
            Exception: The device has less free memory than the limit; see `is_shortage`.
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
        """Evicts buffers, except excluded ones, until a number of bytes are free."""
        over = self.used + room - limit
        # Lists of values create no new objects, so that no garbage collection intervenes.
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
