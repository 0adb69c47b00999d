"""The result of a plan over blocks: arrays by key, and the tensor that they form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import EllipsisType

import numpy as np

from einsql.core.schema import Schema
from einsql.ir.tra.block_schema import Cuts, KeyTuple, sizes
from einsql.ir.tra.plan import Node
from einsql.ir.tra.typing import assembled
from einsql.storage.fields import Fields


class PlacedBlocks(Mapping[KeyTuple, np.ndarray]):
    """Blocks on remote sites; reading one fetches them all."""

    @abstractmethod
    def tensor(self, schema: Schema, cuts: Cuts) -> Fields | None:
        """The tensor assembled from the blocks without a fetch; None if they must be gathered.

        Args:
            schema: The tensor's keys and single field; key i is cut along axis i.
            cuts: The starts of the blocks along each axis.
        """


def place_of(key: KeyTuple, cuts: Cuts) -> tuple[slice | EllipsisType, ...]:
    """The slices of a block in its array."""
    # With the Ellipsis, an array of rank 0 stays an array.
    return (*(slice(c[k], c[k + 1]) for k, c in zip(key, cuts, strict=True)), ...)


def assemble(node: Node, blocks: Mapping[KeyTuple, np.ndarray]) -> np.ndarray:
    """Assembles the tensor of a relation whose key i cuts axis i, as a new array.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: The keys do not cut the axes.
    """
    cuts = assembled(node.schema, "A result handed out as one array")
    tensor = np.empty([sum(sizes(c)) for c in cuts], node.schema.dtype.numpy)
    for key, array in blocks.items():
        tensor[place_of(key, cuts)] = array
    return tensor
