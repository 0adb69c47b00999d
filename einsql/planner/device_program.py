"""Programs whose relations stay on a device: what goes there, and what is fetched from it."""

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
from einsql.storage.fields import RemoteFields
from einsql.storage.relation import copied

IsStored = Callable[[str, Arrays], bool]
"""True for the name and fields of an input that is a stored tensor, which never change."""

_one_at_a_time = threading.Lock()  # two threads that begin at once would each make one


def _unlock() -> None:
    """In a child of a fork: the thread that may have held the lock is not there."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


forks.at_fork(_unlock)


def shared_memory() -> Memory:
    """The memory of this process's device; sessions share it, whatever their limits.

    Raises:
        OperationalError: There is no device.
    """
    with _one_at_a_time:
        found: Any = device()  # the protocol does not promise a hash
        return _memory_of(found)


@lru_cache(maxsize=1)
def _memory_of(found: Device) -> Memory:
    return Memory(found)


class DeviceProgram(Program):
    """A compiled graph whose steps run on the device.

    Args:
        root: The graph.
        settings: Which precision, and how much memory.
        is_stored: Which inputs are stored tensors.

    Raises:
        OperationalError: There is no device.
    """

    def __init__(self, root: Node, settings: Settings, is_stored: IsStored) -> None:
        self.memory = shared_memory()
        self.is_stored = is_stored

        def compile_node(node: EinSum) -> CompiledNode[Runner]:
            compiled = compile_on_device(
                node, self.memory, settings.matmul_precision, settings.jit,
                limit=settings.device_memory,
            )  # fmt: skip
            return CompiledNode(compiled.kernel, self._runner(compiled.run), compiled.views)

        self.measuring = False
        super().__init__(root, compile_node)

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Arrays]:
        """As `Program.run`; a field is copied from the device when it is read."""
        return [self._result(handles) for handles in super().run(self._given(inputs), tick)]

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Arrays], Measure]:
        """As `Program.measured`."""
        self.measuring = True
        try:
            roots, measure = super().measured(self._given(inputs), tick)
        finally:
            self.measuring = False
        return [self._result(handles) for handles in roots], measure

    def _runner(self, runner: DeviceRunner) -> Runner:
        """A runner as `Program` knows them; it only passes on what they take and give."""

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
        """The root's fields: what computed nothing is the caller's own arrays."""
        if all(h.is_given for h in handles.values()):
            return {name: h.host() for name, h in handles.items()}
        return DeviceFields(handles)


class DeviceFields(RemoteFields):
    """Fields on a device; each is copied from it once, when it is read."""

    is_detached = True

    def __init__(self, handles: Mapping[str, Handle]) -> None:
        self._handles = dict(handles)
        # What a step did not compute may change from now on, or its file may go.
        self._local = {name: copied(h.host()) for name, h in handles.items() if h.is_given}

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays that were copied from the device."""
        return self._local

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._local:
            handle = self._handles[name]
            array = handle.host()
            # A view may be of what another field is too, and the caller may write into each.
            self._local[name] = copied(array) if handle.views else array
        return self._local[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


class _Given(Mapping[str, Handle]):
    """An input's fields as handles, each made when it is asked for."""

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
