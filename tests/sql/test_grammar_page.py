"""grammar.ebnf: every production derives its examples, and einsql runs them."""

from pathlib import Path

import pytest

import einsql
from docs.builder.reference.ebnf import Grammar, sections

PRODUCTIONS = [p for section in sections() for p in section.productions]


def test_productions_derive_their_examples() -> None:
    grammar = Grammar(PRODUCTIONS)
    wrong = [
        (p.name, e.derived)
        for p in PRODUCTIONS
        for e in p.examples
        if not grammar.derives(p.name, e.derived)
    ]
    assert wrong == []
    assert [p.name for p in PRODUCTIONS if not p.examples] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("create_tensor", "CREATE TENSOR w (i DIM(2), val FLOAT"),
        ("create_tensor", "CREATE TENSOR w STORAGE"),
        ("for", "FOR i IN range(3) DO END FOR"),
        ("set", "SET sites"),
    ],
)
def test_what_is_no_statement_is_not_derived(name: str, text: str) -> None:
    assert not Grammar(PRODUCTIONS).derives(name, text)
    with pytest.raises(einsql.ProgrammingError):
        einsql.connect().execute(text)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    con = einsql.connect(config={"jit": "never"})
    for production in PRODUCTIONS:
        for example in production.examples:
            if example.statement != "CALIBRATE":  # takes seconds; test_prediction.py runs it
                con.execute(example.statement)
