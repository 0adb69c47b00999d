"""What is on a device, and how operators are cut that do not fit; no kernel is launched."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.schema import DType
from einsql.engine.executor import Program
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import TRUE, Axis, Call, EinSum, Node, Operand, Output, Value
from einsql.kernels.cuda import Handle, Memory, compile_on_device
from einsql.kernels.cuda.device import simulated
from einsql.kernels.cuda.simulator import Simulator
from einsql.kernels.cuda.slabs import Piece, plan_slabs, size, slabs
from einsql.kernels.cuda.stacks import parts, stack_of
from einsql.planner import device_program
from tests.kernels.cuda.nodes import tensor
from tests.support.samples import combinations, sample

F = DType.FLOAT


class Counting(Simulator):
    """Counts the bytes of its arrays that are alive, all but NumPy's own temporaries."""

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self.alive = self.peak = self.uploads = 0

    def upload(self, array: np.ndarray) -> np.ndarray:
        self.uploads += 1
        return self._counted(super().upload(array))

    def gemm(self, a: np.ndarray, b: np.ndarray, dtype: np.dtype, precision: str) -> np.ndarray:
        return self._counted(super().gemm(a, b, dtype, precision))

    def _counted(self, array: np.ndarray) -> np.ndarray:
        self.alive += array.nbytes
        self.peak = max(self.peak, self.alive)
        weakref.finalize(array, self._freed, array.nbytes)
        return array

    def _freed(self, nbytes: int) -> None:
        self.alive -= nbytes


def product(a: Node, b: Node, n: int) -> EinSum:
    axes = tuple(Axis(x, 0, n) for x in "ijk")
    arg = Call("mul", (Value(0, "val", F), Value(1, "val", F)), F)
    operands = Operand(a, ("i", "k")), Operand(b, ("k", "j"))
    return EinSum(axes, operands, TRUE, ("i", "j"), (Output("val", (arg,), F, "sum"),))


@pytest.mark.parametrize("share", [8.0, 3.0, 0.7])
def test_a_chain_larger_than_the_device(share: float) -> None:
    """Intermediates leave the device, and products are cut, but the answer is the same."""
    n, count = 24, 6
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-1, 2, (n, n)).astype(np.float32) for _ in range(count)]
    inputs = [tensor(f"m{k}", F, i=n, j=n) for k in range(count)]
    pairs = [product(a, b, n) for a, b in zip(inputs[::2], inputs[1::2], strict=True)]
    root = product(product(pairs[0], pairs[1], n), pairs[2], n)
    device = Counting(int(share * n * n * 4))
    memory = Memory(device)
    handles = {x.name: {"val": memory.given(a)} for x, a in zip(inputs, arrays, strict=True)}
    program = Program(root, lambda node: compile_on_device(node, memory))  # type: ignore[arg-type, return-value]  # it passes handles on
    (fields,) = program.run(handles, lambda _: None)  # type: ignore[arg-type]  # as above
    found = fields["val"].host()  # type: ignore[attr-defined]  # as above
    wanted = np.linalg.multi_dot(arrays)
    np.testing.assert_array_equal(found, wanted)
    assert device.peak <= device.memory
    del handles, fields, found, program
    gc.collect()
    assert memory.used == device.alive == 0


SHORTAGES = [
    MemoryError(),
    RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
    OSError(2, "Call to cuLaunchKernel results in CUDA_ERROR_OUT_OF_MEMORY"),
]
"""As NumPy and CuPy, cuBLAS, the runtime and numba-cuda's driver say it."""


class Short(Simulator):
    """A device on which less is free than it says: others use it too."""

    def __init__(self, failing: str, most: int, error: Exception, kept: int = 0) -> None:
        super().__init__()
        self.failing, self.most, self.error, self.kept = failing, most, error, kept
        self.products = 0

    def upload(self, array: np.ndarray) -> np.ndarray:
        self._require("upload", array.size)
        return super().upload(array)

    def gemm(self, a: np.ndarray, b: np.ndarray, dtype: np.dtype, precision: str) -> np.ndarray:
        self._require("gemm", a.size + b.size)
        self.products += 1
        return super().gemm(a, b, dtype, precision)

    def give_back(self) -> None:
        self.most, self.kept = self.most + self.kept, 0

    def _require(self, what: str, elements: int) -> None:
        if what == self.failing and elements > self.most:
            raise self.error


def multiplied(device: Simulator) -> None:
    """Asserts that a product of matrices is right."""
    n = 24
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (n, n)).astype(np.float32) for _ in "ab")
    memory = Memory(device)
    node = product(tensor("a", F, i=n, j=n), tensor("b", F, i=n, j=n), n)
    compiled = compile_on_device(node, memory)
    name, run = compiled.kernel, compiled.run
    assert name == "cuda gemm"
    found = run([{"val": memory.given(x)} for x in (a, b)], lambda _: None)["val"].host()
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize(
    ("error", "failing", "most"), combinations(SHORTAGES, ["upload", "gemm"], [150, 0])
)
def test_a_device_with_less_than_it_says(failing: str, most: int, error: Exception) -> None:
    """Slabs become smaller until they fit; where nothing does, the processor computes."""
    device = Short(failing, most, error)
    multiplied(device)
    assert (device.products > 0) == (most > 0)


@pytest.mark.parametrize("error", SHORTAGES[1:], ids=repr)
def test_memory_that_is_kept_for_arrays_serves_others(error: Exception) -> None:
    device = Short("gemm", 150, error, kept=10_000)
    multiplied(device)
    assert device.products == 1


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_result_that_cannot_be_fetched(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Simulator):
        def download(self, array: np.ndarray) -> np.ndarray:
            raise error

    monkeypatch.setattr(device_program, "device", Full)
    with einsql.connect(config={"device": "cuda"}) as con:
        for name, dims in (("a", "ik"), ("b", "kj")):
            con.register(name, np.ones((3, 3), np.float32), dims=tuple(dims))
        sql = "SELECT i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (k) GROUP BY i, j"
        with pytest.raises(OperationalError, match="not enough memory") as raised:
            con.execute(sql).fetch_numpy()
    assert raised.value.hint


def test_other_errors_of_a_device_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        multiplied(Short("gemm", 0, RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")))


def test_threads_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step reads stays until it is done, whatever other sessions bring."""
    n, count = 8, 4
    node = product(tensor("a", F, i=n, j=n), tensor("b", F, i=n, j=n), n)
    device = Counting(8 * n * n * 4)  # one step's arrays, and what they take beside
    memory = Memory(device)
    rng = np.random.default_rng(0)
    pairs = [[rng.integers(-3, 4, (n, n)).astype(np.float32) for _ in "ab"] for _ in range(count)]

    def work(number: int) -> None:
        run = compile_on_device(node, memory).run
        a, b = pairs[number]
        for _ in range(50):
            found = run([{"val": memory.stored(x)} for x in (a, b)], lambda _: None)
            np.testing.assert_array_equal(found["val"].host(), a @ b)

    def after_others(handle: Handle) -> Any:
        time.sleep(1e-4)
        return read(handle)

    read = Handle.device
    monkeypatch.setattr(Handle, "device", after_others)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    assert device.peak <= device.memory
    pairs.clear()
    gc.collect()
    assert memory.used == device.alive == 0


def test_sessions_share_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own limit, and what the others hold counts too."""
    n = 8
    shared = Counting(1 << 20)
    monkeypatch.setattr("einsql.kernels.cuda.device", lambda: shared)
    monkeypatch.setattr("einsql.planner.device_program.device", lambda: shared)
    rng = np.random.default_rng(0)
    query = "SELECT i, k, SUM(a.val * b.val) AS v FROM a JOIN b USING (j) GROUP BY i, k"
    held = []
    for limit in (20 * n * n * 4, 6 * n * n * 4, 12 * n * n * 4):
        con = einsql.connect(config={"device": "cuda", "device_memory": f"{limit}B"})
        a, b = (rng.integers(-3, 4, (n, n)).astype(np.float32) for _ in "ab")
        con.register("a", a, dims=("i", "j"))
        con.register("b", b, dims=("j", "k"))
        held += [(con.execute(query), a @ b) for _ in range(8)]
        assert 0 < shared.alive <= limit
    for found, wanted in held:
        np.testing.assert_array_equal(found.fetch_numpy(), wanted)


def test_stored_tensors_stay_and_leave_first_come() -> None:
    device = Counting(10_000)
    memory = Memory(device)
    a, b, c = (np.full(1000, n, np.float32) for n in range(3))
    for array in (a, b, a, a):
        assert memory.bring([memory.stored(array)], 0, device.memory)
    assert device.uploads == 2
    assert memory.bring([memory.stored(c)], 0, device.memory)  # b leaves
    assert memory.bring([memory.stored(a)], 0, device.memory)
    assert device.uploads == 3
    del a, array
    gc.collect()
    assert memory.used == 4000
    assert not memory.bring([memory.given(np.zeros(3000, np.float32))], 0, device.memory)


@settings(max_examples=sample(25, 200))
@given(
    st.lists(st.tuples(st.sets(st.sampled_from("ijk")), st.integers(1, 4000)), max_size=4),
    st.fixed_dictionaries({x: st.integers(0, 40) for x in "ij"}),
    st.integers(1, 4000),
)
def test_slabs_fit_and_cover(
    pieces: list[tuple[set[str], int]], extent: dict[str, int], limit: int
) -> None:
    made = [Piece(frozenset(labels), nbytes) for labels, nbytes in pieces]
    parts = plan_slabs(made, extent, limit)
    if parts is None:
        assert size(made, extent, {x: max(1, n) for x, n in extent.items()}) > limit
        return
    assert size(made, extent, {**dict.fromkeys(extent, 1), **parts}) <= limit
    bounds = {x: (3, 3 + extent[x]) for x in parts}
    seen = np.zeros([extent[x] for x in parts], int)
    for slab in slabs(bounds, parts):
        cut = tuple(slice(slab[x][0] - 3, slab[x][1] - 3) for x in parts)
        seen[cut] += 1
        for x, (lo, hi) in slab.items():
            assert hi - lo <= -(-extent[x] // parts[x])
    assert np.all(seen == 1)


@st.composite
def stacks(draw: st.DrawFn) -> np.ndarray:
    """Matrices (batch, rows, columns) in awkward memory, each element another number."""
    shape = [draw(st.integers(1, 4)) for _ in range(3)]
    order = draw(st.permutations(range(3)))
    held = [shape[n] * draw(st.integers(1, 2)) for n in order]
    array = np.arange(np.prod(held, dtype=int), dtype=np.float32).reshape(held)
    array = array.transpose(np.argsort(order))
    cut = tuple(
        slice(0, n) if draw(st.booleans()) else slice(None, None, m // n)
        for n, m in zip(shape, array.shape, strict=True)
    )
    array = array[cut][tuple(slice(0, n) for n in shape)]
    kind = draw(st.integers(0, 5))
    if kind == 0:
        array = np.broadcast_to(array[:1], shape)
    return array[:, ::-1] if kind == 1 else array


@settings(max_examples=sample(50, 500))
@given(stacks())
def test_stacks_as_cublas_reads_them(array: np.ndarray) -> None:
    """From the first element on, by the step from column to column."""
    batch, rows, columns = array.shape
    steps = tuple(s // array.itemsize for s in array.strides)
    found = stack_of(array.shape, steps)
    if found is None:
        near, *far = sorted(
            (s, n) for s, n in zip(steps[1:], array.shape[1:], strict=True) if n > 1
        )
        apart = near[0] > 1 and far  # no elements are neighbours
        assert near[0] < 1 or apart or far[0][0] < near[1]
        return
    stored = (columns, rows) if not found.turned else (rows, columns)  # of a column, of columns
    strides = tuple(4 * s for s in (found.next, 1, found.step))
    columns_first = np.lib.stride_tricks.as_strided(array, (batch, *stored), strides)
    read = columns_first.transpose(0, 2, 1) if found.turned else columns_first
    assert found.step >= max(1, stored[0])
    np.testing.assert_array_equal(read, array.transpose(0, 2, 1))


def test_products_that_cublas_cannot_count() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (5, 3, 7)), rng.integers(-3, 4, (5, 7, 4))
    total = np.zeros((5, 3, 4), int)
    for z, y, x, w in parts((5, 3, 4, 7), widest=3):
        left, right = a[z, y, w], b[z, w, x]
        assert max(*left.shape, *right.shape) <= 3
        total[z, y, x] += left @ right
    np.testing.assert_array_equal(total, a @ b)


def test_without_a_device() -> None:
    if simulated() or _has_gpu():
        pytest.skip("there is a device")
    con = einsql.connect()
    with pytest.raises(OperationalError, match="device = 'cuda'") as found:
        con.execute("SET device = 'cuda'")
    assert "SET device = 'cpu'" in found.value.hint
    assert con.execute("SELECT 1 + 1 AS two").fetchall() == [(2,)]


def _has_gpu() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False
