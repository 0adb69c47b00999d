"""Classes of `records.dataclass` beside those of the standard decorator."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from pathlib import Path
from threading import Event, Thread
from types import FunctionType
from typing import Any, ClassVar

import pytest

import einsql
from einsql.core import records

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"eq": False},
    {"slots": True},
    {"slots": True, "eq": False, "weakref_slot": True},
    {"frozen": True},
    {"frozen": True, "repr": False},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
)
KINDS: dict[str, Any] = {"standard": dataclasses.dataclass, "records": records.dataclass}


def base_and_class(decorator: Callable[..., Any], options: dict[str, bool]) -> tuple[Any, Any]:
    """A class with every kind of field, and its base."""

    @decorator(**options)
    class Base:
        """A base."""

        kind: ClassVar[str] = "kind"
        a: int
        b: object = field(default=2, compare=False)

    @decorator(**{o: v for o, v in options.items() if o != "weakref_slot"})
    class Sub(Base):
        """A class with a base."""

        c: list[int] = field(default_factory=list, hash=False)
        d: str = field(default="d", repr=False, kw_only=True)
        e: str = field(default="e", init=False)
        f: list[int] = field(default_factory=list, init=False, hash=False)
        b: object = 3

        @property
        def both(self) -> tuple[object, object]:
            """Two fields."""
            return self.a, self.b

    return Base, Sub


def pairs(options: dict[str, bool]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    standard, ours = (base_and_class(decorator, options) for decorator in KINDS.values())
    return standard, ours


def raised(action: Callable[[], object]) -> tuple[type, str] | None:
    """The error that an action raises."""
    try:
        action()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("options", OPTIONS)
def test_instances_are_those_of_the_standard_decorator(options: dict[str, bool]) -> None:
    for standard, ours in zip(*pairs(options), strict=True):
        assert [(f.name, f.type) for f in fields(ours)] == [
            (f.name, f.type) for f in fields(standard)
        ]
        made = []
        for cls in (standard, ours):
            one, same, other = cls(a=1), cls(a=1), cls(a=5, b=[])
            if "c" in dir(cls):
                one.c.append(7)
                assert same.c == []
            shown = "" if options.get("repr") is False else repr(one)
            hashed = cls.__hash__ is not None and options.get("eq", True)
            made.append(
                (
                    [getattr(one, f.name) for f in fields(one)],
                    shown,
                    one == same,
                    one != other,
                    one == 1,
                    cls.__hash__ is None,
                    hash(one) == hash(same) if hashed else None,
                    [getattr(replace(other, a=9), f.name) for f in fields(one) if f.init],
                    cls.__match_args__,
                    getattr(cls, "__slots__", None),
                    hasattr(one, "__dict__"),
                )
            )
        assert made[0] == made[1]


@pytest.mark.parametrize("options", OPTIONS)
def test_errors_and_signatures_are_those_of_the_standard_decorator(
    options: dict[str, bool],
) -> None:
    for standard, ours in zip(*pairs(options), strict=True):
        assert str(inspect.signature(ours)) == str(inspect.signature(standard))
        for action in (
            lambda cls: cls(),
            lambda cls: cls(1, 2, 3, 4, 5, 6),
            lambda cls: cls(a=1, wrong=2),
            lambda cls: setattr(cls(a=1), "a", 2),
            lambda cls: delattr(cls(a=1), "a"),
        ):
            assert raised(lambda: action(ours)) == raised(lambda: action(standard))  # noqa: B023


@records.dataclass(frozen=True, slots=True)
class Point:
    """A class that pickle finds by its name."""

    x: float
    y: float = 0.0
    length: float = field(default=0.0, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", abs(self.x) + abs(self.y))


class Named(Point):
    """A class of another kind with a base of ours."""

    name = "named"


def test_frozen_instances_are_copied_and_pickled() -> None:
    point = Point(1.0, -2.0)
    assert point.length == 3.0
    for twin in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert twin == point
        assert twin.length == 3.0


def test_a_frozen_instance_refuses_and_a_subclass_of_it_refuses_only_fields() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        Point(1.0).other = 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1.0).x
    named = Named(1.0)
    named.name = "changed"
    assert (named.name, named.length) == ("changed", 1.0)
    with pytest.raises(FrozenInstanceError):
        named.x = 2.0  # type: ignore[misc]


def test_methods_in_the_class_are_kept() -> None:
    @records.dataclass(frozen=True)
    class Written:
        """A class that has its methods."""

        x: int

        def __repr__(self) -> str:
            return "repr"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Written(1)), Written(1) == Written(2), hash(Written(3))) == ("repr", True, 7)


def test_an_instance_that_contains_itself_is_printed() -> None:
    @records.dataclass
    class Ring:
        """A class of cycles."""

        next: object = None

    ring = Ring()
    ring.next = ring
    assert repr(ring).endswith("Ring(next=...)")


def test_methods_are_compiled_when_they_are_used() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Used:
        """A class whose methods are counted."""

        x: int

    def compiled() -> set[str]:
        names = ("__init__", "__eq__", "__hash__")
        return {n for n in names if isinstance(vars(Used)[n], FunctionType)}

    assert compiled() == set()
    one = Used(1)
    assert compiled() == {"__init__"}
    assert one == Used(1)
    assert compiled() == {"__init__", "__eq__"}
    assert {one, Used(1)} == {one}
    assert compiled() == {"__init__", "__eq__", "__hash__"}


def test_a_cached_property_is_computed_while_another_thread_computes_it() -> None:
    computing, finish = Event(), Event()

    class Slow:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        @records.cached_property
        def values(self) -> list[bool]:
            """A list."""
            if self.waits:
                computing.set()
                assert finish.wait(60)
            return [self.waits]

    slow = Slow(waits=True)
    thread = Thread(target=lambda: slow.values)
    thread.start()
    assert computing.wait(60)
    quick = Slow(waits=False)
    assert quick.values is quick.values
    assert quick.values == [False]
    finish.set()
    thread.join()
    assert vars(slow)["values"] == [True]
    assert Slow.values.__doc__ == "A list."


def test_a_cached_property_that_extends_that_of_its_base() -> None:
    class Base:
        @records.cached_property
        def names(self) -> list[str]:
            return ["base"]

    class Extended(Base):
        @records.cached_property
        def names(self) -> list[str]:
            return [*super().names, "extended"]

    extended = Extended()
    assert extended.names == ["base", "extended"]
    assert extended.names is extended.names
    assert Base().names == ["base"]


@pytest.mark.parametrize(
    ("module", "name"), [("dataclasses", "dataclass"), ("functools", "cached_property")]
)
def test_the_package_imports_these_from_records_only(module: str, name: str) -> None:
    """A class and its bases are of one kind, and no property has a lock that a fork copies."""
    paths = sorted(Path(einsql.__file__).parent.rglob("*.py"))
    imports = re.compile(rf"from {module} import (\([^)]*\)|.*)")
    names = {
        path.name
        for path in paths
        for imported in imports.findall(path.read_text(encoding="utf-8"))
        if re.search(rf"\b{name}\b", imported)
    }
    assert names <= {"records.py"}
