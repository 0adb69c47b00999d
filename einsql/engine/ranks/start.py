"""Which ranks a session asks for: those of another one, of this MPI job, or new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.processes import Processes
from einsql.errors import ProgrammingError

MOST_RANKS = 65536


def cluster(options: Mapping[str, object]) -> Cluster | None:
    """The ranks that `connect` is asked for.

    Args:
        options: Values of "mpi", "mpiexec" and "mpi_host"; None counts as absent.

    Raises:
        ProgrammingError: They make no sense.
        OperationalError: There is no MPI, or ranks do not start.
        SystemExit: This process is a rank of the job other than 0 and has done its part.
    """
    options_set = {name: value for name, value in options.items() if value is not None}
    mpi = options_set.pop("mpi", None)
    if mpi is None:
        for name in options_set:
            raise ProgrammingError(
                f"{name} says how MPI ranks are started, but none are asked for",
                hint="Give mpi a number of ranks.",
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
            raise ProgrammingError("mpiexec starts ranks, but those of the world are running")
        from einsql.engine.ranks.joined import joined  # imports mpi4py

        return joined(host)
    if isinstance(mpi, bool) or not str(mpi).isdecimal() or not 1 <= int(str(mpi)) <= MOST_RANKS:
        raise ProgrammingError(
            f"mpi is a number of ranks, not {mpi!r}",
            hint='"world" stands for the ranks that mpiexec has started this program on.',
        )
    return Cluster(starting(int(str(mpi)), launcher, host))


def starting(
    ranks: int, launcher: str | None = None, host: str | None = None
) -> Callable[[Callable[[], None]], Processes]:
    """A function that starts so many new ranks.

    Args:
        ranks: How many.
        launcher: As Job takes it.
        host: Likewise.
    """
    from einsql.engine.ranks.job import Job  # as above

    return partial(Job, ranks, launcher, host)
