"""The commands of the driver to ranks, and their answers.

None of these classes has slots: Python pickles frozen classes with slots field by field, and a
small statement takes no longer than its messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from einsql.core.schema import Schema
from einsql.engine.exchange import Held
from einsql.ir.ia import plan as ia
from einsql.ir.spmd.program import Program
from einsql.storage.fields import Term
from einsql.storage.files import Description, Draft

Handle = int
"""Names the tiles of one relation at all ranks."""


@dataclass(frozen=True)
class Started:
    """The first thing a process says, before it starts MPI.

    Attributes:
        rank: The number that its launcher gave it, if that can be known.
        pid: Its process on `host`.
    """

    rank: int | None
    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Hello:
    """The first message of a rank, once MPI has started.

    Attributes:
        rank: Its number.
        ranks: How many there are.
    """

    rank: int
    ranks: int


@dataclass(frozen=True)
class Ship:
    """A program that will be run, perhaps several times."""

    plan: int
    program: Program
    schema: Schema
    jit: str


@dataclass(frozen=True)
class ShipBlocks:
    """A plan over blocks that will be run, perhaps several times.

    Attributes:
        nodes: All of it, producers first, so that no node is pickled within its reader:
            a deep plan would need a deep stack.
    """

    plan: int
    nodes: tuple[ia.Node, ...]
    jit: str


@dataclass(frozen=True)
class Kept:
    """A stored tensor whose tiles are on the ranks in the placement that the program needs.

    Attributes:
        names: The tensor's fields by the names under which they were made.
    """

    handle: Handle
    names: Mapping[str, str]


@dataclass(frozen=True)
class Sent:
    """A stored tensor whose tiles come with the message.

    Attributes:
        tiles: Those of this rank.
        keep: The handle under which it keeps them, if at all.
    """

    tiles: Held
    keep: Handle | None


@dataclass(frozen=True)
class Read:
    """A tensor in a file, of which each rank reads its own tiles.

    Attributes:
        name: The field.
        boxes: The keys of each of this rank's tiles, int64 (keys, 2), by the tile's number.
    """

    file: Description
    name: str
    boxes: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Slice:
    """The same part of every tile of another source.

    Attributes:
        at: The part along each axis; None for all of it.
    """

    source: Kept | Sent
    at: tuple[slice | None, ...]


Source = Kept | Sent | Read | Slice


@dataclass(frozen=True)
class Run:
    """Runs a program over the given tensors; the result stays where it is made.

    Attributes:
        loads: Where the tiles of each Load come from, by the number of the step.
        result: The handle of the result.
        measured: Whether the driver needs the measures of each step.
    """

    plan: int
    loads: Mapping[int, Source]
    result: Handle
    measured: bool = True


@dataclass(frozen=True)
class Fill:
    """Reads tiles of a file and keeps them; the answer is how many bytes were read."""

    handle: Handle
    source: Read


@dataclass(frozen=True)
class Paste:
    """Makes tiles of kept ones, with new values in some cells.

    Attributes:
        handle: The tiles that are copied; they do not change.
        made: The handle of the new ones.
        pieces: By the tile's number the part that changes, and the new values by field.
    """

    handle: Handle
    made: Handle
    pieces: Mapping[int, tuple[tuple[slice | EllipsisType, ...], Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Write:
    """Writes tiles into a file that is being made.

    Attributes:
        name: The field.
        axes: For each axis of the file the tensor's.
        boxes: The keys of each tile as the file counts them, from 0, by the tile's number.
    """

    handle: Handle
    name: str
    draft: Draft
    axes: tuple[int, ...]
    boxes: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Count:
    """Asks how many keys of some tiles meet all terms."""

    handle: Handle
    tiles: Sequence[int]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Fetch:
    """Asks for parts of tiles, every field of one before the next.

    Attributes:
        names: The fields.
        parts: A tile's number, and the part of it to send.
    """

    handle: Handle
    names: tuple[str, ...]
    parts: Sequence[tuple[int, tuple[slice | EllipsisType, ...]]]


@dataclass(frozen=True)
class Shutdown:
    """Ends the rank."""


@dataclass(frozen=True)
class Decline:
    """Instead of a command that this rank cannot have.

    Attributes:
        reason: Why; None if it was cancelled.
        together: Whether the others wait for this one.
    """

    reason: BaseException | None
    together: bool = False


Command = Ship | ShipBlocks | Run | Fill | Paste | Write | Count | Fetch | Shutdown | Decline


@dataclass(frozen=True)
class Order:
    """A command with its number.

    Attributes:
        release: Handles that the driver needs no more.
        forget: Plans likewise.
    """

    number: int
    command: Command
    release: tuple[Handle, ...] = ()
    forget: tuple[int, ...] = ()

    @property
    def together(self) -> bool:
        """True if all ranks get such a command and wait for each other."""
        return isinstance(self.command, Run)


@dataclass(frozen=True)
class Cancel:
    """Stops the command of this number."""

    number: int


@dataclass(frozen=True)
class Regroup:
    """Leave the communicator, for a rank has gone, and form one without it.

    Answered with `Done` and a `Hello`.
    """

    number: int


@dataclass(frozen=True)
class Fallen:
    """The last message of a rank: why it ends."""

    reason: BaseException


@dataclass(frozen=True)
class Progress:
    """How far a rank is."""

    number: int
    fraction: float


@dataclass(frozen=True)
class Done:
    """The answer of a rank to a command."""

    number: int
    value: Any = None


@dataclass(frozen=True)
class Failed:
    """A command failed.

    Attributes:
        error: Why, or None if another rank failed or it was cancelled.
        cancelled: True if the driver has cancelled it.
        apart: True if MPI failed, so that the ranks do not know any more where the others are.
    """

    number: int
    error: BaseException | None
    cancelled: bool = False
    apart: bool = False
