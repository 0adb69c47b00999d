"""A fast scan of SQL text: statements, nesting and open quotes, before any parsing.

The tokenizer takes about 10 µs a token. This scan reads only the tokens that can change the
structure of a text, so that hostile or huge texts are refused before they are parsed.
"""

from __future__ import annotations

import re

from einsql.core.records import dataclass
from einsql.errors import Error, ProgrammingError

MAX_BYTES = 16 * 2**20  # characters of a script; scanning that number takes seconds
MAX_TOKENS = 500_000
"""Most tokens of a statement. In DuckDB an IN with half as many numbers takes 10 s and 1.3 GB."""
MAX_DEPTH = 999
"""Deepest nesting of a statement; DuckDB refuses expressions nested 1000 deep."""
MAX_LOOPS = 16
"""Deepest nesting of FOR loops."""

QUIET = r"""
    --[^\r\n]* | /\*.*?\*/ | \b[eE]'(?:[^'\\]++|\\.|'')*+' | '(?:[^']++|'')*+' | "(?:[^"]++|"")*+"
    | (?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$
"""
"""Comments and quoted text, as a verbose pattern with one group, `tag`."""

_MARKS = re.compile(
    rf"""
    (?P<skip> {QUIET} )
    | (?P<open> /\* | ' | " )
    | (?P<deeper> \( | \b[cC][aA][sS][eE]\b )
    | (?P<done> \bend(?:\s++|--[^\r\n]*+[\r\n]|/\*.*?\*/)++for\b )
    | (?P<back> \) | \b[eE][nN][dD]\b )
    | (?P<stop> ; )
    | (?P<do> \bdo\b )
    | (?P<reset> , | \b(?:from|select|where|then|else|and|or)\b )
    | (?P<chain> [-+*/%^|] | \b[nN][oO][tT]\b )
    | (?P<branch> \bwhen\b )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_TOKENS = re.compile(
    rf"(?P<skip> {QUIET} ) | (?P<stop> ; ) | \w++ | [^\w\s]", re.VERBOSE | re.DOTALL
)
_LOOP = re.compile(
    r"""
    (?: \s++ | --[^\r\n]*+[\r\n]? | /\*.*?\*/ )*+
    (?: explain \b (?: \s++ | analyze\b | verbose\b | simulate\b | \([^()]*+\) )*+ )?+
    for \b
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""The start of a loop; EXPLAIN before it belongs to the statement, which is then refused."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = re.compile(r"\s+|--[^\r\n]*[\r\n]?|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Span:
    """The text of a statement, and the depth of its syntax tree."""

    start: int
    end: int
    depth: int
    complete: bool


def scan(sql: str) -> list[Span]:
    """Splits a script into statements; comments and blanks alone are not a statement.

    FOR … DO …; …; END FOR is one statement.

    Raises:
        ProgrammingError: The text is longer than `MAX_BYTES` or is not valid Unicode, a quote or
            comment is not closed, or a statement has too many tokens, expressions nested too deep
            or loops nested too deep.
    """
    if len(sql) > MAX_BYTES:
        raise ProgrammingError(
            f"The statement has {len(sql):,} characters; at most {MAX_BYTES:,} are accepted",
            hint="Load data with COPY or register() instead of writing it into SQL.",
        )
    half = None if sql.isascii() else _SURROGATE.search(sql)
    if half is not None:
        raise ProgrammingError(
            f"U+{ord(half[0]):04X} is a lone surrogate, which is no character",
            position=half.start(),
        )
    limit = _token_limit(sql)
    spans: list[Span] = []
    start = depth = run = deepest = branches = 0
    loops: list[bool] = []  # for each open FOR: whether its body has begun
    _open(loops, sql, 0)
    for mark in _MARKS.finditer(sql, 0, limit):
        kind = mark.lastgroup
        if kind in ("skip", "tag"):
            continue
        if kind == "open":
            raise ProgrammingError("A quote or comment is never closed", position=mark.start())
        if kind == "done":
            if loops and loops[-1] and depth == 0:
                loops.pop()
                continue
            kind = "back"  # END of a CASE before FOR
        if kind == "do" and (not loops or loops[-1] or depth):
            continue
        if kind in ("do", "stop") and loops:
            # Without DO the body begins at the first semicolon; the reader reports the missing DO.
            loops[-1], depth, run = True, 0, 0
            _open(loops, sql, mark.end())
            continue
        if kind == "stop":
            _add(spans, sql, start, mark.start(), max(deepest, branches), complete=True)
            start, depth, run, deepest, branches = mark.end(), 0, 0, 0, 0
            _open(loops, sql, start)
            continue
        if kind == "deeper":
            depth += 1
        elif kind == "back":
            depth -= 1
        branches += kind == "branch"  # a branch is an IF within the ELSE of the former branch
        run = run + 1 if kind == "chain" else 0 if kind in ("reset", "branch") else run
        deepest = max(deepest, depth + run)
        if deepest > MAX_DEPTH:
            raise ProgrammingError(
                f"The statement nests deeper than {MAX_DEPTH} expressions",
                hint="Split it with WITH, or let a SUM add the terms.",
                position=mark.start(),
            )
    if limit < len(sql):
        raise ProgrammingError(
            f"The statement has more than {MAX_TOKENS:,} words, numbers and signs",
            hint="Load data with COPY or register() instead of writing it into SQL.",
            position=limit,
        )
    _add(spans, sql, start, len(sql), max(deepest, branches), complete=False)
    return spans


def _token_limit(sql: str) -> int:
    """The offset of the first token above the limit of its statement, or the end of the text."""
    count = 0
    for match in _TOKENS.finditer(sql) if len(sql) > MAX_TOKENS else ():
        count = 0 if match.lastgroup == "stop" else count + 1
        if count > MAX_TOKENS:
            return match.start()
    return len(sql)


def _open(loops: list[bool], sql: str, start: int) -> None:
    """Adds a loop if one begins at the start of a statement."""
    if _LOOP.match(sql, start):
        loops.append(False)
        if len(loops) > MAX_LOOPS:
            raise ProgrammingError(f"Loops nest deeper than {MAX_LOOPS}", position=start)


def is_complete(text: str) -> bool:
    """True if a text ends with a semicolon outside quotes, comments and loops."""
    try:
        spans = scan(text)
    except Error:
        return False
    return bool(spans) and spans[-1].complete


def _add(spans: list[Span], sql: str, start: int, end: int, depth: int, *, complete: bool) -> None:
    """Adds a statement without the blanks and comments around it."""
    while start < end and (blank := _WORDS.match(sql, start, end)):
        start = blank.end()
    while end > start and sql[end - 1].isspace():
        end -= 1
    if start < end:
        spans.append(Span(start, end, depth, complete))
