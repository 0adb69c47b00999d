"""Quantities with units, as SET and EXPLAIN take them: '512MB', '100Gbps', '19.5T', '20us'."""

from __future__ import annotations

import re
from collections.abc import Mapping

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError

_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(\S*)\s*")

MOST = 1e30
"""The largest quantity; the smallest one is its inverse, so costs stay finite."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of quantity.

    Attributes:
        name: The name of the quantity.
        unit: The base unit.
        example: An example of the notation.
        units: The factors of the units in which values are shown, by name, in rising order.
        others: The factors of further units, by name.
        least: The least value, in the base unit.
    """

    name: str
    unit: str
    example: str
    units: Mapping[str, float]
    others: Mapping[str, float]
    least: float = 1 / MOST

    def read(self, text: str, position: int | None = None) -> float:
        """A number in the base unit.

        Args:
            text: A positive number and a unit.
            position: The offset of the text in a statement.

        Raises:
            ProgrammingError: The text is no quantity of this kind, or is out of range.
        """
        match = _NUMBER.fullmatch(text)
        factor = {**self.others, **self.units}.get(match[2]) if match else None
        value = float(match[1]) * factor if match and factor else 0.0
        if not self.least <= value <= MOST:
            hint = f"Write it as {self.example}."
            if match and not match[2] and "" not in self.units:
                hint = f"Write it with a unit, '{text.strip()}{self.unit}', or as {self.example}."
            raise ProgrammingError(f"'{text}' is no {self.name}", hint=hint, position=position)
        return value

    def text(self, value: float) -> str:
        """A value in the notation of `read`, with up to six digits."""
        smallest, *larger = self.units.items()
        name, factor = next((u for u in larger[::-1] if value >= u[1] * (1 - 1e-9)), smallest)
        return f"{value / factor:.6g}{name}"


def _powers(base: float, letters: str, ending: str) -> dict[str, float]:
    return {letter + ending: base ** (n + 1) for n, letter in enumerate(letters)}


SIZE = Quantity(
    "size",
    "B",
    "'512MB' or '2GiB'",
    {"B": 1, **_powers(1000, "KMGT", "B")},
    {
        **_powers(1024, "KMGT", "iB"),
        **{name.lower(): f for name, f in _powers(1000, "KMGT", "B").items()},
        **{name.lower(): f for name, f in _powers(1024, "KMGT", "iB").items()},
        **_powers(1000, "KMGT", ""),
        "b": 1,
        "bytes": 1,
    },
    least=1,
)
"""Bytes, in DuckDB's spelling."""

BANDWIDTH = Quantity(
    "bandwidth",
    "B/s",
    "'100Gbps' (bits) or '12.5GB/s' (bytes)",
    {"B/s": 1, **_powers(1000, "KMGT", "B/s")},
    {
        "bps": 1 / 8,
        **{name: f / 8 for name, f in _powers(1000, "KMGT", "bps").items()},
        **{name: f / 8 for name, f in _powers(1000, "KMGT", "bit/s").items()},
        **_powers(1024, "KMGT", "iB/s"),
    },
)
"""Bytes per second."""

FLOPS = Quantity(
    "rate of scalar operations",
    "FLOP/s",
    "'19.5T'",
    {"": 1, **_powers(1000, "KMGTP", "")},
    {
        **dict.fromkeys(("FLOPS", "FLOP/s", "flop/s"), 1),
        **_powers(1000, "KMGTP", "FLOPS"),
        **_powers(1000, "KMGTP", "FLOP/s"),
        **_powers(1000, "KMGTP", "flop/s"),
    },
)
"""Scalar operations per second."""

DURATION = Quantity(
    "duration", "s", "'20us'", {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}, {"µs": 1e-6}
)
"""Seconds."""


# ---- output for people


EXACT = 1_000_000
"""Numbers below it are shown in full, larger ones with a prefix and three digits."""

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def quantity(n: float) -> str:
    """A number with an SI prefix and three digits; the caller appends the unit."""
    value, power = float(n), 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    prefix = _PREFIXES[power]
    text = f"{value:.0f}" if prefix == "" or value >= 99.95 else f"{value:.3g}"
    return f"{text} {prefix}"


def duration(seconds: float) -> str:
    """A time in seconds, shown in a unit of its order of magnitude."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def data_size(nbytes: float) -> str:
    """A number of bytes, shown in full below a million and with a prefix above."""
    return f"{nbytes:,.0f} B" if nbytes < EXACT else f"{quantity(nbytes)}B"


def plural(number: int, noun: str, several: str = "") -> str:
    """A count with its noun.

    Args:
        number: The count.
        noun: The noun in the singular.
        several: The plural if it is not the singular with an `s`.

    Example:
        >>> plural(1, "cell"), plural(2000, "axis", "axes")
        ('1 cell', '2,000 axes')
    """
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def with_article(noun: str) -> str:
    """A noun with its indefinite article: "a macro", "an aggregate"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
