"""Registered arrays whose owner changes their elements, shape or type afterwards."""

from __future__ import annotations

import numpy as np
import pytest

import einsql


@pytest.mark.parametrize("dtype", ["<f8", ">f8", ">i4", "u1", "i2"])
def test_changed_elements_are_read_anew(dtype: str) -> None:
    con, array = einsql.connect(), np.array([1, 2], dtype)
    con.register("a", array, dims=("i",))
    assert con.execute("SELECT SUM(val) AS s FROM a").fetchall() == [(3,)]
    array[0] = 77
    assert con.execute("SELECT i, val FROM a").fetchall() == [(0, 77), (1, 2)]


def test_another_shape_or_type_of_the_object_changes_nothing() -> None:
    con, array = einsql.connect(), np.arange(6.0).reshape(2, 3)
    con.register("a", array, dims=("i", "j"))
    sql = "SELECT i, SUM(val) AS s FROM a GROUP BY i"
    rows, every = con.execute(sql).fetchall(), con.execute("SELECT * FROM a").fetchall()
    array.shape = (3, 2)
    assert con.execute(sql).fetchall() == rows == [(0, 3), (1, 12)]
    array.shape = (6,)
    setattr(array, "dtype", np.dtype(np.float32))  # noqa: B010 # read-only for mypy
    assert con.execute(sql).fetchall() == rows
    assert con.execute("SELECT * FROM a").fetchall() == every
    with pytest.raises(ValueError, match="resize"):
        array.resize(3)
