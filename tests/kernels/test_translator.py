"""The language of kernels: texts compute what Python computes, and others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from einsql.ir.functions.numeric import maximum
from einsql.kernels.compiler import llvm_compiler
from einsql.kernels.compiler.language import Unsupported
from einsql.kernels.runtime import machine_code
from tests.kernels.interpreted import FUNCTIONS

HEAD = """\
from einsql.kernels.runtime.compiled_functions import (
    at, borrow, give_back, idiv, maximum, plus, remainder)

WIDE = 3
"""
NODE = "@njit()\n"
KERNEL = '@njit("int64(int64[::1], float64[::1])")\ndef kernel(p, x):\n'
TEXTS = {
    "integers wrap and floor": """
    a, b = p[0], p[1]
    return a // b * 100 + a % b + (a << 2) - (b >> 1) + idiv(a, b) + remainder(a, b) ^ (a & ~b)
""",
    "variables widen": """
    s = 0
    for n in range(p[2]):
        s = s + x[n]
    x[0] = s / 2
    return np.int64(s)
""",
    "loops with steps, break and continue": """
    total = 0
    for n in range(10, p[1], -3):
        if n == 4:
            continue
        total += n
    for n in range(0, p[2], p[3]):
        total = total * 3 + n
        if total > 10_000:
            break
    n = 7
    while n > 0 and total > 5 or n == 3:
        n -= 1
        total -= n
    return total + n
""",
    "conditions": """
    v = x[1] if p[0] > 0 else -1
    w = 1 if WIDE > 2 else p[100]
    if p[1] < 0 and x[p[2] - 1] > 0.5 or not p[0] == 3:
        v = v * 2
    elif math.isfinite(v):
        v += w
    else:
        return -1
    x[2] = max(v, x[0]) + min(2, p[2]) + abs(-p[3])
    return np.int64(v * 1000)
""",
    "working memory, tuples and shapes": """
    room = borrow(8 * WIDE)
    t = at(room, np.float64)
    near, far = x[0], x[1]
    near, far = far, near
    for n in range(WIDE):
        t[n] = near * n + far
    for v in (near, far):
        t[0] += v
    x[3] = t[0] - t[2]
    give_back(room)
    return x.shape[0] * 10 + p.shape[0]
""",
    "NaN and unsigned places": """
    s = -math.inf
    for n in range(p[2]):
        s = maximum(s, np.float64(np.float32(x[np.uintp(n)])))
    x[0] = plus(s, 0.25)
    return np.int64(not math.isfinite(s))
""",
}
CALLS = f"""\
{NODE}def node(p, first):
    return inner(p, first) * 2 + 1


{NODE}def inner(p, first):
    if first > p[2]:
        return 0
    s = first
    for n in range(min(p[2], 4)):
        s += p[n] * first
    return s


{KERNEL}    return node(p, 2) + node(p, p[3]) + node(p, 99)
"""


def by_python(source: str) -> Callable[[np.ndarray, np.ndarray], int]:
    """The kernel as Python runs it, over NumPy's integers and floats."""
    _, decorator, text = source.partition("@njit(")
    names: dict[str, Any] = {
        "njit": lambda *_: lambda function: function,
        "WIDE": 3,
        **FUNCTIONS,
        "maximum": maximum,
    }
    exec(decorator + text, names)
    kernel: Callable[[np.ndarray, np.ndarray], int] = names["kernel"]
    return kernel


@pytest.mark.parametrize("text", [*TEXTS.values(), CALLS], ids=[*TEXTS, "functions"])
def test_kernels_compute_what_python_does(text: str) -> None:
    source = HEAD + (text if text is CALLS else KERNEL + text.strip("\n"))
    kernels = machine_code.Kernel(llvm_compiler.object_code("test", source)), by_python(source)
    for numbers in ([7, 2, 4, 3], [-7, 2, 5, 1], [7, -2, 4, 2], [0, -5, 3, 2], [3, 9, 2, 5]):
        for values in ([0.5, -1.5, 2.25, 3.0, 4.0], [np.nan, np.inf, -0.0, 1e300, 2.0]):
            answers = []
            for kernel in kernels:
                x = np.array(values)
                with np.errstate(all="ignore"):
                    result = kernel(np.array(numbers, np.int64), x)
                answers.append((result, x.tobytes()))
            assert answers[0] == answers[1], (numbers, values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("return np.int64(sum(x[n] for n in range(3)))", "GeneratorExp"),
        ("return p[0] if x[0] > 0 else (1, 2)", "a variable of"),
        ("return np.int64(np.uint64(p[0]) + p[1])", "signed and unsigned"),
        ("return nowhere", "the name nowhere"),
    ],
)
def test_what_is_beyond_the_language_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        llvm_compiler.object_code("test", f"{HEAD}{KERNEL}    {text}\n")
