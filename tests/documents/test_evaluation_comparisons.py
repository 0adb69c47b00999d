"""The evaluation's intervals and verdicts, and what its page says of them."""

from itertools import product
from typing import Any

import pytest

from benchmarks.evaluation import claims, comparisons, page, statistics
from benchmarks.evaluation.running import ROUNDS
from benchmarks.evaluation.trial import COUNTERS, LOOPBACK
from benchmarks.measure import estimate


@pytest.mark.parametrize("rounds", [1, 3, 6, 7, 9, 12])
def test_the_coverage_is_that_of_all_outcomes(rounds: int) -> None:
    """Each value is below the median, at −1, or above it, at 1, with the same probability."""
    hits = 0
    for sides in product((-1.0, 1.0), repeat=rounds):
        interval = estimate(list(sides))
        hits += interval.low < 0 < interval.high
    assert statistics.coverage(rounds) == pytest.approx(hits / 2**rounds)


def test_nine_rounds_are_the_least_whose_interval_leaves_values_out() -> None:
    assert ROUNDS == 9
    interval = estimate([float(n) for n in range(1, 10)])
    assert (interval.low, interval.high) == (2, 8)
    assert statistics.coverage(9) == pytest.approx(0.9609, abs=1e-4)
    for rounds, covered in ((3, 0.75), (6, 0.96875), (7, 0.984375), (8, 0.9921875)):
        interval = estimate([float(n) for n in range(1, rounds + 1)])
        assert (interval.low, interval.high) == (1, rounds)
        assert statistics.coverage(rounds) == covered


def test_verdicts_follow_intervals() -> None:
    clear = statistics.verdict({"einsql": [1.0, 1.1, 1.0], "a": [2.0, 2.1, 2.2]})
    assert (clear.fastest, clear.word) == ("einsql", "won")
    close = statistics.verdict({"einsql": [1.0, 1.3, 1.0], "a": [1.1, 0.9, 0.95]})
    assert (close.fastest, close.word, close.tied) == ("a", "tie", ("einsql", "a"))
    slow = statistics.verdict({"einsql": [2.0, 2.1, 2.2], "a": [1.0, 1.1, 1.0]})
    assert (slow.word, slow.tied) == ("lost", ("a",))


def test_variants_of_einsql_take_no_part_in_verdicts() -> None:
    seconds = {"einsql": [2.0, 2.1], "einsql, megatron": [1.0, 1.0], "a": [3.0, 3.1]}
    found = statistics.verdict(seconds)
    assert (found.fastest, found.tied, found.word) == ("einsql", ("einsql",), "won")
    assert list(found.ratios) == ["a"]
    assert found.own["einsql, megatron"].high < 1
    del seconds["a"]
    assert statistics.verdict(seconds).word == "alone"


def test_a_ratio_of_two_samples_does_not_pair_their_rounds() -> None:
    found = statistics.unpaired_ratio([2.0, 4.0, 3.0], [1.0, 2.0, 1.5])
    assert (found.value, found.low, found.high) == (2, 1, 4)


def _case(**contestants: dict[str, Any]) -> dict[str, Any]:
    return {"ranks": 2, "timed": True, "bounds": [], "contestants": contestants}


def _entry(seconds: float, sent: int = 0, by: str = "") -> dict[str, Any]:
    memory = {"memory": {"ready": 1, "peak": 2}}
    return {
        "seconds": [seconds] * 9,
        **memory,
        **({"sent_bytes": sent, "sent_by": by} if by else {}),
    }


def _content(name: str, cases: dict[str, Any], tables: list[Any] | None = None) -> dict[str, Any]:
    machine = {"lines": ["CPU: one"], "memory_bytes": 1, "kernel": "6", "load": 0.0}
    return {
        "date": "2026-01-01", "commit": "abc", "rounds": 9, "machine": machine,
        "experiments": {name: {"cases": cases, "tables": tables or []}},
    }  # fmt: skip


def test_the_page_says_which_variants_are_faster_and_how_bytes_are_counted() -> None:
    case = _case(**{
        "einsql": _entry(2, 100, COUNTERS), "einsql, data parallel": _entry(1, 100, COUNTERS),
        "PyTorch DDP": _entry(3, 900, LOOPBACK),
    })  # fmt: skip
    alone = _case(einsql=_entry(2), PyTorch=_entry(2))
    text = page.text(_content("training", {"speech, 2 ranks": case, "speech, one process": alone}))
    assert (
        "A variant is faster than einsql's own choice: `einsql, data parallel` takes 0.5 of "
        "einsql's time (speech, 2 ranks)." in text
    )
    assert "- `PyTorch DDP`: all bytes through the loopback interface" in text
    assert "- `einsql`, `einsql, data parallel`: payload, by the system's own counters" in text
    assert (
        "Not run at this size or in this form: `PyTorch` (speech, 2 ranks); "
        "`einsql, data parallel`, `PyTorch DDP` (speech, one process)." in text
    )
    assert "feed-forward-network) | 1 | 1 | 0 |" in text
    assert page.NO_REASON not in text
    assert "9 rounds (96.1%)" in text
    assert "### eindecomp among" not in text


def test_the_page_names_the_cases_with_another_verdict_in_the_run_before() -> None:
    def run_with(seconds: float) -> dict[str, Any]:
        case = _case(einsql=_entry(2), PyTorch=_entry(seconds))
        same = _case(einsql=_entry(1), PyTorch=_entry(2))
        return _content("training", {"speech, one process": case, "images": same})

    text = page.text(run_with(1), run_with(3))
    assert "Of 2 cases 1 have another verdict in the run before" in text
    assert "feed-forward-network), speech, one process: won, now lost" in text
    assert "other run has another fastest system in 1 of them" in text
    assert "other run has another fastest system in none of them" in page.text(
        run_with(2), run_with(3)
    )


def test_a_reason_is_printed_where_einsql_loses() -> None:
    name = "user's min-plus with the way, 512³"
    won, lost = (_case(einsql=_entry(2), NumPy=_entry(s)) for s in (3, 1))
    assert "Seven instructions" not in page.text(_content("algebras", {name: won}))
    assert "Seven instructions" in page.text(_content("algebras", {name: lost}))
    assert page.NO_REASON in page.text(_content("algebras", {"min-plus, 512³": lost}))


def test_rows_with_rounds_are_judged_by_intervals() -> None:
    table = {
        "name": "First answers", "columns": ["statement", "NumPy", "einsql"],
        "rows": [["a", 1.0, 1.01], ["b", 1.0, 2.0]], "units": {"NumPy": "s", "einsql": "s"},
        "compete": ["NumPy", "einsql"], "ours": "einsql", "plotted": "", "note": "",
        "rounds": [
            {"NumPy": [1.0, 1.1, 0.9], "einsql": [1.01, 1.0, 1.02]},
            {"NumPy": [1.0, 1.1, 0.9], "einsql": [2.0, 2.0, 2.0]},
        ],
    }  # fmt: skip
    assert [row.word for row in comparisons.judged(table)] == ["tie", "lost"]
    content = _content("first_answers", {}, [table])
    text = page.text(content)
    assert "| b | 1 s, 0.5× [0.45, 0.55] | 2 s | NumPy |" in text
    assert comparisons.rounds_of(content) == [3]
    assert comparisons.words_of_strategies(content["experiments"]["first_answers"]) == []


def test_the_claim_of_bytes_has_times_and_prefers_a_case_that_is_not_slower() -> None:
    def case(sent: int, seconds: float) -> dict[str, Any]:
        theirs = {"PyTorch DDP": _entry(1, sent, LOOPBACK)}
        return _case(einsql=_entry(seconds, 1000, COUNTERS), **theirs)

    slower, faster = case(9_000_000, 2), case(5000, 0.5)
    sentence = claims.text(_content("training", {"a": slower}))
    assert "takes 2 s. With PyTorch's DDP it sends 9 MB and takes 1 s." in sentence
    sentence = claims.text(_content("training", {"a": slower, "b": faster}))
    assert sentence.startswith("- A training step (b) sends 1,000 B")
