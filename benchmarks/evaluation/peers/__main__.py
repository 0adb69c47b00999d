"""Installs the peers: `python -m benchmarks.evaluation.peers [NAME …]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.evaluation.peers import DEBIAN, FOLDER, PINS, missing, missing_of_debian, python

LIMIT = 1800
"""Seconds that the installation of one peer may take."""


def main() -> int:
    names = [*sorted(p.stem for p in PINS.glob("*.txt")), *DEBIAN]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation.peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names)}")
    asked = parser.parse_args().names or names
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(asked):
        note = FOLDER / f"{name}.reason"
        note.unlink(missing_ok=True)
        told = ""
        if name in DEBIAN:
            told = _debian(name)
        if not told and (PINS / f"{name}.txt").exists():
            told = _environment(name)
        if told:
            note.write_text(told)
        print(f"{name}: {missing(name) or 'installed'}", flush=True)
    return 0


def _environment(name: str) -> str:
    """Makes an environment as its file says; what went wrong, or nothing."""
    pins, stamp = PINS / f"{name}.txt", FOLDER / f"{name}.installed"
    if stamp.exists() and stamp.read_text() == pins.read_text():
        return ""
    stamp.unlink(missing_ok=True)
    print(f"Installing {name}", flush=True)
    venv.create(FOLDER / name, with_pip=True, clear=True, symlinks=True)
    pip = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    told = _run([*pip, "--requirement", str(pins)])
    if not told:
        stamp.write_text(pins.read_text())
    return told


def _debian(name: str) -> str:
    """Installs Debian's packages; what went wrong, or nothing."""
    if not missing_of_debian(name):
        return ""
    packages = " ".join(DEBIAN[name])
    if shutil.which("apt-get") is None:
        return f"there is no apt-get to install {packages}"
    if os.geteuid() != 0:
        return f"root has to install it: apt-get install {packages}"
    print(f"Installing {packages}", flush=True)
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *DEBIAN[name]]
    return _run(["apt-get", "update"]) or _run(install)


def _run(command: list[str]) -> str:
    """Runs a command; the end of what it printed if it fails."""
    own = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        ran = subprocess.run(
            command, env=own, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (ran.stderr or ran.stdout).strip().splitlines()
    program = Path(command[0]).name
    return f"{program}: {lines[-1] if lines else 'no message'}" if ran.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
