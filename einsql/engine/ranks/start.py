"""The choice of a session's ranks: those of another session, of this MPI job, or new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.processes import Processes
from einsql.errors import ProgrammingError

MOST_RANKS = 65536
"""Greatest number of ranks of a session; a larger value of "mpi" is taken for a mistake."""


def cluster(options: Mapping[str, object]) -> Cluster | None:
    """Returns the ranks for the options of `connect`.

    Args:
        options: Values of "mpi", "mpiexec" and "mpi_host"; None means absent.

    Raises:
        ProgrammingError: The options are invalid or contradict each other.
        OperationalError: MPI is missing, or the ranks do not start.
        SystemExit: This process is another rank of the job than 0, and rank 0 has finished.
    """
    options_set = {name: value for name, value in options.items() if value is not None}
    mpi = options_set.pop("mpi", None)
    if mpi is None:
        for name in options_set:
            raise ProgrammingError(
                f"{name} configures the start of MPI ranks, but mpi is not set",
                hint="Set mpi to a number of ranks.",
            )
        return None
    if isinstance(mpi, Cluster):
        return mpi
    texts: dict[str, str] = {}
    for name, value in options_set.items():
        if not isinstance(value, str):
            raise ProgrammingError(f"{name} is a text, not {value!r}")
        texts[name] = value
    launcher, host = texts.get("mpiexec"), texts.get("mpi_host")
    if isinstance(mpi, str) and mpi.lower() == "world":
        if launcher is not None:
            raise ProgrammingError('mpiexec starts ranks, but those of "world" are already running')
        from einsql.engine.ranks.joined import joined  # imports mpi4py

        return joined(host)
    if isinstance(mpi, bool) or not str(mpi).isdecimal() or not 1 <= int(str(mpi)) <= MOST_RANKS:
        raise ProgrammingError(
            f"mpi is a number of ranks, not {mpi!r}",
            hint='"world" means the ranks of the MPI job that runs this program.',
        )
    return Cluster(starting(int(str(mpi)), launcher, host))


def starting(
    ranks: int, launcher: str | None = None, host: str | None = None
) -> Callable[[Callable[[], None]], Processes]:
    """Returns a function that starts new ranks.

    Args:
        ranks: The number of ranks.
        launcher: See `Job`.
        host: See `Job`.
    """
    from einsql.engine.ranks.job import Job  # imports mpi4py

    return partial(Job, ranks, launcher, host)
