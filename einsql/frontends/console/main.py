"""The entry point of the command line: parses the options and returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import einsql
from einsql.core.file_ownership import check_file
from einsql.errors import Error
from einsql.frontends.console.commands.command import unescaped
from einsql.frontends.console.render import MODES
from einsql.frontends.console.settings import Database, Leave, Settings
from einsql.frontends.console.shell import Shell

if TYPE_CHECKING:
    from mpi4py import MPI

_INTERRUPTED = 130  # 128 + SIGINT, the convention of shells
_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `einsql` and returns its exit status.

    Args:
        arguments: The arguments of the command; by default those of `sys.argv`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if list(words) == ["doctor"]:
        from einsql.frontends.console.doctor import doctor  # runs checks of every part

        return doctor(sys.stdout)
    world = launched()
    if world is None:
        return _console(arguments)
    from einsql.engine.ranks.joined import end, follow  # needed on MPI ranks only

    if world.rank:
        follow(world)
        end()
        return 0
    try:
        return _console(arguments, "world")
    finally:
        end()


def launched() -> MPI.Intracomm | None:
    """The communicator of the MPI job, if `python -m mpi4py -m einsql` started the command."""
    if not {"mpi4py.run", "mpi4py.MPI"} & set(sys.modules):
        # The variables of launchers are no evidence: shells of a batch job have them as well,
        # and joining absent ranks would wait forever.
        _notice_of_loners()
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def _notice_of_loners() -> None:
    """Warns once per job that its processes are not connected by MPI."""
    for launcher in ("PMI", "OMPI_COMM_WORLD"):
        ranks = os.environ.get(f"{launcher}_SIZE", "1")
        if ranks != "1" and os.environ.get(f"{launcher}_RANK") == "0":
            print(
                f"Notice: each of {ranks} processes works for itself; to join them, start "
                "them as python -m mpi4py -m einsql",
                file=sys.stderr,
            )
            return


def _console(arguments: Sequence[str] | None, mpi: str | None = None) -> int:
    options = _parser().parse_args(arguments)
    if mpi is not None and options.mpi is not None:
        print("Error: --mpi starts ranks, but this is one of several already", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a replaced stream can have any type
            stream.reconfigure(errors="replace")
    try:
        return _run(options, mpi or options.mpi)
    except Leave as e:
        return e.status
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; flushing the buffer at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _run(options: argparse.Namespace, mpi: object) -> int:
    settings = Settings(
        mode=options.mode,
        null=options.nullvalue,
        echo=options.echo,
        bail=options.bail,
        headers=options.headers,
        separator=None if options.separator is None else unescaped(options.separator),
    )
    config = dict(options.set) if mpi is None else {**dict(options.set), "mpi": mpi}
    try:
        shell = Shell(Database(options.database, options.readonly, config), settings)
    except Error as e:
        print(f"Error: {e}", file=sys.stderr)
        return 1
    try:
        with shell.reporting():
            _run_init(shell, options)
        for kind, text in [*options.before, *options.scripts]:
            with shell.reporting():
                if kind == "file":
                    shell.run_file(text)
                else:
                    shell.run_lines(text.splitlines(keepends=True))
        if options.ui:
            from einsql.frontends.console.ui.serve import serve  # imports a server

            serve(shell)
        elif not options.scripts and sys.stdin.isatty():
            from einsql.frontends.console.prompt import interact  # imports prompt_toolkit

            interact(shell)
        elif not options.scripts:
            with shell.reporting():
                shell.run_lines(sys.stdin)
    finally:
        with shell.reporting():
            shell.close()
    return int(shell.failed)


def _run_init(shell: Shell, options: argparse.Namespace) -> None:
    if options.init is not None:
        shell.run_file(options.init)
    elif not options.no_init and (path := Path.home() / ".einsqlrc").is_file():
        try:
            check_file(str(path))
        except OSError as error:
            print(f"Notice: {path} is not run: {error}", file=sys.stderr)
        else:
            shell.run_file(str(path))


class _Script(argparse.Action):
    """Collects -c and -f in their order on the command line, and -cmd likewise."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), (self.const, values)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="einsql",
        usage="einsql [OPTION]... [DATABASE]",
        description="SQL over tensors. Without -c or -f, statements come from the standard "
        "input, or from a prompt on a terminal.",
        epilog="`einsql doctor` shows the versions and libraries in use, and checks them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "database",
        nargs="?",
        default=":memory:",
        metavar="DATABASE",
        help="database file; without one, everything is in memory",
    )
    add(
        "-c",
        "-s",
        dest="scripts",
        action=_Script,
        const="text",
        default=[],
        metavar="SQL",
        help="run these statements, then leave; may be repeated and mixed with -f",
    )
    add(
        "-f",
        "--file",
        dest="scripts",
        action=_Script,
        const="file",
        metavar="FILE",
        default=[],
        help="run this script, then leave",
    )
    add(
        "-cmd",
        "--cmd",
        dest="before",
        action=_Script,
        const="text",
        default=[],
        metavar="SQL",
        help="run these statements or this dot command first, then start the console",
    )
    for mode in MODES:
        add(
            f"-{mode}",
            f"--{mode}",
            dest="mode",
            action="store_const",
            const=mode,
            default="duckbox",
            help=f"print results as {mode}",
        )
    add("-ui", "--ui", action="store_true", help="open a page in the browser instead of a prompt")
    add("-readonly", "--readonly", action="store_true", help="open the database for reading only")
    add("-bail", "--bail", action="store_true", help="stop at the first error")
    add("-echo", "--echo", action="store_true", help="print statements before they run")
    add("-nullvalue", "--nullvalue", metavar="TEXT", help="print NULL as this text")
    add(
        "-noheader",
        "--noheader",
        dest="headers",
        action="store_false",
        help="print modes without a frame without the names of the columns",
    )
    add("-separator", "--separator", metavar="TEXT", help="print this text between fields")
    add("-init", "--init", metavar="FILE", help="run this script first, not ~/.einsqlrc")
    add("-no-init", "--no-init", action="store_true", help="don't run ~/.einsqlrc")
    add(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="change a setting; SHOW SETTINGS lists them",
    )
    add("--mpi", type=_ranks, metavar="N", help="start N MPI ranks that do the work")
    add("-version", "--version", action="version", version=f"einsql {einsql.__version__}")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise argparse.ArgumentTypeError(f'"{text}" is not of the form NAME=VALUE')
    return name.strip(), value.strip()


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of ranks')
    return int(text)
