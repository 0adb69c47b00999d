"""SET, RESET and SHOW of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.settings import (
    OPTIONS,
    RANKS,
    SETTINGS,
    Settings,
    changed_settings,
    default_settings,
    mesh_text,
    reset_settings,
    setting_text,
)
from einsql.errors import Error

if TYPE_CHECKING:
    from einsql import optimizer
    from einsql.hybrid import duckdb_statements
    from einsql.kernels import cuda
    from einsql.optimizer import decomposition
    from einsql.planner import plan_files
    from einsql.planner.context import Context
    from einsql.sql.parser.syntax import Set
else:  # imported by the settings that need them
    optimizer = LazyModule("einsql.optimizer")
    duckdb_statements = LazyModule("einsql.hybrid.duckdb_statements")
    cuda = LazyModule("einsql.kernels.cuda")
    decomposition = LazyModule("einsql.optimizer.decomposition")
    plan_files = LazyModule("einsql.planner.plan_files")

SHOWN_SETTINGS = (*SETTINGS, *OPTIONS)
"""The names that SHOW knows: the settings, and options of `connect`."""


def setting(ctx: Context, name: str) -> str:
    """Returns the value of a setting or of an option of `connect`, in the notation of SET."""
    if name == "mpi":
        return "none" if ctx.cluster is None else str(ctx.cluster.ranks)
    if name == "temp_directory":
        return ctx.memory.temp_directory
    return setting_text(ctx.settings, name)


def checked_settings(settings: Settings, name: str, value: str) -> Settings:
    """Returns the settings after a change; a plan file is not read yet.

    Raises:
        Error: The setting does not exist, the value is invalid, or there is no strategy or rule of
            this name.
    """
    changed = changed_settings(settings, name, value)
    if name == "strategy":
        decomposition.strategy_of(changed.strategy)
    if name == "disabled_rules":
        optimizer.check_rules(changed.disabled_rules)
    return changed


def change_setting(ctx: Context, statement: Set, text: str) -> None:
    """Runs SET and RESET; DuckDB runs SET of its own settings.

    Raises:
        Error: The setting does not exist, or it does not take the value.
    """
    try:
        changed = _changed(ctx, statement)
    except Error as error:
        if statement.name in SETTINGS or statement.name in RANKS:
            error.position = statement.at
        elif ctx.settings.fallback == "on" and ctx.duck.has_setting(statement.name):
            duckdb_statements.change_setting(ctx, text, error)
            return
        raise
    ctx.change_settings(changed)
    idle = changed.mesh and changed.sites > 1 and not changed.mesh_in_force
    if statement.name == "sites" and idle:
        ctx.notices.append(
            f"The mesh {mesh_text(changed.mesh)} is without force at {changed.sites:,} sites"
        )


def _changed(ctx: Context, statement: Set) -> Settings:
    """Returns the session's settings after SET or RESET."""
    if statement.value is None:
        default = default_settings(None if ctx.cluster is None else ctx.cluster.ranks)
        return reset_settings(ctx.settings, statement.name, default)
    changed = checked_settings(ctx.settings, statement.name, statement.value)
    if statement.name == "plan" and changed.plan is not None:
        changed = plan_files.opened(changed)
    if statement.name == "device" and changed.device != "cpu":
        cuda.device()  # raises if there is no device
    return changed
