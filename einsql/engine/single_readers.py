"""Local steps with one reader, whose tiles need not be stored together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from einsql.ir.spmd.program import Complete, Local, Program, reads


def merged_on_arrival(program: Program) -> dict[int, int]:
    """Returns the local steps whose only reader merges their tiles, by number, and the reader."""
    return {
        n: reader
        for n, reader in _only_readers(program).items()
        if isinstance(program.steps[reader], Complete)
    }


def nested_steps(program: Program) -> dict[int, Local]:
    """Returns the templates that run cell by cell within their only reader, by number.

    Their tiles are never stored together. The reader reads each tile once.
    """
    nested: dict[int, Local] = {}
    for n, number in _only_readers(program).items():
        step, reader = program.steps[n], program.steps[number]
        if isinstance(step, Local) and isinstance(reader, Local) and step.is_template:
            pick = reader.picks[reader.operands.index(n)]
            if len(np.unique(pick)) == len(pick) and (step.sites[pick] == reader.sites).all():
                nested[n] = step
    return nested


def _only_readers(program: Program) -> dict[int, int]:
    """Returns the local steps with one reader, by number, and the reader."""
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for n, step in enumerate(program.steps):
        for source in reads(step):
            readers[source].append(n)
    return {
        n: readers[n][0]
        for n, step in enumerate(program.steps)
        if isinstance(step, Local) and n != program.root and len(readers[n]) == 1
    }


def released(program: Program, nested: Mapping[int, Local]) -> list[list[int]]:
    """Returns the steps whose tiles are freed after each step; nested steps run in their reader."""
    freed, readers = program.released(), _only_readers(program)
    for n in nested:
        freed[readers[n]] += freed[n]
        freed[n] = []
    return freed
