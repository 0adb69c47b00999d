"""Stacks arrays of a file whose names differ in a number, such as the layers of a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from einsql.core import boxes
from einsql.storage.files.mapped import RegularFile, pick
from einsql.storage.files.tensor import AT_ONCE, Content, Pieces, slices, unmapped


def picked(
    file: RegularFile, names: Sequence[str], member: str | None, content: Callable[[str], Content]
) -> Content:
    """The array of a name, or the stack of all arrays that match a pattern 'layers.*.weight'.

    The number in place of `*` becomes the first axis; it counts from 0.

    Args:
        file: The file.
        names: The names of its arrays.
        member: A name or a pattern with one `*`; None for the only array.
        content: Returns the array of a name.

    Raises:
        OperationalError: No array matches, a number is missing, or shapes or types differ.
    """
    if member is None or member in names or member.count("*") != 1:
        return content(pick(file, names, member))
    before, after = (re.escape(part) for part in member.split("*"))
    matches = (re.fullmatch(f"{before}(0|[1-9][0-9]*){after}", name) for name in names)
    by_layer = {int(m[1]): m[0] for m in matches if m is not None}
    if not by_layer:
        return content(pick(file, names, member))  # raises an error with the known names
    missing = next((n for n in range(len(by_layer)) if n not in by_layer), None)
    if missing is not None:
        raise file.refusal(f"has no array '{member.replace('*', str(missing))}'")
    layers = [content(by_layer[n]) for n in range(len(by_layer))]
    kinds = {(c.dtype, c.shape) for c in layers}
    if len(kinds) > 1:
        raise file.refusal(
            f"has arrays '{member}' of several shapes or types",
            "Arrays in a stack have one shape and one type.",
        )
    ((dtype, shape),) = kinds
    file.check_shape((len(layers), *shape))
    return unmapped(member, dtype, (len(layers), *shape), parts=lambda box: _parts(layers, box))


def _parts(layers: Sequence[Content], wanted: np.ndarray) -> Pieces:
    for n in range(*wanted[0].tolist()):
        for box, values in _elements(layers[n], wanted[1:]):
            yield np.concatenate([[[n, n + 1]], box]), values[None]


def _elements(layer: Content, wanted: np.ndarray) -> Pieces:
    if layer.parts is not None:
        yield from layer.parts(wanted)
        return
    (tile,) = layer.tiles
    for box in boxes.runs(wanted, max(1, AT_ONCE // tile.itemsize)):
        yield box, tile[slices(box)]
