"""The plan file of a session: reading it, and the cuts that it has for a graph."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from einsql.core.plan_text import PlanText, Stamp
from einsql.core.records import dataclass
from einsql.core.units import plural
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import Roots
from einsql.optimizer.decomposition.pinned import NO_PINS, Pins
from einsql.optimizer.decomposition.problem import problem_of
from einsql.optimizer.plan_files.fingerprint import fingerprint
from einsql.optimizer.plan_files.pins import pins_of
from einsql.optimizer.plan_files.plan_file import read_plan_file
from einsql.storage.files.drafts import part_file, writing
from einsql.storage.files.regular_files import open_regular

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.planner.context import Context

MOST_BYTES = 2**25
"""Greatest size of a plan file in bytes; one of LLaMA's layers has about 10 KB."""

SETTLED_S = 2
"""Seconds after which a file's time of change shows a later change: FAT counts two seconds."""


@dataclass(frozen=True, slots=True)
class PlanUse:
    """The use of a plan file for one graph.

    Attributes:
        pins: The cuts by operation; empty if the file has none for the graph.
        summary: The cuts that the file gives, for EXPLAIN; empty if it gives none.
        notice: The reason why the file gives none; empty if it gives some.
    """

    pins: Pins
    summary: str = ""
    notice: str = ""


def use_of(plan: PlanText, roots: Roots, memory: int | None, sites: int) -> PlanUse:
    """Returns the cuts that a plan file has for a graph.

    Args:
        plan: The plan file of the session.
        roots: The roots of the optimised graph.
        memory: The most bytes of a cell; None for no limit.
        sites: The number of sites.

    Raises:
        OperationalError: The file cannot be read.
        ProgrammingError: The file is no plan, or a cut does not fit its operation.
    """
    refuse_unread(plan)
    file = read_plan_file(plan.path, plan.text)
    own = fingerprint(*roots)
    graph = file.graphs.get(own)
    if graph is None:
        return PlanUse(
            NO_PINS,
            notice=f"'{plan.path}' has no plan for this statement, whose fingerprint is {own}; "
            "it is planned without the file",
        )
    if file.sites != sites:
        return PlanUse(
            NO_PINS,
            notice=f"'{plan.path}' is for {plural(file.sites, 'site')}, and there are {sites:,}; "
            f"the statement with the fingerprint {own} is planned without the file",
        )
    problem = problem_of(*roots, sites=sites)
    pins = pins_of(file, graph, problem, memory)
    operations = sum(v.computes for v in problem.vertices)
    return PlanUse(pins, f"'{plan.path}' cuts {len(pins)} of {plural(operations, 'operation')}")


def has_plan(plan: PlanText, roots: Roots) -> bool:
    """Whether a plan file has cuts for a graph, for any number of sites.

    Raises:
        OperationalError: The file cannot be read.
        ProgrammingError: The file is no plan.
    """
    refuse_unread(plan)
    return fingerprint(*roots) in read_plan_file(plan.path, plan.text).graphs


def refuse_unread(plan: PlanText) -> None:
    """Refuses a plan file that could not be read.

    Raises:
        OperationalError: The file could not be read.
    """
    if plan.problem:
        raise OperationalError(
            f"The plan '{plan.path}' cannot be read: {plan.problem}",
            hint="RESET plan plans without it.",
        )


def opened(settings: Settings) -> Settings:
    """Returns the settings with the content of their plan file, whose form is checked.

    Raises:
        OperationalError: The file cannot be read.
        ProgrammingError: The file is no plan.
    """
    if settings.plan is None:
        return settings
    plan = _read(settings.plan)
    refuse_unread(plan)
    read_plan_file(plan.path, plan.text)
    return replace(settings, plan=plan)


def refresh(ctx: Context) -> None:
    """Reads the session's plan file again if it has changed, and drops plans for its old content.

    An unreadable file is an error of the next statement that is planned for several sites.
    Without external access, the content that was read before stays.
    """
    plan = ctx.settings.plan
    if plan is None or not ctx.settings.enable_external_access:
        return
    if plan.stamp is not None and plan.stamp == _stamp(plan.real):
        return
    new = _read(plan)
    ctx.settings = replace(ctx.settings, plan=new)
    if new != plan:
        ctx.plans.clear()


def _read(plan: PlanText) -> PlanText:
    """Returns a plan file with its present content, or with the reason why it has none."""
    begun = time.time_ns()
    stamp = _stamp(plan.real)
    if stamp is not None and begun - stamp[2] < SETTLED_S * 10**9:
        stamp = None  # a change in the same moment would leave the stamp as it is
    try:
        with open_regular(plan.real) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = f"line {line}, byte {column} is no UTF-8"
        return replace(plan, text="", problem=problem, stamp=stamp)
    except (OSError, ValueError) as error:
        problem = str(getattr(error, "strerror", None) or error)
        return replace(plan, text="", problem=problem, stamp=stamp)
    return replace(plan, text=text, problem="", stamp=stamp)


def _stamp(path: str) -> Stamp | None:
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def write_plan(path: str, text: str) -> None:
    """Writes a new plan file atomically.

    Raises:
        OperationalError: The file has no name, exists or cannot be written.
    """
    if not path:
        raise OperationalError(
            "EXPORT PLAN needs the name of a file", hint="EXPORT PLAN 'p.json' FOR … writes p.json."
        )
    real = os.path.abspath(os.path.expanduser(path))
    with writing(path):
        exists = os.path.lexists(real)
    if exists:
        raise OperationalError(
            f"'{path}' exists already",
            hint="EXPORT PLAN overwrites nothing: name another file, or remove this one.",
        )
    with part_file(real) as file:
        file.write(text.encode())
