"""Unknowns: numbers that record what planning relies on.

A graph is bound and rewritten over `Unknown` objects in the place of its inputs' extents. They
have values, so that the code takes the branches for these values. Each comparison is recorded as a
condition, and each use as a plain number as the condition that the value stays. The recorder makes
the same graph for other extents, if they meet all conditions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SMALL = (0, 1, 2)
"""Numbers to which an unknown in a key of a dict is compared, because plans treat them apart."""
_UNLIKE = hash("unknown")
"""The hash of the other unknowns; dicts compare keys of equal hashes, which records conditions."""


def computed(function: Callable[..., T], *numbers: Any) -> T:
    """Calls a function of numbers without effects; the result is unknown if an argument is.

    Args:
        function: Returns a number, or another value that becomes a condition.
        numbers: The arguments.
    """
    for number in numbers:
        if type(number) is Unknown:
            called: T = number.recorder.call(function, numbers)
            return called
    return function(*numbers)


def spelling(number: object) -> Any:
    """The spelling of a number; of an unknown itself, which compares with spellings."""
    return number if type(number) is Unknown else repr(number)


def symbol(spelled: Any) -> str:
    """A text for a spelling, by which expressions are ordered.

    The text of an unknown is its place: its value would become a condition.
    """
    return f"?{spelled.slot:06}" if type(spelled) is Unknown else str(spelled)


class Recorder:
    """The terms, conditions and objects of one planning, as a program of its extents.

    The program computes numbers and tests conditions, then it creates objects. A slot has the value
    of an extent, a constant or a term.
    """

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._inputs: list[int] = []
        self._calls: list[tuple[Callable[..., Any], tuple[int, ...], int, Any]] = []
        self._constants: dict[object, int] = {}
        self._objects: list[tuple[Any, list[Any], list[tuple[int, int]]]] = []
        self._places: dict[int, tuple[Any, int]] = {}
        self._present: list[Any] = []
        self._closed = False
        self.terms: dict[object, Unknown] = {}
        self.tests: set[object] = set()

    def extent(self, value: int) -> Any:
        """Returns a new unknown with its present value."""
        self._inputs.append(len(self._values))
        return self._unknown(value)

    def call(self, function: Callable[..., Any], numbers: Sequence[Any]) -> Any:
        """Returns the result of a function of numbers, some of them unknowns.

        Zero, a float that is not finite and what is no number are conditions; others are unknowns.
        """
        slots = tuple(map(self._slot, numbers))
        called = function(*(self._values[s] for s in slots))
        if _is_usual(called):
            unknown = self._unknown(called)
            self._calls.append((partial(_usual, function, type(called)), slots, unknown.slot, None))
            return unknown
        self._calls.append((partial(_spelling, function), slots, -1, repr(called)))
        return called

    def operation(self, sign: str, left: Any, right: Any) -> Unknown:
        """Returns the result of an operation on numbers, some of them unknowns."""
        work = _OPERATIONS[sign]
        slots = self._slot(left), self._slot(right)
        term = self._unknown(work(self._values[slots[0]], self._values[slots[1]]))
        self._calls.append((work, slots, term.slot, None))
        return term

    def test(self, sign: str, left: Unknown, right: Any) -> None:
        """Records the result of a comparison as a condition."""
        if not self._closed:
            slots, work = (left.slot, self._slot(right)), _COMPARISONS[sign]
            holds = bool(work(self._values[slots[0]], self._values[slots[1]]))
            self._calls.append((work, slots, -1, holds))

    def _unknown(self, value: Any) -> Unknown:
        self._values.append(value)
        return Unknown(value, len(self._values) - 1, self)

    def _slot(self, number: Any) -> int:
        if type(number) is Unknown:
            return number.slot
        key = type(number), repr(number)
        slot = self._constants.get(key)
        if slot is None:
            slot = self._constants[key] = len(self._values)
            self._values.append(number)
        return slot

    # ---- objects

    def build(self, item: T, parts: Iterable[object] = ()) -> tuple[T, int]:
        """Returns an object of dataclasses and tuples with numbers in the place of unknowns.

        Args:
            item: The object.
            parts: Parts of the object, inner ones first, which limit the depth of the recursion.

        Returns:
            The object, and its place in the results of `run`; -1 if it has no unknowns.
        """
        for part in parts:
            self._place(part)
        place = self._place(item)
        return (self._present[place] if place >= 0 else item), place

    def close(self) -> None:
        """Ends the planning; printing a graph over unknowns adds no conditions from now on."""
        self._closed = True

    def _place(self, item: Any) -> int:
        """The place of an object over numbers; -1 if it has no unknowns."""
        kind = type(item)
        if kind is tuple:
            return self._create(tuple, item)
        known = self._places.get(id(item))
        if known is None:
            names = _names(kind)
            place = self._create(kind, [getattr(item, name) for name in names]) if names else -1
            known = self._places[id(item)] = item, place  # the item keeps its identity valid
        return known[1]

    def _create(self, kind: Any, parts: Sequence[Any]) -> int:
        holes: list[tuple[int, int]] = []
        for number, part in enumerate(parts):
            its = type(part)
            if its is Unknown:
                holes.append((number, ~part.slot))
            elif its not in _PLAIN and (place := self._place(part)) >= 0:
                holes.append((number, place))
        if not holes:
            return -1
        self._objects.append((kind, list(parts), holes))
        self._present.append(_filled(kind, list(parts), holes, self._values, self._present))
        return len(self._present) - 1

    # ---- other extents

    def run(self, extents: Sequence[int]) -> list[Any] | None:
        """The objects for other extents; None if a condition does not hold."""
        values = self.numbers(extents)
        if values is None:
            return None
        objects: list[Any] = []
        for kind, parts, holes in self._objects:
            objects.append(_filled(kind, parts.copy(), holes, values, objects))
        return objects

    def numbers(self, extents: Sequence[int]) -> list[Any] | None:
        """The values of all slots for other extents; None if a condition does not hold."""
        values = self._values.copy()
        for slot, extent in zip(self._inputs, extents, strict=True):
            values[slot] = extent
        try:
            for function, slots, slot, expected in self._calls:
                number = function(*[values[s] for s in slots])
                if slot >= 0:
                    values[slot] = number
                elif number != expected:
                    return None
        except (ArithmeticError, ValueError):
            return None
        return values


def _filled(
    kind: Any,
    parts: list[Any],
    holes: list[tuple[int, int]],
    values: list[Any],
    objects: list[Any],
) -> Any:
    """An object of some parts, with numbers and other objects in the holes between them."""
    for number, place in holes:
        parts[number] = objects[place] if place >= 0 else values[~place]
    return tuple(parts) if kind is tuple else kind(*parts)


_PLAIN = frozenset((str, int, float, bool, type(None)))
_FIELDS: dict[type, tuple[str, ...]] = {}
"""The fields that dataclasses are created from, by class; empty for other classes."""


def _names(kind: type) -> tuple[str, ...]:
    names = _FIELDS.get(kind)
    if names is None:
        own = fields(kind) if is_dataclass(kind) else ()
        names = _FIELDS[kind] = tuple(f.name for f in own if f.init)
    return names


def _is_usual(result: object) -> bool:
    return type(result) in (int, float) and result != 0 and math.isfinite(result)  # type: ignore[arg-type]  # a number


def _usual(function: Callable[..., Any], kind: type, *numbers: Any) -> Any:
    """The result of a function whose result is an unknown of some type.

    Raises:
        ValueError: The result is of another type, or a condition of the plan.
    """
    number = function(*numbers)
    if type(number) is not kind or not _is_usual(number):
        raise ValueError(number)
    return number


def _spelling(function: Callable[..., Any], *numbers: Any) -> str:
    """The spelling of a function's result, which NaN has, too."""
    return repr(function(*numbers))


class Unknown:
    """A number that is known for the present inputs only.

    It is no int, because C code would read the value of an int without a record.

    Attributes:
        value: The present value.
        slot: Its place among the numbers of the recorder.
        recorder: The recorder of its uses.
    """

    __slots__ = ("recorder", "slot", "value")

    def __init__(self, value: Any, slot: int, recorder: Recorder) -> None:
        self.value = value
        self.slot = slot
        self.recorder = recorder

    @property  # type: ignore[misc]  # isinstance(unknown, int) is True
    def __class__(self) -> type:
        return type(self.value)

    def fixed(self) -> Any:
        """Returns the value, on which the plan then depends."""
        self.compare("==", self.value)
        return self.value

    def compare(self, sign: str, other: Any) -> bool:
        """Returns the result of a comparison, and records it as a condition."""
        kind = type(other)
        key: object
        if kind is int:
            number, key = other, (sign, self.slot, other)
        elif kind is Unknown:
            number, key = other.value, (sign, self.slot, other.slot, Unknown)
        elif kind is float and not math.isfinite(other):
            return bool(_COMPARISONS[sign](self.value, other))  # the same for all numbers
        elif kind in (float, bool, str):
            number, key = other, (sign, self.slot, other, kind)
        else:
            return bool(_COMPARISONS[sign](self.fixed(), other))
        tests = self.recorder.tests
        if key not in tests:
            tests.add(key)
            self.recorder.test(sign, self, other)
        return bool(_COMPARISONS[sign](self.value, number))

    def operate(self, sign: str, other: Any, swapped: bool) -> Any:
        """Returns the result of an operation; `other` is on the left if `swapped`."""
        kind = type(other)
        if kind is int:
            if other == _NEUTRAL.get(sign) and not swapped:
                return self
            key: object = (sign, self.slot, other, swapped)
        elif kind is Unknown:
            key = (sign, self.slot, "", other.slot, swapped)
        elif kind in (float, bool):
            key = (sign, self.slot, kind, repr(other), swapped)
        else:
            pair = (other, self.fixed()) if swapped else (self.fixed(), other)
            return _OPERATIONS[sign](*pair)
        recorder = self.recorder
        term = recorder.terms.get(key)
        if term is None:
            left, right = (other, self) if swapped else (self, other)
            if sign in _DIVISIONS and type(right) is Unknown:
                right.compare("==", 0)  # a division by zero is an error
            term = recorder.terms[key] = recorder.operation(sign, left, right)
        return term

    def _rounded(self, function: Callable[[Any], int]) -> Any:
        return self if type(self.value) is int else self.recorder.call(function, (self,))

    def __floor__(self) -> Any:
        return self._rounded(math.floor)

    def __ceil__(self) -> Any:
        return self._rounded(math.ceil)

    def __trunc__(self) -> Any:
        return self._rounded(math.trunc)

    def __index__(self) -> int:
        return operator.index(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    def __float__(self) -> float:
        return float(self.fixed())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        return np.asarray(self.fixed(), dtype)

    def __bool__(self) -> bool:
        return self.compare("!=", 0)

    def __hash__(self) -> int:
        for number in SMALL:
            if self.compare("==", number):
                return hash(number)
        return _UNLIKE

    def __str__(self) -> str:
        return str(self.fixed())

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.fixed(), form)

    def __neg__(self) -> Any:
        return self.operate("-", 0, True)

    def __pos__(self) -> Unknown:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __eq__(self, other: object) -> bool:
        return self.compare("spelled" if type(other) is str else "==", other)

    def __ne__(self, other: object) -> bool:
        return not self == other if type(other) is str else self.compare("!=", other)

    def __lt__(self, other: object) -> bool:
        return self.compare("<", other)

    def __le__(self, other: object) -> bool:
        return self.compare("<=", other)

    def __gt__(self, other: object) -> bool:
        return self.compare(">", other)

    def __ge__(self, other: object) -> bool:
        return self.compare(">=", other)


_DIVISIONS = frozenset(("//", "%", "/"))
_NEUTRAL = {"+": 0, "-": 0, "*": 1}
"""Numbers on the right that change no number."""
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "spelled": lambda number, text: repr(number) == text,
}
_NAMES = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "/": "truediv"}
_OTHERS = {
    "pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "divmod": divmod,
}
"""Operations on unknowns that need the value."""


def _define() -> None:
    for sign, name in _NAMES.items():
        setattr(Unknown, f"__{name}__", lambda a, b, s=sign: a.operate(s, b, False))
        setattr(Unknown, f"__r{name}__", lambda a, b, s=sign: a.operate(s, b, True))
    for name, work in _OTHERS.items():
        setattr(Unknown, f"__{name}__", lambda a, b, w=work: w(a.fixed(), b))
        setattr(Unknown, f"__r{name}__", lambda a, b, w=work: w(b, a.fixed()))


_define()
