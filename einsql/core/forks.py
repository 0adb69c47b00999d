"""Forks: resources that a child process inherits and must not use.

`os.fork` copies a process's memory, but neither its threads nor its file locks. A lock that
another thread held is never released in the child. Owners of such resources register here, and
are notified in a child before anything else runs there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

from einsql.core.records import dataclass
from einsql.errors import OperationalError

T = TypeVar("T")

WAIT = 60.0
"""Seconds for which a fork waits for work that it must not interrupt. Compiling the first kernel
takes half a second on an idle machine."""
LOOK = 1e-4
"""Seconds between two checks whether threads have finished: the time of a short product."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why an object cannot be used in a child.

    Attributes:
        process: The id of the process that created the object.
    """

    process: int

    def __call__(self) -> OperationalError:
        """A new exception."""
        return OperationalError(
            f"This connection was opened in process {self.process} before a fork; open a new one "
            "in this process",
            hint="Results that were fetched before the fork stay readable.",
        )

    def refuse(self, *_: object, **__: object) -> Any:
        """Replaces a function that must not be called.

        Raises:
            OperationalError: Always.
        """
        raise self()


class Owner(Protocol):
    """An owner of resources that a child must not use."""

    def forked(self, refusal: Refusal) -> None:
        """Called once in a child; the owner refuses later calls and releases nothing."""


_owners: dict[int, ReferenceType[Owner]] = {}
"""The owners by their ids. A dict's values are listed in one step, during which no other thread
adds an owner; a WeakSet does not allow this."""
_functions: list[Callable[[], None]] = []
_undisturbed: list[Undisturbed] = []
_process = _parent = os.getpid()
_depth = 0


class _Forking(threading.local):
    """The forks that this thread has begun, and the objects kept alive for them."""

    def __init__(self) -> None:
        self.begun: list[tuple[Sequence[Undisturbed], Sequence[object]]] = []


_forking = _Forking()


def depth() -> int:
    """The number of forks between the process that imported einsql and this one."""
    return _depth


def parent() -> int:
    """Id of the process that forked this one; its own id if none did."""
    return _parent


def register(owner: Owner) -> None:
    """Notifies an object of forks, in the child, until the object is destroyed."""
    key = id(owner)
    _owners[key] = ref(owner, lambda _: _owners.pop(key, None))


def at_fork(function: Callable[[], None]) -> None:
    """Registers a function to be called in every child, to create a module's state anew."""
    _functions.append(function)


def never_destroy(thing: object) -> None:
    """Keeps an object until the end of the process, even without other references.

    The reference is never released, so no destructor runs when the interpreter ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Undisturbed:
    """A section of work; a fork waits until no other thread is in it.

    Use it for work that acquires locks or waits for threads within libraries. A child would inherit
    those locks in a locked state, and OpenBLAS ends its threads before each fork, even during a
    product. The section is reentrant, and a thread inside it may fork.

    Args:
        work: The work as a participle for messages, as in "compiled".
    """

    def __init__(self, work: str) -> None:
        self._work = work
        self._inside: list[int] = []
        """The id of a thread for each of its entries. A list changes in one step."""
        self._stopped = False
        """Whether a fork waits, or threads of a child must not enter at all."""
        self._forks = threading.Lock()
        self._interrupted: int | None = None
        _undisturbed.append(self)

    def __enter__(self) -> None:
        """Enters the section, after the waiting forks.

        Raises:
            OperationalError: A thread of the parent process was in the section for `WAIT` seconds.
        """
        me = get_ident()
        self._inside.append(me)  # first: a fork sets `_stopped` before it checks the threads
        if self._stopped:
            self._give_way(me)

    def __exit__(self, *_: object) -> None:
        self._inside.remove(get_ident())

    def _give_way(self, me: int) -> None:
        if self._interrupted is not None:
            self._inside.remove(me)
            raise OperationalError(
                f"Process {self._interrupted} was forked while one of its threads {self._work}, "
                "so this child cannot",
                hint="Fork before, or start processes by multiprocessing's 'spawn'.",
            )
        while self._stopped and self._inside.count(me) == 1:
            self._inside.remove(me)
            with self._forks:
                pass
            self._inside.append(me)

    def begin_fork(self) -> bool:
        """Waits until no other thread is inside; returns False after `WAIT` seconds."""
        end = monotonic() + WAIT
        if not self._forks.acquire(timeout=WAIT):
            return False
        self._stopped, me = True, get_ident()
        while any(thread != me for thread in list(self._inside)):
            if monotonic() > end:
                self.end_fork()
                return False
            sleep(LOOK)
        return True

    def end_fork(self) -> None:
        """Allows threads to enter again, in the parent and in the child."""
        self._stopped = False
        self._forks.release()

    def interrupt(self, process: int) -> None:
        """Closes the section in a child whose fork waited in vain."""
        self._stopped, self._interrupted = True, process


class PerProcess(Generic[T]):
    """A value that each process creates at its first use.

    Args:
        make: Function that creates the value, from the parent process's value or None.
    """

    def __init__(self, make: Callable[[T | None], T]) -> None:
        self._make = make
        self._inherited: T | None = None
        self._value: T | None = None
        register(self)

    def get(self) -> T:
        """The value of this process."""
        value = self._value
        if value is None:
            value = self._value = self._make(self._inherited)
        return value

    def forked(self, refusal: Refusal) -> None:
        """Drops the parent's value, whose destructor never runs in this process."""
        register(self)  # a child of this child drops this child's value
        if self._value is not None:
            never_destroy(self._value)
            self._inherited, self._value = self._value, None


def _before() -> None:
    waited = [work for work in _undisturbed if work.begin_fork()]
    # Python drops the locals of other threads in a child before it calls `_in_child`. An object
    # to which only they refer would be destroyed there.
    owners = [owner for known in list(_owners.values()) if (owner := known()) is not None]
    _forking.begun.append((waited, owners))


def _in_parent() -> None:
    waited, _ = _forking.begun.pop()
    for work in waited:
        work.end_fork()


def _in_child() -> None:
    global _process, _parent, _depth
    _parent, _process, _depth = _process, os.getpid(), _depth + 1
    refusal = Refusal(_parent)
    owners = [owner for known in list(_owners.values()) if (owner := known()) is not None]
    _owners.clear()  # the owners refuse already, also in a child of this child
    failures: list[Exception] = []
    waited, _ = _forking.begun[-1]
    for work in _undisturbed:
        if work in waited:
            work.end_fork()
        else:
            work.interrupt(_parent)
    for function in _functions:
        _attempt(function, failures)
    for owner in owners:
        _attempt(partial(owner.forked, refusal), failures)
    _forking.begun.clear()
    if "_duckdb" in sys.modules:
        sys.__dict__["_einsql_quiet_end"] = _QuietEnd()
    if failures:
        raise failures[0]  # Python reports the exception and continues


class _QuietEnd:
    """Ends a child's standard error when its interpreter clears `sys`, the last module.

    Only libraries write there afterwards. DuckDB's uses nanobind, which reports every object that
    still exists as leaked. These objects are kept on purpose; the report has some sixty lines.
    """

    def __del__(
        self,
        open_file: Callable[[str, int], int] = os.open,
        replace: Callable[[int, int], int] = os.dup2,
        null: tuple[str, int] = (os.devnull, os.O_WRONLY),
    ) -> None:  # the modules' names are cleared already
        replace(open_file(*null), 2)


def _attempt(call: Callable[[], None], failures: list[Exception]) -> None:
    """Calls a function and collects its exception, so that all owners are notified."""
    try:
        call()
    except Exception as error:
        failures.append(error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
