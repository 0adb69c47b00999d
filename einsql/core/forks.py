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
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

from einsql.errors import OperationalError

T = TypeVar("T")

WAIT = 60.0
"""Seconds for which a fork waits for work that it must not interrupt: the first kernel compiles
within a second on an idle machine, and Numba is loaded before."""
LOOK = 1e-4
"""Seconds between two checks whether threads are done; short products take about as long."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an object cannot be used in a child.

    Attributes:
        process: Id of the process that made the object.
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
        """Called once in a child: refuses from now on, and releases nothing."""


_owners: dict[int, ReferenceType[Owner]] = {}
"""By the ids of the objects. Not a WeakSet: to list a dict's values takes one step, during which
no other thread adds one."""
_functions: list[Callable[[], None]] = []
_undisturbed: list[Undisturbed] = []
_process = _parent = os.getpid()
_depth = 0


class _Forking(threading.local):
    """The forks that this thread has begun: what waits for them, and what may not be destroyed."""

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
    """Notifies an object of a fork in the child, for as long as the object lives."""
    key = id(owner)
    _owners[key] = ref(owner, lambda _: _owners.pop(key, None))


def at_fork(function: Callable[[], None]) -> None:
    """Has a function called in every child; it makes a module's state anew."""
    _functions.append(function)


def never_destroy(thing: object) -> None:
    """Keeps an object until the end of the process, even without other references.

    The reference is never released, so no destructor runs when the interpreter ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Undisturbed:
    """A section of work that forks wait for, until no other thread is in it.

    It is for work that takes locks or waits for threads within libraries. A child would inherit
    those locks in a locked state, and OpenBLAS ends its threads before each fork, even during a
    product. The section is reentrant, and a thread inside it may fork.

    Args:
        work: The work as a participle, as in "compiled".
    """

    def __init__(self, work: str) -> None:
        self._work = work
        self._inside: list[int] = []
        """Ids of threads, each as often as it is inside. Lists change in one step."""
        self._stopped = False
        """Whether a fork waits, or a child may not begin at all."""
        self._forks = threading.Lock()
        self._interrupted: int | None = None
        _undisturbed.append(self)

    def __enter__(self) -> None:
        """Begins, after the forks that wait.

        Raises:
            OperationalError: A thread of the parent process was at it for `WAIT` seconds.
        """
        me = get_ident()
        self._inside.append(me)  # first: a fork says that it waits, and then looks
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
        """Waits until no other thread is inside; False if that takes too long."""
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
        """Lets others begin, in the parent and in the child."""
        self._stopped = False
        self._forks.release()

    def interrupt(self, process: int) -> None:
        """In a child: the fork has not waited any longer."""
        self._stopped, self._interrupted = True, process


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first needs it.

    Args:
        make: Makes it; gets that of the parent process, or None.
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
        """Forgets the parent's value, which is never destroyed here."""
        register(self)  # a child of the child has to forget its own
        if self._value is not None:
            never_destroy(self._value)
            self._inherited, self._value = self._value, None


def _before() -> None:
    waited = [work for work in _undisturbed if work.begin_fork()]
    # Python drops the locals of other threads in a child before it calls `_in_child`: what only
    # they refer to would be destroyed there.
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
    _owners.clear()  # a child of the child inherits what refuses already
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
        raise failures[0]  # Python reports it and goes on


class _QuietEnd:
    """Ends a child's standard error when its interpreter clears `sys`, the last module.

    Nothing but libraries write there afterwards. DuckDB's, by nanobind, reports every object that
    still exists as leaked, which is intended here: some sixty lines at the end of each child.
    """

    def __del__(
        self,
        open_file: Callable[[str, int], int] = os.open,
        replace: Callable[[int, int], int] = os.dup2,
        null: tuple[str, int] = (os.devnull, os.O_WRONLY),
    ) -> None:  # names of modules mean nothing any more
        replace(open_file(*null), 2)


def _attempt(call: Callable[[], None], failures: list[Exception]) -> None:
    """One owner that fails must not keep the others from refusing."""
    try:
        call()
    except Exception as error:
        failures.append(error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
