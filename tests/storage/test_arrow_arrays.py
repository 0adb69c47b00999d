"""Arrays of NumPy and Arrow share memory, and neither direction imports pandas."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einsql.core.schema import DType
from einsql.storage.arrow_arrays import arrow_array, arrow_type, null_mask, numpy_array

pa = pytest.importorskip("pyarrow")

WIDTHS = [d for d in DType if d is not DType.BFLOAT16]


@given(st.sampled_from(WIDTHS), st.integers(0, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_arrays_go_to_arrow_and_back(dtype: DType, size: int, seed: int, nulls: bool) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 2 if dtype is DType.BOOLEAN else 100, size)
    values = numbers.astype(dtype.numpy)
    if dtype.is_float:
        values[: size // 3] = np.nan  # a number, and no NULL
    known = random.random(size) < 0.7 if nulls else None
    array = arrow_array(values, dtype, known)
    array.validate(full=True)
    mask = np.zeros(size, np.bool_) if known is None else ~known
    expected = pa.array(values, type=arrow_type(dtype), mask=mask)
    assert array.type == expected.type
    assert array.is_null().equals(expected.is_null())
    np.testing.assert_array_equal(null_mask(array), mask)
    np.testing.assert_array_equal(numpy_array(array.drop_null()), values[~mask])
    part = array.slice(size // 2).drop_null()
    np.testing.assert_array_equal(numpy_array(part), values[size // 2 :][~mask[size // 2 :]])


def test_numbers_are_not_copied() -> None:
    values = np.arange(100.0)
    array = arrow_array(values, DType.DOUBLE)
    assert np.shares_memory(numpy_array(array), values)
    assert np.shares_memory(numpy_array(array.slice(7)), values)
    assert not numpy_array(array).flags.writeable
    np.testing.assert_array_equal(numpy_array(array.slice(7)), values[7:])
    np.testing.assert_array_equal(
        numpy_array(arrow_array(values[::-2], DType.DOUBLE)), values[::-2]
    )


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_statement_of_duckdb_over_a_tensor_imports_no_pandas() -> None:
    program = """
import sys, numpy as np, einsql
con = einsql.connect()
con.register("x", np.ones((20, 50), np.float32), ("r", "i"))
rows = con.execute("SELECT r, SUM(val) OVER (PARTITION BY r ORDER BY i) AS s FROM x ORDER BY r, i")
assert rows.fetch_numpy()["s"].tolist() == [*range(1, 51)] * 20
con.execute("CREATE TABLE t AS SELECT r, i, val FROM x WHERE val > 0")
con.execute("CREATE TENSOR y AS SELECT r, i, val FROM t")
assert con.execute("SELECT SUM(val) FROM y").fetchall() == [(1000.0,)]
assert con.execute("SELECT r, val FROM x WHERE i = 3 ORDER BY r").fetch_arrow_table().num_rows == 20
print("pandas" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")
