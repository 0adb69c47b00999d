from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.frontends.console.completion import Vocabulary
from einsql.frontends.console.settings import Database, Settings
from einsql.frontends.console.shell import Shell
from einsql.frontends.console.words import pieces, statement_at
from tests.support.samples import sample, spread


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vocabulary]:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/weights.npy").write_bytes(b"")
    Path("data/.hidden").write_bytes(b"")
    shell = Shell(Database(), Settings())
    shell.connection.execute(
        'CREATE TENSOR weights (row DIM(2), "a col" DIM(3), val FLOAT);'
        "CREATE TENSOR other (k DIM(2), size INTEGER);"
        "CREATE VIEW sums AS SELECT row, SUM(val) AS total FROM weights GROUP BY row;"
        "CREATE MACRO twice(x) AS x + x;"
        "CREATE TABLE people (age INTEGER PRIMARY KEY, name VARCHAR);"
        "CREATE VIEW adults AS SELECT upper(name) AS called FROM people WHERE age > 17;"
    )
    yield Vocabulary(shell)
    shell.close()


@pytest.mark.parametrize(
    ("text", "words"),
    spread(
        [
            ("SELECT * FROM wei|", ["weights"]),
            ("SELECT * FROM weights JOIN s|", ["softmax", "sums"]),
            ("SELECT w.| FROM weights AS w", ["row", '"a col"', "val"]),
            ("SELECT w.r| FROM other o, weights w", ["row"]),
            ("SELECT WEIGHTS.v| FROM weights", ["val"]),
            ("SELECT s.| FROM sums AS s WHERE s.row = 0; SELECT 1", ["row", "total"]),
            ("SELECT * FROM peo|", ["people"]),
            ("SELECT p.| FROM people p", ["age", "name"]),
            ("SELECT calle| FROM adults", ["called"]),
            ("SELECT e.| FROM weights AS e(i, j)", ["i", "j", "val"]),
            ("SELECT f.| FROM 'data/weights.npy' AS f(i, j)", ["i", "j", "val"]),
            ("SELECT t.ro| FROM TILES(weights, 2, 3) AS t", ["row"]),
            (
                "SELECT si| FROM other",
                ["size", "sigmoid", "sign", "silu", "sin", "sinh", "simulate"],
            ),
            ("SELECT tw|", ["twice"]),
            ("SELECT SIGM|", ["SIGMOID"]),
            ("GRO|", ["GROUP"]),
            ("SET str|", ["strategy"]),
            ("EXPLAIN (LEV|", ["LEVEL"]),
            ("EXPLAIN VERBOSE (sites 4, si|", ["simulate", "sites"]),
            ("EXPLAIN (LEVEL |", ["einsum", "tra", "ia", "program"]),
            ("EXPLAIN (SITES 4, level t|) SELECT 1", ["tra"]),
            ("EXPLAIN (FORMAT j|", ["json"]),
            ("EXPLAIN (SITES 4) SELECT siz| FROM other", ["size"]),
            ("SELECT 1 -- wei|", []),
            ("SELECT 'wei|", []),
            ("COPY weights FROM 'da|", ["data/"]),
            ("COPY weights FROM 'data/|", ["weights.npy"]),
            (".sch|", ["schema"]),
            (".mode json|", ["json", "jsonlines"]),
            (".schema oth|", ["other"]),
            (".timer |", ["on", "off"]),
            (".read data/w|", ["weights.npy"]),
            (".nothing a|", []),
        ],
        14,
    ),
)
def test_what_may_stand_at_the_cursor(vocabulary: Vocabulary, text: str, words: list[str]) -> None:
    found = vocabulary.complete(text.replace("|", ""), text.index("|"))
    assert sorted(w.text for w in found.words) == sorted(words)
    begun = text[: text.index("|")]
    replaced = begun[len(begun) - found.replaced :]
    assert all(w.text.lower().startswith(replaced.lower()) for w in found.words)


def test_completions_say_what_they_are(vocabulary: Vocabulary) -> None:
    found = vocabulary.complete("SELECT w. FROM weights w", 9)
    assert [w.meaning for w in found.words] == ["key 2", "key 3", "FLOAT"]
    assert vocabulary.complete("SET fallb").words[0].meaning == "on"


@given(st.text(alphabet="ab1. \n'\"-/*;,$\x00é", max_size=30), st.integers(0, 30))
@settings(max_examples=sample(40, 300))
def test_any_text_is_cut_and_completed(text: str, at: int) -> None:
    assert "".join(piece for _, piece in pieces(text)) == text
    before, _, inside = statement_at(text, min(at, len(text)))
    assert text[: min(at, len(text))].endswith(inside)
    assert before.endswith(inside)
