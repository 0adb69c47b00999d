"""Local steps with one reader, whose tiles need not be stored together."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from einsql.ir.spmd.program import Complete, Local, Program, reads

DEEPEST = 16
"""Greatest number of steps that run within each other, each in a frame of the Python stack."""


def merged_on_arrival(program: Program) -> dict[int, int]:
    """Returns the local steps whose only reader merges their tiles, by number, and the reader."""
    return {
        n: reader
        for n, reader in _only_readers(program).items()
        if isinstance(program.steps[reader], Complete)
    }


def nested_steps(program: Program) -> dict[int, int]:
    """Returns the templates that run cell by cell within their only reader, and the reader.

    Their tiles are never stored together. The reader reads each tile once.
    """
    nested: dict[int, int] = {}
    depth: defaultdict[int, int] = defaultdict(int)
    for n, number in _only_readers(program).items():
        step, reader = program.steps[n], program.steps[number]
        if not isinstance(step, Local) or not isinstance(reader, Local):
            continue
        if step.is_template and depth[n] < DEEPEST:
            pick = reader.picks[reader.operands.index(n)]
            if len(np.unique(pick)) == len(pick) and (step.sites[pick] == reader.sites).all():
                nested[n] = number
                depth[number] = max(depth[number], depth[n] + 1)
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
        if isinstance(step, Local) and n not in program.roots and len(readers[n]) == 1
    }
