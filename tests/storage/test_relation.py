"""Tensor relations as Arrow tiles: zero-copy for one tile, exact for any cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.errors import InterfaceError
from einsql.storage.fields import LocalFields
from einsql.storage.relation import Relation, from_array, from_batches, to_batches
from tests.support.samples import sample


def test_one_tile_shares_memory_both_ways() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    (batch,) = to_batches(from_array(array, ("i", "j")))
    assert batch.schema.names == ["i", "j", "val"]
    assert batch.schema.types[:2] == [pa.int64(), pa.int64()]
    assert batch.schema.field("val").type == pa.fixed_shape_tensor(pa.float32(), (3, 4))
    back = from_batches(from_array(array, ("i", "j")).schema, [batch])
    assert np.shares_memory(back.fields["val"], array)


@settings(max_examples=sample(20, 60))
@given(hs.data())
def test_tiles_give_the_relation_back(data: hs.DataObject) -> None:
    shape = tuple(data.draw(hs.lists(hs.integers(1, 7), max_size=3)))
    dtype = data.draw(hs.sampled_from(list(DType)))
    rng = np.random.default_rng(data.draw(hs.integers(0, 99)))
    plain = from_array(rng.integers(0, 2, shape).astype(dtype.numpy), tuple("ijk"[: len(shape)]))
    schema = Schema(plain.schema.keys, (*plain.schema.fields, Field(PRESENT, DType.BOOLEAN)))
    mask = rng.integers(0, 2, shape).astype(np.bool_)
    relation = Relation(schema, LocalFields({**plain.fields, PRESENT: mask}))
    parts = {k.name: data.draw(hs.integers(1, 8)) for k in schema.keys}
    batches = to_batches(relation, parts)
    assert len({b.schema.field("val").type for b in batches}) == len(batches)  # one a shape
    back = from_batches(schema, batches[::-1])
    for name, array in relation.fields.items():
        assert np.array_equal(back.fields[name], array)


def test_missing_and_doubled_tiles_are_refused() -> None:
    relation = from_array(np.zeros((4, 4)), ("i", "j"))
    (batch,) = to_batches(relation, {"i": 2, "j": 2})
    with pytest.raises(InterfaceError, match="missing"):
        from_batches(relation.schema, [batch.slice(0, 3)])
    with pytest.raises(InterfaceError, match="given twice"):
        from_batches(relation.schema, [batch, batch])


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(InterfaceError, match="dtype complex128"):
        from_array(np.zeros(3, complex), ("i",))
    with pytest.raises(InterfaceError, match="name for an array of rank"):
        from_array(np.zeros((2, 2)), ("i",))
    with pytest.raises(InterfaceError, match="repeat"):
        from_array(np.zeros((2, 2)), ("i", "val"))
