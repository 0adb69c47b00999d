"""The interactive prompt; prompt_toolkit and Pygments are imported here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from einsql.console.completion import Vocabulary
from einsql.console.settings import Bail
from einsql.console.shell import Shell

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

_PROMPT = "einsql> "
_CONTINUED = "   ...> "

ReadText = Callable[[], str]
"""Reads one whole input; raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""


def interact(shell: Shell) -> None:
    """Reads and runs statements until the user leaves.

    Raises:
        Leave: The user left by a command, which may give an exit status.
    """
    vocabulary = Vocabulary(shell)
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
        shell.failed = False  # the user has seen what failed
        try:
            text = read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if text.startswith("."):
                shell.run_command(text)
            else:
                shell.run_text(text)
        except KeyboardInterrupt:
            print("Interrupted", file=sys.stderr)
        except Bail:
            pass  # the error has been printed
        vocabulary.refresh()


def is_whole(shell: Shell, text: str) -> bool:
    """True if Enter shall run the text rather than begin another line."""
    return text.startswith(".") or shell.connection.is_complete(text) or not text.strip()


def _plain(shell: Shell) -> ReadText:
    with suppress(ImportError):  # its import alone gives input() editing and history
        import readline  # noqa: F401

    def read() -> str:
        text = input(_PROMPT)
        while not is_whole(shell, text):
            text += "\n" + input(_CONTINUED)
        return text

    return read


def _editor(shell: Shell, vocabulary: Vocabulary) -> ReadText:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    @Condition
    def unfinished() -> bool:
        return not is_whole(shell, get_app().current_buffer.text)

    session: PromptSession[str] = PromptSession(
        _PROMPT,
        multiline=unfinished,
        prompt_continuation=_CONTINUED,
        lexer=PygmentsLexer(SqlLexer),
        completer=_completer(vocabulary),
        complete_while_typing=False,
        history=_history(Path.home() / ".einsql_history"),
        enable_open_in_editor=True,
    )
    return session.prompt


def _history(path: Path) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path.open("a").close()
    except OSError:
        return InMemoryHistory()  # a home one may not write to is no reason to fail
    return FileHistory(str(path))


def _completer(vocabulary: Vocabulary) -> Completer:
    from collections.abc import Iterable

    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class SQLCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            start, words = vocabulary.complete(document.text_before_cursor)
            for word in words:
                yield Completion(word, start_position=-start)

    return SQLCompleter()
