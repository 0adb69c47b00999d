"""Object files of kernels are loaded without LLVM where its loader does no more."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from einsql.kernels.compiler import llvm_compiler
from einsql.kernels.runtime import elf_loader, machine_code

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64",
    reason="object files of other systems are loaded by LLVM",
)

ARCSINES = """
from einsql.kernels.compiler.language import *
@njit('int64(float64[::1], float64[::1])')
def kernel(x, out):
    for i in range(x.shape[0]):
        out[i] = np.arcsin(x[i]) + 0.1 * np.sqrt(x[i])
    return x.shape[0]
"""
"""A kernel with constants and with calls of the C library."""


def test_both_loaders_give_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    code = llvm_compiler.object_code("arcsines", ARCSINES)
    values = np.linspace(0, 1, 1001)
    results = []
    for by_llvm in (False, True):
        if by_llvm:
            monkeypatch.setattr(elf_loader, "load", lambda *_: None)
        out = np.zeros_like(values)
        assert machine_code.Kernel(code)(values, out) == len(values)
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], np.arcsin(values) + 0.1 * np.sqrt(values), rtol=1e-15)


def test_what_needs_more_is_left_to_llvm() -> None:
    code = llvm_compiler.object_code("arcsines", ARCSINES)
    assert elf_loader.load(code.code, code.entry)
    assert elf_loader.load(code.code, "absent") is None
    for change in (
        (b"\x7fELF\x02", b"\x7fELF\x01"),  # 32 bits
        (b"\x00asin\x00", b"\x00asim\x00"),  # a function that no library has
    ):
        assert code.code.count(change[0]) == 1
        assert elf_loader.load(code.code.replace(*change), code.entry) is None


def test_a_process_with_stored_kernels_does_not_import_llvm(tmp_path: object) -> None:
    program = """
import sys, numpy as np, einsql
con = einsql.connect(config={"jit": "wait"})
con.register("a", np.ones((300, 300), np.float32), dims=("i", "k"))
sql = "SELECT x.i, y.i AS j, MIN(x.val + y.val) AS val FROM a x, a y WHERE x.k = y.k GROUP BY ALL"
assert con.execute(sql).fetch_numpy()[0, 0] == 2
print("llvmlite" in sys.modules)
"""
    environment = os.environ | {"EINSQL_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment
        )
        assert (run.stdout, run.stderr) == ("False\n", "")
