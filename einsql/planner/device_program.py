"""Programs whose relations stay on a device: copies to the device, and fetches of results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from einsql.core import forks
from einsql.core.settings import Settings
from einsql.engine.executor import Program
from einsql.engine.step import Arrays, Measure, Runner, Tick
from einsql.ir.einsum.graph import EinSum, Node
from einsql.kernels.cuda import Handle, Memory, compile_on_device, device
from einsql.kernels.cuda.device import Device
from einsql.kernels.cuda.operators import Runner as DeviceRunner
from einsql.kernels.kernel import CompiledNode
from einsql.planner.compile import at_sites
from einsql.storage.fields import RemoteFields
from einsql.storage.relation import copied

IsStored = Callable[[str, Arrays], bool]
"""Whether an input is a stored tensor, which never changes; given its name and fields."""

_one_at_a_time = threading.Lock()  # two threads must not create two memories


def _unlock() -> None:
    """In a forked child: replaces the lock, whose owner may not exist there."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


forks.at_fork(_unlock)


def shared_memory() -> Memory:
    """Returns the memory of this process's device; sessions with different limits share it.

    Raises:
        OperationalError: There is no device.
    """
    with _one_at_a_time:
        gpu: Any = device()  # the protocol does not promise a hash
        return _memory_of(gpu)


@lru_cache(maxsize=1)
def _memory_of(gpu: Device) -> Memory:
    return Memory(gpu)


class DeviceProgram(Program):
    """A compiled graph whose steps run on the device.

    Args:
        root: The graph.
        settings: The precision and the memory limit.
        is_stored: Returns whether an input is a stored tensor.

    Raises:
        OperationalError: There is no device.
    """

    def __init__(self, root: Node, settings: Settings, is_stored: IsStored) -> None:
        self.memory = shared_memory()
        self.is_stored = is_stored

        def compile_node(node: EinSum) -> CompiledNode[Runner]:
            compiled = compile_on_device(
                node, self.memory, settings.matmul_precision, at_sites(settings),
                limit=settings.device_memory,
            )  # fmt: skip
            return CompiledNode(compiled.kernel, self._runner(compiled.run), compiled.views)

        self.measuring = False
        super().__init__(root, compile_node)

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Arrays]:
        """See `Program.run`; a field is copied from the device at its first read."""
        return [self._result(handles) for handles in super().run(self._given(inputs), tick)]

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Arrays], Measure]:
        """See `Program.measured`."""
        self.measuring = True
        try:
            roots, measure = super().measured(self._given(inputs), tick)
        finally:
            self.measuring = False
        return [self._result(handles) for handles in roots], measure

    def _runner(self, runner: DeviceRunner) -> Runner:
        """Adapts a device runner to the interface of `Program`."""

        def run(operands: Sequence[Any], tick: Tick) -> Any:
            handles = runner(operands, tick)
            if self.measuring:
                self.memory.device.wait()
            return handles

        return run

    def _given(self, inputs: Mapping[str, Arrays]) -> dict[str, Any]:
        return {
            name: _Given(fields, self.memory, self.is_stored(name, fields))
            for name, fields in inputs.items()
        }

    def _result(self, handles: Mapping[str, Any]) -> Arrays:
        """Returns the root's fields; a field that no step computed is the caller's array."""
        if all(h.is_given for h in handles.values()):
            return {name: h.host() for name, h in handles.items()}
        return DeviceFields(handles)


class DeviceFields(RemoteFields):
    """Fields on a device; each is copied from it once, at its first read."""

    is_detached = True

    def __init__(self, handles: Mapping[str, Handle]) -> None:
        self._handles = dict(handles)
        # Uncomputed fields may be changed by the caller, or belong to a file that is removed.
        self._local = {name: copied(h.host()) for name, h in handles.items() if h.is_given}

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays that were copied from the device."""
        return self._local

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._local:
            handle = self._handles[name]
            array = handle.host()
            # Fields may be views of the same memory, and the caller may write into each.
            self._local[name] = copied(array) if handle.views else array
        return self._local[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


class _Given(Mapping[str, Handle]):
    """An input's fields as handles, each created at its first read."""

    def __init__(self, fields: Arrays, memory: Memory, stored: bool) -> None:
        self._fields, self._memory, self._stored = fields, memory, stored
        self._made: dict[str, Handle] = {}

    def __getitem__(self, name: str) -> Handle:
        if name not in self._made:
            hold = self._memory.stored if self._stored else self._memory.given
            self._made[name] = hold(self._fields[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)
