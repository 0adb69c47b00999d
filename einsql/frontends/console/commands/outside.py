"""Dot commands that reach programs, directories and files outside of the database."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from einsql.core.quoting import literal, name_of
from einsql.frontends.console.commands.command import CommandTarget
from einsql.frontends.console.objects import entries
from einsql.frontends.console.settings import CommandError

_FORMATS = ("csv", "json", "parquet")
"""The formats whose reader `.import` can call with options."""
_TENSOR_FILES = (".npy", ".npz", ".safetensors", ".zarr", ".gguf", ".mtx")
"""The suffixes of files that `.import` makes a tensor of."""
_KNOWN_FILES = (*_TENSOR_FILES, ".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson", ".arrow")


def run_program(shell: CommandTarget, words: list[str]) -> None:
    """Runs a command line of the system's shell."""
    if not words[0]:
        raise CommandError("Usage: .shell COMMAND")
    sys.stdout.flush()
    status = subprocess.run(words[0], shell=True, check=False).returncode
    if status:
        raise CommandError(f"the command ended with status {status}")


def change_directory(shell: CommandTarget, words: list[str]) -> None:
    """Changes the working directory."""
    try:
        os.chdir(os.path.expanduser(words[0]))
    except OSError as e:
        raise CommandError(f'cannot change to "{words[0]}": {e.strerror}') from e


def edit(shell: CommandTarget, words: list[str]) -> None:
    """Opens the last statement in an editor, and runs the text that the editor leaves."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with NamedTemporaryFile("w", suffix=".sql", encoding="utf-8", delete=False) as file:
        file.write(shell.latest_text.strip("\n") + "\n")
    try:
        sys.stdout.flush()
        command = f"{editor} {shlex.quote(file.name)}"
        status = subprocess.run(command, shell=True, check=False).returncode
        if status:
            raise CommandError(f'the editor "{editor}" ended with status {status}; nothing is run')
        text = Path(file.name).read_text("utf-8-sig")
    finally:
        with suppress(OSError):
            os.unlink(file.name)
    if text.strip():
        shell.output.print_lines(text.rstrip("\n").split("\n"))
        shell.run_lines(text.splitlines(keepends=True))


def import_file(shell: CommandTarget, words: list[str]) -> None:
    """Adds the rows of a file to a table or a tensor, which is created if it does not exist."""
    form, options, names = _options(words)
    if len(names) != 2:
        raise CommandError("Usage: .import [--csv|--json|--parquet] [--OPTION VALUE]... FILE NAME")
    path, name = os.path.expanduser(names[0]), names[1]
    suffix = Path(path).suffix.lower()
    if form is None and (options or suffix not in _KNOWN_FILES):
        form = suffix[1:] if suffix[1:] in _FORMATS else "csv"
    if form is None:
        source = literal(path)
    else:
        source = f"read_{form}({', '.join([literal(path), *options])})"
    exists = any(e.name.lower() == name.lower() for e in entries(shell.connection))
    kind = "TENSOR" if form is None and suffix in _TENSOR_FILES else "TABLE"
    head = f"INSERT INTO {name_of(name)}" if exists else f"CREATE {kind} {name_of(name)} AS"
    shell.work(lambda: shell.connection.execute(f"{head} SELECT * FROM {source}"))


def _options(words: list[str]) -> tuple[str | None, list[str], list[str]]:
    """The format, the arguments of its reader, and the other words."""
    form: str | None = None
    options, names = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        option = word.lstrip("-")
        if not word.startswith("-"):
            names.append(word)
        elif option in _FORMATS:
            form = option
        else:
            setting = next(rest, None)
            if setting is None or not option.isidentifier():
                raise CommandError(f'.import: the option "{word}" has no value')
            is_word = setting.lower() in ("true", "false") or setting.lstrip("-").isdecimal()
            options.append(f"{option} = {setting if is_word else literal(setting)}")
    return form, options, names
