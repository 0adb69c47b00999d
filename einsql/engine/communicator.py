"""A communicator with its groups of ranks, and agreement of all ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from einsql.engine.mpi_wait import finish
from einsql.ir.layout import ranks_of

if TYPE_CHECKING:
    from mpi4py import MPI

GROUPS = 64
"""Greatest number of cached groups; MPI has some two thousand communicators."""

STATUS, GROUP = 1, 2
"""Tags; arrays have tag 0."""


class Fabric:
    """The ranks of a communicator.

    Attributes:
        comm: A communicator of all ranks.
        nodes: int64 (ranks,), equal where ranks share their memory.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Finds the ranks that share memory; the call is collective."""
        from mpi4py import MPI

        self.comm = comm
        own = np.array([crc32(MPI.Get_processor_name().encode())], np.int64)
        self.nodes = np.empty(comm.size, np.int64)
        finish([comm.Iallgather(own, self.nodes)])
        self._groups: OrderedDict[tuple[int, ...], MPI.Intracomm | None] = OrderedDict()
        self._ranks: dict[int, tuple[np.ndarray, list[int]]] = {}
        self._mine, self._other = np.zeros(1, np.int32), np.zeros(1, np.int32)

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Fabric:
        """Returns the fabric of a communicator, cached as long as the communicator exists."""
        key = _key()
        fabric = comm.Get_attr(key)
        if fabric is None:
            fabric = cls(comm)
            comm.Set_attr(key, fabric)
        assert isinstance(fabric, Fabric)
        return fabric

    def ranks_of(self, sites: int) -> np.ndarray:
        """Returns the rank of each site, int64 (sites,)."""
        return self._distribution(sites)[0]

    def owned(self, sites: int) -> Sequence[int]:
        """Returns the sites of this rank."""
        return self._distribution(sites)[1]

    def _distribution(self, sites: int) -> tuple[np.ndarray, list[int]]:
        if sites not in self._ranks:
            ranks = ranks_of(np.arange(sites), sites, self.comm.size)
            self._ranks[sites] = ranks, np.flatnonzero(ranks == self.comm.rank).tolist()
        return self._ranks[sites]

    def worst(self, status: int) -> int:
        """Returns the greatest of the values of all ranks.

        In each of ⌈log₂ ranks⌉ rounds a rank receives the maximum of twice as many ranks.
        This is twice as fast as a reduction that does not block.
        """
        comm, mine, other = self.comm, self._mine, self._other
        mine[0], distance = status, 1
        while distance < comm.size:
            source, target = (comm.rank - distance) % comm.size, (comm.rank + distance) % comm.size
            finish([comm.Irecv(other, source, STATUS), comm.Isend(mine, target, STATUS)])
            mine[0] = max(mine[0], other[0])
            distance *= 2
        return int(mine[0])

    def group(self, members: Sequence[int]) -> MPI.Intracomm | None:
        """Returns a communicator of some ranks, or None at other ranks.

        All ranks call this for all groups in the same order, members or not. All of them then free
        the same group, the least recently used, at the same point. Running operations of a freed
        group still complete.
        """
        members = tuple(members)
        if members in self._groups:
            self._groups.move_to_end(members)
            return self._groups[members]
        if len(self._groups) >= GROUPS:
            _free(self._groups.popitem(last=False)[1])
        group = None
        if self.comm.rank in members:
            everyone = self.comm.Get_group()
            some = everyone.Incl(members)
            group = self.comm.Create_group(some, GROUP)
            some.Free()
            everyone.Free()
        self._groups[members] = group
        return group

    def close(self) -> None:
        """Frees the groups."""
        while self._groups:
            _free(self._groups.popitem()[1])


def _free(comm: MPI.Intracomm | None) -> None:
    if comm is not None:
        comm.Free()


_keys: list[int] = []


def _key() -> int:
    """Returns the attribute key under which communicators store a fabric."""
    from mpi4py import MPI

    if not _keys:

        def leave(_: MPI.Comm, __: int, fabric: Any) -> None:
            fabric.close()

        _keys.append(MPI.Comm.Create_keyval(delete_fn=leave))
    return _keys[0]
