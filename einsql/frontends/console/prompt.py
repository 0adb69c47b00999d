"""The interactive prompt. Only this module and `highlight.py` import prompt_toolkit."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from einsql.frontends.console.completion import Vocabulary
from einsql.frontends.console.settings import Bail
from einsql.frontends.console.shell import Shell

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens a FIFO without waiting for its reader."""

ReadText = Callable[[], str]
"""Reads one complete input; raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""


def interact(shell: Shell) -> None:
    """Reads and runs statements until the user leaves.

    Raises:
        Leave: A command ends the shell, with an exit status.
    """
    vocabulary = Vocabulary(shell)
    shell.output.at_prompt = True
    try:
        read = _editor(shell, vocabulary)
    except ImportError:
        print('For editing, history and completion: pip install "einsql[console]"')
        read = _plain(shell)
    where = "In memory" if shell.database.path == ":memory:" else shell.database.path
    if shell.connection.cluster is not None:
        where += f", on {shell.connection.cluster.ranks} MPI ranks"
    print(f'{where}. Statements end with ";". .help lists commands, Ctrl-D leaves.')
    while True:
        shell.failed = False  # the user has seen the error
        vocabulary.refresh()
        try:
            text = read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if _leaves(text):
            return
        try:
            shell.run_lines(text.splitlines(keepends=True))
        except KeyboardInterrupt:
            print("Interrupted", file=sys.stderr)
        except Bail:
            pass  # the error has been printed


def is_whole(shell: Shell, text: str) -> bool:
    """True if the text is complete and Enter runs it; False if Enter begins another line."""
    pending = ""
    for line in text.splitlines(keepends=True):
        if line.startswith(".") and shell.is_blank(pending):
            pending = ""
            continue
        pending += line
        if ";" in line and shell.connection.is_complete(pending):
            pending = ""
    return shell.is_blank(pending) or _leaves(text)


def _leaves(text: str) -> bool:
    return text.strip().rstrip(";").lower() in ("exit", "quit")


def _plain(shell: Shell) -> ReadText:
    with suppress(ImportError):  # its import adds editing and history to input()
        import readline  # noqa: F401

    def read() -> str:
        text = input(shell.settings.prompt)
        while not is_whole(shell, text):
            text += "\n" + input(shell.settings.continued)
        return text

    return read


def _editor(shell: Shell, vocabulary: Vocabulary) -> ReadText:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import Condition, completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from einsql.frontends.console.highlight import STYLE, SQLLexer

    @Condition
    def unfinished() -> bool:
        # The current buffer is wrong here: Ctrl-R uses a buffer of its own.
        return not is_whole(shell, session.default_buffer.text)

    keys = KeyBindings()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None  # accepts the completion only

    session: PromptSession[str] = PromptSession(
        lambda: [("class:prompt", shell.settings.prompt)],
        multiline=unfinished,
        prompt_continuation=lambda width, _, wrapped: (
            " " * width if wrapped else shell.settings.continued
        ),
        lexer=SQLLexer(),
        style=STYLE,
        completer=_completer(vocabulary),
        complete_while_typing=False,
        history=_history(),
        key_bindings=keys,
        enable_open_in_editor=Condition(lambda: shell.connection.settings.enable_external_access),
        enable_suspend=True,
    )
    return session.prompt


def _history() -> History:
    """The history of the prompt: ~/.einsql_history, or the file named by EINSQL_HISTORY."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = os.environ.get("EINSQL_HISTORY", str(Path.home() / ".einsql_history"))
    path = os.path.abspath(path) if path else path  # .cd may change the directory
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _AT_ONCE, 0o600)
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        os.close(file)
    except OSError:
        return InMemoryHistory()  # the home directory is not writable
    return FileHistory(path) if regular else InMemoryHistory()


def _completer(vocabulary: Vocabulary) -> Completer:
    from collections.abc import Iterable

    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class SQLCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            replaced, words = vocabulary.complete(document.text, document.cursor_position)
            for word in words:
                yield Completion(word.text, start_position=-replaced, display_meta=word.meaning)

    return SQLCompleter()
