"""Repetitions in plans, such as the layers of a network, which are shown once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, permutations, product

from einsql.explain.operations import OperationReport
from einsql.explain.report import GraphReport

LEAST_HIDDEN = 6
"""The least number of hidden operations; smaller repetitions are shown in full."""
MOST_ALIKE = 3
"""The most operands with equal labels whose orders are compared."""

Repetition = tuple[int, int, int]
"""The position of the first operation, and the number and the count of repeated operations."""


def repeated_operations(report: GraphReport) -> Repetition | None:
    """Returns the longest run of equal sequences of operations."""
    return repetition(_signatures(report))


def repetition(items: Sequence[object]) -> Repetition | None:
    """Returns the start, period and count of the longest run of equal sequences."""
    best: Repetition | None = None
    covered = 0
    for period in range(1, len(items) // 2 + 1):
        equal = 0
        for n in range(len(items) - period + 1):
            if n < len(items) - period and items[n] == items[n + period]:
                equal += 1
                continue
            count = equal // period + 1
            if count > 2 and period * (count - 1) >= LEAST_HIDDEN and period * count > covered:
                best, covered = (n - equal, period, count), period * count
            equal = 0
    return best


def folded_graph(lines: Sequence[str], repeat: Repetition) -> list[str]:
    """Returns the lines of a graph with the first one of repeated sequences only.

    Args:
        lines: The graph: operations, each with the tensors that it is the first to read above it.
        repeat: The repeated operations.
    """
    blocks: list[list[str]] = [[]]
    is_complete = False
    for line in lines:
        if not line.startswith(" ") and is_complete:
            blocks.append([])
            is_complete = False
        is_complete |= line.startswith(" ")
        blocks[-1].append(line)
    return _without_repeats(blocks, repeat)


def folded_steps(steps: Sequence[tuple[Sequence[int], list[str]]], repeat: Repetition) -> list[str]:
    """Returns the lines of steps without those whose operations all are hidden repetitions.

    Args:
        steps: The numbers of the operations of each step, and its lines.
        repeat: The repeated operations.
    """
    start, period, count = repeat
    hidden = range(start + period, start + period * count)
    shown: list[str] = []
    omitted = 0
    for numbers, lines in steps:
        if all(n in hidden for n in numbers):
            omitted += 1
            continue
        if omitted:
            shown.append(_note(omitted, "steps"))
        omitted = 0
        shown += lines
    return [*shown, _note(omitted, "steps")] if omitted else shown


def _without_repeats(blocks: Sequence[list[str]], repeat: Repetition) -> list[str]:
    start, period, count = repeat
    first, last = start + period, start + period * count
    before = [line for block in blocks[:first] for line in block]
    after = [line for block in blocks[last:] for line in block]
    return [*before, _note(last - first, f"operations like the {period} above"), *after]


def _note(number: int, what: str) -> str:
    return f"  … {number:,} {what} …  (VERBOSE shows them)"


def _signatures(report: GraphReport) -> list[object]:
    """Returns the operation, cut and placement of each box; boxes with equal ones look equal."""
    at = {node.id: n for n, node in enumerate(report.nodes)}
    shapes = {
        i.id: (tuple(map(tuple, i.keys.values())), tuple(i.values.values())) for i in report.inputs
    }
    signatures: list[object] = []
    for n, node in enumerate(report.nodes):
        # Operands are in the order of their names, which is another one in r9, r10 than in r8, r9.
        reads = sorted(
            (repr(shapes[r.id] if r.stored else n - at[r.id]), tuple(r.labels), r.id)
            for r in node.reads
        )
        text = _nameless(node, {name: labels for _, labels, name in reads})
        places = repr((node.partition, node.placements.grid, node.collective))
        operands = tuple((source, labels) for source, labels, _ in reads)
        signatures.append((operands, tuple(node.keys), text, places))
    return signatures


def _nameless(node: OperationReport, operands: Mapping[str, tuple[str, ...]]) -> str:
    """Returns the text of an operation with numbers instead of its operands' names.

    Equal layers may compute two factors in either order, so operands with equal labels get the
    numbers with which the text is the least one.

    Args:
        node: The operation.
        operands: The labels of each operand.
    """
    lines = [line for line in node.text[1:] if not line.startswith("  from ")]
    text = "\n".join(lines)

    def numbered(names: Sequence[str]) -> str:
        number = {name: f"#{n}" for n, name in enumerate(names)}
        return re.sub(r"(?<![\w.])\w+(?=[.\[])", lambda m: number.get(m[0], m[0]), text)

    names = sorted(operands, key=lambda name: operands[name])
    alike = [list(group) for _, group in groupby(names, key=lambda name: operands[name])]
    if any(len(group) > MOST_ALIKE for group in alike):
        return numbered(list(operands))
    orders = product(*map(permutations, alike))
    return min(numbered([name for group in order for name in group]) for order in orders)
