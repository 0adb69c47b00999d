"""How long a new process takes to answer SELECT 1."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times

PACKAGES = "duckdb, pyarrow, numpy, sqlglot"
COMMANDS = {
    "imports": ("-c", f"import {PACKAGES}"),
    "connect": ("-c", "import einsql; einsql.connect().close()"),
    "SELECT 1": ("-m", "einsql", "-no-init", "-c", "SELECT 1"),
}
AIM = 0.6 / 0.4
"""0.6 s where importing the packages takes 0.4 s."""


def startup() -> Section:
    """Processes from start to end, beside importing what einsql is built on."""
    with TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
        taken = measure(
            {name: partial(_process, command, environment) for name, command in COMMANDS.items()},
            rounds=21,
            seconds=0.0,
        )
    findings = []
    for name, aim in (("SELECT 1", AIM), ("connect", None)):
        found = taken.ratio(name, "imports")
        findings.append(
            Finding(
                name,
                factor(found, 2),
                "" if aim is None else f"≤ {aim:.2f}×",
                None if aim is None else found.value <= aim,
                times({x: taken.median(x) for x in (name, "imports")}),
            )
        )
    return Section(
        f"Start: the process's time / that of python -c 'import {PACKAGES}'", tuple(findings)
    )


def _process(arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment
    )
