"""Brings tensors that lie at ranks into other tiles there, without the driver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.cluster.call import Tick
from einsql.cluster.program import RankFields, RankProgram
from einsql.einsum import Input
from einsql.placements import Tiles
from einsql.supersteps import Exchange, Load, Program


def moved(fields: RankFields, tiles: Tiles, tick: Tick) -> RankFields:
    """The same fields in other tiles.

    Args:
        fields: What lies at ranks.
        tiles: Where it is wanted, over as many sites.
        tick: Raises to cancel.

    Raises:
        Error: As `Cluster.call`.
    """
    if fields.tiles.equals(replace(tiles, layout=fields.tiles.layout)):
        return fields
    source = Input("#", fields.schema)
    absent = np.full((len(tiles.sites), 2), -1)
    steps = Load(source, fields.tiles), Exchange((0,), absent, tiles, ())
    program = Program(fields.sites, steps, 1)
    mover = RankProgram(fields.cluster, program, fields.schema, "never", lambda *_: None)
    made = mover.run({source.name: fields}, tick)
    assert isinstance(made, RankFields)
    return made
