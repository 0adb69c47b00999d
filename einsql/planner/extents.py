"""Extents as unknowns: integers that record what planning relies on.

A graph is bound and rewritten over `Extent` objects. They have values, so that the code takes the
branches for these values. Each comparison is recorded as a condition, and each use as a plain
number as the condition that the value stays. The result is valid for all extents that meet them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

_CONSTANTS = (0, 1, 2)
"""Numbers to which an extent in a key of a dict is compared, besides the bounds of the graph."""


class Recorder:
    """The terms and conditions of one planning, as lines of a function of the extents.

    Attributes:
        values: The present extents.
    """

    def __init__(self) -> None:
        self.values: list[int] = []
        self._names: dict[tuple[str, str, str], str] = {}
        self._lines: dict[str, None] = {}
        self._hashed: dict[str, Extent] = {}

    def extent(self, value: int) -> Extent:
        """Returns a new unknown with its present value."""
        self.values.append(value)
        return Extent(value, f"v{len(self.values) - 1}", self)

    def computed(self, sign: str, left: str, right: str, value: int) -> Extent:
        """Returns the result of an operation on two terms."""
        name = self._names.get((sign, left, right))
        if name is None:
            name = self._names[sign, left, right] = f"t{len(self._names)}"
            self._lines[f"{name} = {left} {sign} {right}"] = None
        return Extent(value, name, self)

    def require(self, left: str, sign: str, right: str, holds: bool) -> None:
        """Records the result of a comparison."""
        negation = "" if holds else "not "
        self._lines[f"if not ({negation}{left} {sign} {right}): return None"] = None

    def note_key(self, extent: Extent) -> None:
        """Records that an extent is part of a key of a dict."""
        self._hashed[extent.term] = extent

    def function(self, bounds: Sequence[int]) -> Callable[[Sequence[int]], dict[str, int] | None]:
        """Returns a function from extents to the values of all terms; None if a condition fails.

        Args:
            bounds: Numbers that may have been part of keys of a dict beside extents.
        """
        hashed = list(self._hashed.values())
        for n, extent in enumerate(hashed):
            for other in (*hashed[:n], *_CONSTANTS, *bounds):
                _ = extent == other
        terms = [*(f"v{n}" for n in range(len(self.values))), *self._names.values()]
        lines = [f"{''.join(f'v{n}, ' for n in range(len(self.values)))} = values", *self._lines]
        lines.append(f"return {{{', '.join(f'{t!r}: {t}' for t in terms)}}}")
        names: dict[str, Any] = {}
        exec("def holds(values):\n    " + "\n    ".join(lines), names)  # of terms only
        holds: Callable[[Sequence[int]], dict[str, int] | None] = names["holds"]
        return holds


class Extent:
    """An integer that is known for the present inputs only.

    It is no int, because C code would read the value of an int without a record.

    Attributes:
        value: The present value.
        term: Its name in the recorder's function.
    """

    __slots__ = ("_recorder", "term", "value")

    def __init__(self, value: int, term: str, recorder: Recorder) -> None:
        self.value = value
        self.term = term
        self._recorder = recorder

    @property  # type: ignore[misc]  # isinstance(extent, int) is True
    def __class__(self) -> type:
        return int

    def fixed(self) -> int:
        """Returns the value, on which the plan then depends."""
        self._recorder.require(self.term, "==", str(self.value), True)
        return self.value

    __index__ = __int__ = fixed

    def __float__(self) -> float:
        return float(self.fixed())

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        self._recorder.note_key(self)
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.fixed())

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.fixed(), form)

    def __neg__(self) -> Extent:
        return self._recorder.computed("-", "0", self.term, -self.value)

    def __pos__(self) -> Extent:
        return self

    __floor__ = __ceil__ = __trunc__ = __pos__

    def __abs__(self) -> Extent:
        return self if self >= 0 else -self

    def _operation(self, sign: str, other: Any, swapped: bool) -> Any:
        if type(other) is Extent:
            number, term = other.value, other.term
        elif type(other) in (int, bool):
            number, term = int(other), f"({int(other)})"
        else:
            pair = (other, self.fixed()) if swapped else (self.fixed(), other)
            return _OPERATIONS[sign](*pair)
        left, right = (number, self.value) if swapped else (self.value, number)
        extent = _OPERATIONS[sign](left, right)
        terms = (term, self.term) if swapped else (self.term, term)
        return self._recorder.computed(sign, *terms, extent)

    def _comparison(self, sign: str, other: Any) -> bool:
        if type(other) is Extent:
            term, number = other.term, other.value
        elif type(other) in (int, bool) or (type(other) is float and math.isfinite(other)):
            term, number = f"({other!r})", other
        elif type(other) is float:  # the same for all extents
            return bool(_COMPARISONS[sign](self.value, other))
        else:
            return bool(_COMPARISONS[sign](self.fixed(), other))
        holds = bool(_COMPARISONS[sign](self.value, number))
        if term != self.term:
            self._recorder.require(self.term, sign, term, holds)
        return holds

    def __eq__(self, other: object) -> bool:
        return self._comparison("==", other)

    def __ne__(self, other: object) -> bool:
        return self._comparison("!=", other)

    def __lt__(self, other: object) -> bool:
        return self._comparison("<", other)

    def __le__(self, other: object) -> bool:
        return self._comparison("<=", other)

    def __gt__(self, other: object) -> bool:
        return self._comparison(">", other)

    def __ge__(self, other: object) -> bool:
        return self._comparison(">=", other)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OTHERS = {
    "truediv": operator.truediv,
    "pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "divmod": divmod,
}
"""Operations on extents that need the value."""


def _define() -> None:
    names = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
    for sign, name in names.items():
        setattr(Extent, f"__{name}__", lambda a, b, s=sign: a._operation(s, b, False))
        setattr(Extent, f"__r{name}__", lambda a, b, s=sign: a._operation(s, b, True))
    for name, work in _OTHERS.items():
        setattr(Extent, f"__{name}__", lambda a, b, w=work: w(a.fixed(), b))
        setattr(Extent, f"__r{name}__", lambda a, b, w=work: w(b, a.fixed()))


_define()
