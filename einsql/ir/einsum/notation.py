"""The notation of NumPy's einsum: labels of every operand and of the result."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.core.units import plural
from einsql.errors import ProgrammingError


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed expression: a label per axis of each operand, and the output's labels."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse_spec(text: str, ranks: Sequence[int], words: bool = False) -> Spec:
    """Parses an einsum expression over operands of the given ranks.

    Labels are single letters, or words separated by spaces as in 'b s h, b t h -> b h s t'.
    Without `->` the output has every label that occurs once, in alphabetical order, after
    the axes of the ellipsis.

    Args:
        text: The expression.
        ranks: The rank of each operand.
        words: Whether labels are words separated by spaces in any case.

    Raises:
        ProgrammingError: The expression does not fit the operands.
    """
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ProgrammingError(
            f"EINSUM '{text}' has {plural(len(terms), 'operand')}, but {len(ranks)} are given"
        )
    long = words or any(len(part.split()) > 1 for part in (*terms, right))
    split = [_labels(t, long, text) for t in terms]
    covered = [_covered(labels, rank, text) for labels, rank in zip(split, ranks, strict=True)]
    widest = max(covered, default=0)
    dots = tuple(f".{n}" for n in range(widest))  # names that users cannot write
    inputs = tuple(
        _spread(labels, dots[widest - n :]) for labels, n in zip(split, covered, strict=True)
    )
    known = [label for term in inputs for label in term]
    if arrow:
        output = _spread(_labels(right, long, text), dots)
        if "..." not in _labels(right, long, text) and widest:
            raise ProgrammingError(f"EINSUM '{text}' drops the axes of '...'")
    else:
        once = sorted({k for k in known if known.count(k) == 1 and k not in dots})
        output = (*dots, *once)
    for label in output:
        if label not in known:
            raise ProgrammingError(f"EINSUM output label '{label}' is in no operand of '{text}'")
        if output.count(label) > 1:
            raise ProgrammingError(f"EINSUM output label '{label}' is given twice in '{text}'")
    return Spec(inputs, output)


def _labels(term: str, long: bool, text: str) -> list[str]:
    before, dots, after = term.partition("...")
    parts: list[str] = []
    for n, piece in enumerate((before, after)):
        labels = piece.split() if long else list(piece.strip())
        for label in labels:
            if not (label.isalpha() or (long and label.isidentifier())):
                raise ProgrammingError(f"EINSUM '{text}' has the label '{label}'; use letters")
        parts += labels
        if n == 0 and dots:
            parts.append("...")
    return parts


def _covered(labels: list[str], rank: int, text: str) -> int:
    named = len([x for x in labels if x != "..."])
    if named > rank or (named < rank and "..." not in labels):
        raise ProgrammingError(
            f"EINSUM '{text}' names {plural(named, 'axis', 'axes')} of an operand of rank {rank}",
            hint="Give each axis a label, or write '...' for the rest.",
        )
    return rank - named


def _spread(labels: list[str], dots: tuple[str, ...]) -> tuple[str, ...]:
    out: list[str] = []
    for label in labels:
        out += dots if label == "..." else [label]
    return tuple(out)
