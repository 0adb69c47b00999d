"""The commands of the driver to ranks, and their answers.

None of these classes has slots: Python pickles frozen classes with slots field by field, and the
messages determine the duration of a small statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.engine.exchange import Held
from einsql.errors import OperationalError
from einsql.ir.spmd.program import Program
from einsql.storage.database.payload_fields import PayloadFiles
from einsql.storage.fields import Term
from einsql.storage.files import Description, Draft

Handle = int
"""The number of a relation's tiles on all ranks."""


@dataclass(frozen=True)
class Started:
    """The first message of a process, before it starts MPI.

    Attributes:
        rank: The number that its launcher assigned, or None if it is unknown.
        pid: The process ID on `host`.
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
        rank: The rank's number.
        ranks: The number of ranks.
    """

    rank: int
    ranks: int


@dataclass(frozen=True)
class Ship:
    """Sends a program for any number of runs."""

    plan: int
    program: Program
    jit: str


@dataclass(frozen=True)
class Kept:
    """A stored tensor whose tiles are on the ranks in the placement that the program needs.

    Attributes:
        names: The names of the tensor's fields on the ranks.
    """

    handle: Handle
    names: Mapping[str, str]


@dataclass(frozen=True)
class Sent:
    """A stored tensor whose tiles are part of the message.

    Attributes:
        tiles: The tiles of this rank.
        keep: The handle under which the rank stores them, or None.
    """

    tiles: Held
    keep: Handle | None


@dataclass(frozen=True)
class Read:
    """A tensor in a file, of which each rank reads its own tiles.

    Attributes:
        name: The field.
        boxes: By tile number the keys of each tile of this rank, int64 (keys, 2).
    """

    file: Description
    name: str
    boxes: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Mapped:
    """A stored tensor in the files of a database, of which each rank maps and reads its own tiles.

    Attributes:
        boxes: By tile number the keys of each tile of this rank, int64 (keys, 2).
        keep: The handle under which the rank stores them.
    """

    files: PayloadFiles
    boxes: Mapping[int, np.ndarray]
    keep: Handle


Tiled = Kept | Mapped | Sent
"""The tiles of a tensor."""


class FilesApartError(OperationalError):
    """A rank does not find the files of a stored tensor under the paths of the driver's process."""


@dataclass(frozen=True)
class Slice:
    """The same part of every tile of another source.

    Attributes:
        at: The part along each axis.
    """

    source: Tiled
    at: tuple[slice, ...]


Source = Tiled | Read | Slice


@dataclass(frozen=True)
class Run:
    """Runs a program over given tensors; its results stay on the ranks.

    Attributes:
        loads: The source of the tiles of each Load, by step number.
        results: The handle of the tiles of each root.
        measured: Whether the driver needs the measures of each step.
        together: Whether all ranks run it, and all of them fail or none: ranks send each other
            tiles, or later runs depend on it.
        tiers: Whether it runs on NumPy while kernels are being compiled; only with `together`.
    """

    plan: int
    loads: Mapping[int, Source]
    results: tuple[Handle, ...]
    measured: bool = True
    together: bool = True
    tiers: bool = False


@dataclass(frozen=True)
class Fill:
    """Reads tiles of a file and stores them; the answer is the number of bytes read."""

    handle: Handle
    source: Read


Piece = tuple[tuple[slice | EllipsisType, ...], Mapping[str, np.ndarray]]
"""The part of a tile that changes, and its new values by field."""


@dataclass(frozen=True)
class Change:
    """Creates a version of stored tiles with new values in some cells.

    Attributes:
        handle: The stored tiles; this version does not change.
        made: The handle of the new version.
        pieces: The changes by tile number.
    """

    handle: Handle
    made: Handle
    pieces: Mapping[int, Piece]


@dataclass(frozen=True)
class Paste:
    """Changes some cells of tensors."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Write:
    """Writes tiles into a file that is being created.

    Attributes:
        name: The field.
        axes: For each axis of the file the axis of the tensor.
        boxes: By tile number the keys of each tile, counted from 0 as in the file.
    """

    handle: Handle
    name: str
    draft: Draft
    axes: tuple[int, ...]
    boxes: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Count:
    """Asks for the number of keys that satisfy all terms."""

    handle: Handle
    tiles: Sequence[int]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Collect:
    """Asks for complete sparse tiles."""

    handle: Handle
    tiles: Sequence[int]


@dataclass(frozen=True)
class Fetch:
    """Asks for parts of tiles, grouped by field.

    Attributes:
        names: The fields.
        parts: The number of a tile, and the part of it to send.
    """

    handle: Handle
    names: tuple[str, ...]
    parts: Sequence[tuple[int, tuple[slice | EllipsisType, ...]]]


@dataclass(frozen=True)
class Shutdown:
    """Ends the rank."""


@dataclass(frozen=True)
class Decline:
    """Replaces a command that this rank cannot get.

    Attributes:
        reason: The error, or None after a cancellation.
        together: Whether the other ranks wait for this one.
    """

    reason: BaseException | None
    together: bool = False


Command = Ship | Run | Fill | Paste | Write | Count | Collect | Fetch | Shutdown | Decline


@dataclass(frozen=True)
class Order:
    """A command with its number.

    Attributes:
        release: Handles that the driver no longer needs.
        forget: Plans that the driver no longer needs.
        after: The number of an unanswered run; if it fails, the command is not executed. 0 if the
            command depends on no other one.
    """

    number: int
    command: Command
    release: tuple[Handle, ...] = ()
    forget: tuple[int, ...] = ()
    after: int = 0

    @property
    def together(self) -> bool:
        """Whether all ranks get such a command and wait for each other."""
        return isinstance(self.command, Run) and self.command.together


@dataclass(frozen=True)
class Post:
    """Changes of small parts of tensors, without an answer.

    A rank that cannot make them, because memory is short, tries again before each later command,
    which fails until then.
    """

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Cancel:
    """Cancels the commands with the numbers from `number` to `last`."""

    number: int
    last: int


@dataclass(frozen=True)
class Regroup:
    """Leaves the communicator after the end of a rank, and forms one without that rank.

    The answers are a `Done` and a `Hello`.
    """

    number: int


@dataclass(frozen=True)
class Fallen:
    """The last message of a rank: the reason of its end."""

    reason: BaseException


@dataclass(frozen=True)
class Progress:
    """The progress of a rank."""

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
        error: The error, or None after a failure of another rank or a cancellation.
        cancelled: Whether the driver has cancelled the command.
        apart: Whether MPI failed, so that the states of the ranks may differ.
    """

    number: int
    error: BaseException | None
    cancelled: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Answers:
    """The answers to several commands, oldest first."""

    number: int
    answers: tuple[Done | Failed, ...]
