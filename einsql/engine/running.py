"""The state of one run of a placed program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from einsql.core.records import dataclass
from einsql.engine.exchange import Held, Merging
from einsql.engine.step import Measure, Tick
from einsql.engine.streaming_exchange import Stream
from einsql.engine.transport import Transport
from einsql.ir.spmd.program import Load

Loading = Callable[[int, Load, Sequence[int]], Held]
"""Returns tiles of a stored tensor, given the number of the step and the numbers of the tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """The state of one run.

    Attributes:
        transport: Moves arrays between sites.
        load: Returns the tiles of stored tensors.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        measure: The measures so far.
        tiles_of: The tiles of each step that a later step reads.
        streams: By reader the exchanges that bring its operand piece by piece.
        merges: By completion the merge of partial tiles so far.
    """

    transport: Transport
    load: Loading
    tick: Tick
    measure: Measure
    tiles_of: dict[int, Held] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    merges: dict[int, Merging] = field(default_factory=dict)
