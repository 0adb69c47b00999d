"""The settings that SET changes: names, values and their checks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field, replace
from math import prod

from einsql.core.machine import MOST_OF_MEMORY, RANK_LATENCY, Machine, memory
from einsql.core.plan_text import PlanText
from einsql.core.records import dataclass
from einsql.core.units import BANDWIDTH, DURATION, FLOPS, SIZE, Quantity, plural
from einsql.errors import OperationalError, ProgrammingError, suggest


@dataclass
class Settings:
    """The values that SET changes.

    Attributes:
        machine: The rates from which costs in seconds follow; each rate is a setting.
        mesh: The axes of the mesh of sites, with their sizes; empty for no mesh. Sites are numbered
            with the last axis fastest. See `mesh_in_force`.
        site_memory: Most bytes of a cell of a partitioned operation; None for no limit.
        device: The device that runs kernels: the processor or a GPU.
        device_memory: Most bytes of relations on the device; None for nearly all free memory.
        matmul_precision: The precision to which a GPU may round FLOAT factors of matrix products.
        memory_limit: Most bytes of memory that a statement allocates; None for no limit.
        temp_directory: The directory for spilled data; None for the default, "" to not spill.
        max_temp_directory_size: Most spilled bytes; None for nearly all free disk space.
        python_enable_replacements: Whether FROM may name the caller's Python variables.
        plan: The plan file with cuts for several sites; None for none.
    """

    float_math: str = "float"
    fallback: str = "on"
    jit: str = field(default_factory=lambda: _default("jit", "auto"))
    disabled_rules: frozenset[str] = frozenset()
    enable_external_access: bool = True
    python_enable_replacements: bool = True
    sites: int = 1
    mesh: tuple[tuple[str, int], ...] = ()
    strategy: str = "eindecomp"
    cost: str = field(default_factory=lambda: _default("cost", "seconds"))
    site_memory: int | None = None
    device: str = "cpu"
    device_memory: int | None = None
    matmul_precision: str = "float32"
    memory_limit: int | None = field(default_factory=lambda: int(MOST_OF_MEMORY * memory()))
    temp_directory: str | None = None
    max_temp_directory_size: int | None = None
    machine: Machine = field(default_factory=Machine)
    plan: PlanText | None = None

    @property
    def reads_variables(self) -> bool:
        """Whether FROM finds the caller's Python variables."""
        return self.enable_external_access and self.python_enable_replacements

    @property
    def mesh_in_force(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh if it has as many points as there are sites, and several."""
        return self.mesh if 1 < self.sites == points(self.mesh) else ()


_CHOICES = {
    "float_math": ("float", "double"),
    "fallback": ("on", "off"),
    "jit": ("auto", "wait", "always", "never"),
    "cost": ("seconds", "bytes", "floats"),
    "device": ("cpu", "cuda"),
    "matmul_precision": ("float32", "tf32"),
}


def _default(name: str, otherwise: str) -> str:
    """The default of a setting: that of the environment, such as EINSQL_JIT, if it has one."""
    variable = f"EINSQL_{name.upper()}"
    choice = os.environ.get(variable, otherwise)
    if choice not in _CHOICES[name]:
        choices = ", ".join(_CHOICES[name])
        raise ProgrammingError(f"{variable} cannot be {choice}", hint=f"Choose one of {choices}.")
    return choice


_MEMORY = ("site_memory", "device_memory", "memory_limit", "max_temp_directory_size")
"""Settings that are amounts of memory; an empty value sets no limit."""
_PERCENT = re.compile(r"\s*(\d{1,3}(?:\.\d*)?)\s*%\s*")
MOST_SITES = 65536  # a plan has arrays with an entry for each site
_MESH_AXIS = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*([0-9]{1,9})\s*")
"""An axis of a mesh. Names have no underscore, which separates them in the sharding notation."""

RATES: dict[str, Quantity] = {
    "flops_float": FLOPS,
    "flops_double": FLOPS,
    "map_float": FLOPS,
    "map_double": FLOPS,
    "exp_float": FLOPS,
    "exp_double": FLOPS,
    "memory_bandwidth": BANDWIDTH,
    "call_overhead": DURATION,
    "latency": DURATION,
    "network": BANDWIDTH,
}
"""The machine's attributes, each of which is a setting."""

RANKS = ("mpi", "mpiexec", "mpi_host")
"""Options of `connect` besides settings: they select the MPI ranks that run statements."""


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """A setting as its users see it.

    Attributes:
        values: The values, or the kind and unit of value, as SET takes them.
        meaning: What the setting decides, without a period.
        default: The default, if it depends on the environment or has no text; else empty.
    """

    values: str
    meaning: str
    default: str = ""


def _choice(name: str, meaning: str, default: str = "") -> SettingDescription:
    return SettingDescription(", ".join(_CHOICES[name]), meaning, default)


DESCRIPTIONS: dict[str, SettingDescription] = {
    "float_math": _choice("float_math", "whether FLOAT stays FLOAT, or has DuckDB's result types"),
    "fallback": _choice(
        "fallback", "whether DuckDB runs statements without tensor work, or they are refused"
    ),
    "jit": _choice("jit", "when kernels are compiled", "EINSQL_JIT of the environment, else auto"),
    "cost": _choice(
        "cost", "what a cut over sites minimises", "EINSQL_COST of the environment, else seconds"
    ),
    "device": _choice("device", "what runs kernels: the processor or a GPU"),
    "matmul_precision": _choice(
        "matmul_precision", "the precision to which a GPU may round FLOAT factors of products"
    ),
    "disabled_rules": SettingDescription(
        "names, separated by commas; none", "the rewrite rules that are not applied"
    ),
    "enable_external_access": SettingDescription(
        "true, false", "whether statements may read and write files; false is final"
    ),
    "python_enable_replacements": SettingDescription(
        "true, false", "whether FROM may name the caller's Python variables"
    ),
    "sites": SettingDescription(
        f"a number from 1 to {MOST_SITES:,}", "the number of sites", "1; on MPI ranks their number"
    ),
    "mesh": SettingDescription(
        "axes with sizes, such as data=2, model=4; '' or none",
        "the axes of the mesh of sites",
        "''",
    ),
    "strategy": SettingDescription(
        "the name of a strategy, such as exact or data:b",
        "the strategy that chooses cuts over sites",
    ),
    "plan": SettingDescription("a path, none", "the plan file with the cuts of statements"),
    "site_memory": SettingDescription(
        "bytes, such as 512MB; none", "the most memory of a cell of a cut operation"
    ),
    "device_memory": SettingDescription(
        "bytes, such as 8GB; none",
        "the most memory of relations on the GPU; none is 85 % of the free memory at the first use",
    ),
    "memory_limit": SettingDescription(
        "bytes, such as 4GB; a percentage, such as 80%; none",
        "the most memory that a statement allocates; more goes to files",
        "80% of the machine's memory, or of the limit of its control group",
    ),
    "max_temp_directory_size": SettingDescription(
        "bytes, such as 100GB; none",
        "the most bytes of these files; none is 90 % of the free disk space",
    ),
    "temp_directory": SettingDescription(
        "a path; '' for no files",
        "the directory of these files",
        "beside the database file, else the system's directory",
    ),
    "flops_float": SettingDescription(
        "operations a second, such as 19.5T", "the speed of FLOAT contractions"
    ),
    "flops_double": SettingDescription(
        "operations a second", "the speed of DOUBLE and BIGINT contractions"
    ),
    "map_float": SettingDescription("operations a second", "the speed of everything else in FLOAT"),
    "map_double": SettingDescription(
        "operations a second", "the speed of everything else in DOUBLE and BIGINT"
    ),
    "exp_float": SettingDescription(
        "calls a second, such as 400M", "the speed of EXP and functions of similar cost in FLOAT"
    ),
    "exp_double": SettingDescription("calls a second", "the same in DOUBLE and BIGINT"),
    "memory_bandwidth": SettingDescription(
        "bytes or bits a second, such as 12.5GB/s", "the bandwidth of a site's memory"
    ),
    "call_overhead": SettingDescription(
        "a duration, such as 20us", "the time from a kernel's call to its work"
    ),
    "latency": SettingDescription(
        "a duration", "the time until a message between sites arrives", "20us; 150us on MPI ranks"
    ),
    "network": SettingDescription(
        "bytes or bits a second, such as 100Gbps", "the bandwidth between sites"
    ),
}
"""The description of each setting."""

SETTINGS = tuple(DESCRIPTIONS)
"""The names of all settings, in the order of SHOW SETTINGS."""

OPTIONS = {
    "mpi": SettingDescription(
        "a number or world, only when a session begins", "the number of MPI ranks", "none"
    ),
}
"""Options of `connect` that SHOW prints as it prints settings."""


def default_settings(ranks: int | None = None) -> Settings:
    """The settings before any change.

    Args:
        ranks: The number of MPI ranks that run statements; None without ranks.

    Raises:
        ProgrammingError: A variable of the environment has an invalid value.
    """
    settings = Settings()
    if ranks is not None:
        settings.sites, settings.cost = ranks, "seconds"
        settings.machine = replace(settings.machine, latency=RANK_LATENCY)
    return settings


def reset_settings(settings: Settings, name: str, default: Settings) -> Settings:
    """The settings after RESET name.

    Args:
        settings: The settings before.
        name: The name of a setting or of an option of `connect`.
        default: The defaults.

    Raises:
        ProgrammingError: The setting does not exist, or it cannot be changed.
    """
    if name in RATES:
        rate = getattr(default.machine, name)
        return replace(settings, machine=replace(settings.machine, **{name: rate}))
    _check_changeable(settings, name)
    if name == "enable_external_access":
        return _with_access(settings, default.enable_external_access)
    changed = replace(settings)
    setattr(changed, name, getattr(default, name))
    return changed


def _check_changeable(settings: Settings, name: str) -> None:
    """Refuses names that are no settings, and settings that no longer change."""
    if name in RANKS:
        raise ProgrammingError(
            f"{name} is given when a session begins, and cannot be changed",
            hint="einsql --mpi 4, or einsql.connect(config={'mpi': 4}).",
        )
    if name not in SETTINGS:
        raise ProgrammingError(
            f'There is no setting "{name}"', hint=suggest(name, SETTINGS, "settings")
        )
    if name == "temp_directory" and not settings.enable_external_access:
        raise ProgrammingError(
            "temp_directory stays: enable_external_access is off",
            hint="einsql.connect(config={'temp_directory': '…'}) sets it when a session begins.",
        )


def changed_settings(settings: Settings, name: str, value: str) -> Settings:
    """The settings after SET name = value.

    Only the text is checked here. `session.setting_statements` checks that strategies and rules
    exist, and reads plan files.

    Raises:
        ProgrammingError: The setting does not exist, or the value is invalid.
        OperationalError: External access is off, and the setting names a file.
    """
    _check_changeable(settings, name)
    if name in _CHOICES:
        choice = value.lower()
        if choice not in _CHOICES[name]:
            choices = ", ".join(_CHOICES[name])
            raise ProgrammingError(f"{name} cannot be {value}", hint=f"Values are {choices}.")
        changed = replace(settings)
        setattr(changed, name, choice)
        return changed
    if name in RATES:
        machine = replace(settings.machine, **{name: RATES[name].read(value)})
        return replace(settings, machine=machine)
    if name in _MEMORY:
        changed = replace(settings)
        setattr(changed, name, _bytes(name, value))
        return changed
    if name == "temp_directory":
        return replace(settings, temp_directory=value)
    if name == "disabled_rules":
        rules = frozenset(r.strip() for r in _unless_none(value).split(",") if r.strip())
        return replace(settings, disabled_rules=rules)
    if name == "sites":
        if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= MOST_SITES:
            raise ProgrammingError(f"sites is a number from 1 to {MOST_SITES:,}, not {value}")
        return replace(settings, sites=int(value))
    if name == "mesh":
        return _with_mesh(settings, value)
    if name == "strategy":
        return replace(settings, strategy=value)
    if name == "plan":
        if not _unless_none(value):
            return replace(settings, plan=None)
        if not settings.enable_external_access:
            raise OperationalError(f"'{value}' is not opened: enable_external_access is off")
        return replace(settings, plan=PlanText.at(value))
    if name == "python_enable_replacements":
        return replace(settings, python_enable_replacements=_flag(name, value))
    return _with_access(settings, _flag(name, value))


def _with_access(settings: Settings, on: bool) -> Settings:
    if on and not settings.enable_external_access:
        raise ProgrammingError(
            "enable_external_access cannot be turned on again",
            hint="A new connection begins with it.",
        )
    return replace(settings, enable_external_access=on)


def _unless_none(value: str) -> str:
    """A value; empty if it is "none"."""
    return "" if value.strip().lower() == "none" else value


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "on", "off", "1", "0"):
        raise ProgrammingError(f"{name} is true or false, not {value}")
    return value.lower() in ("true", "on", "1")


def points(mesh: Sequence[tuple[str, int]]) -> int:
    """The number of points of a mesh; 0 without axes."""
    return prod(size for _, size in mesh) if mesh else 0


def mesh_text(mesh: Sequence[tuple[str, int]]) -> str:
    """A mesh in the notation of SET."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh)


def _with_mesh(settings: Settings, value: str) -> Settings:
    """The settings with a mesh, and with its number of sites if the user has set none.

    Raises:
        ProgrammingError: The text is no mesh, or the mesh has another number of points than there
            are sites.
    """
    axes: list[tuple[str, int]] = []
    for text in value.split(",") if _unless_none(value).strip() else ():
        axis = _MESH_AXIS.fullmatch(text)
        if axis is None or int(axis[2]) < 1:
            raise ProgrammingError(
                f"A mesh cannot have the axis '{text.strip()}'",
                hint="Axes are names with sizes, as in SET mesh = 'data=2, model=4'.",
            )
        if axis[1].lower() in dict(axes):
            raise ProgrammingError(f'The mesh has two axes "{axis[1].lower()}"')
        axes.append((axis[1].lower(), int(axis[2])))
    mesh, number, sites = tuple(axes), points(axes), settings.sites
    if number > MOST_SITES:
        raise ProgrammingError(
            f"The mesh has {number:,} points", hint=f"At most {MOST_SITES:,} sites are possible."
        )
    if mesh and sites not in (1, number, points(settings.mesh)):
        raise ProgrammingError(
            f"The mesh has {plural(number, 'point')}, but there are {plural(sites, 'site')}",
            hint=f"'{_fitting(mesh, sites)}' fits, or SET sites = {number}.",
        )
    return replace(settings, mesh=mesh, sites=number if mesh else sites)


def _fitting(mesh: Sequence[tuple[str, int]], sites: int) -> str:
    """A mesh of a number of sites with the first axes of another mesh, as far as they divide it."""
    axes: list[tuple[str, int]] = []
    for axis, size in mesh[:-1]:
        axes.append((axis, size if sites % size == 0 else 1))
        sites //= axes[-1][1]
    return mesh_text([*axes, (mesh[-1][0], sites)])


def _bytes(name: str, value: str) -> int | None:
    """An amount of memory in bytes; `memory_limit` also accepts a percentage of the machine's."""
    if value.lower() == "none":
        return None
    part = _PERCENT.fullmatch(value) if name == "memory_limit" else None
    if part is None:
        return int(SIZE.read(value))
    if not 0 < float(part[1]) <= 100:
        raise ProgrammingError(f"{value} is no part of the memory", hint="Write it as '80%'.")
    return int(memory() * float(part[1]) / 100)


def setting_text(settings: Settings, name: str) -> str:
    """A setting's value in the notation of SET."""
    if name in RATES:
        return RATES[name].text(getattr(settings.machine, name))
    current = getattr(settings, name)
    if isinstance(current, frozenset):
        return ", ".join(sorted(current)) or "none"
    if name in _MEMORY and current is not None:
        return f"{current}B"
    if name == "temp_directory":
        return str(current or "")
    if name == "mesh":
        return mesh_text(current)
    if isinstance(current, PlanText):
        return current.path
    return str(current).lower()
