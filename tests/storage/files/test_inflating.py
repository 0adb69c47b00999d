"""Compressed files under a memory limit: refused by their size before they are decompressed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

LENGTH = 3_000_000
"""Elements of 8 bytes; compressed they are some kilobytes."""
LIMIT = "8MB"

READ = """
import sys
from pathlib import Path
import einsql

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

limit, length, *names = sys.argv[1:]
con = einsql.connect(config={"memory_limit": limit})
con.execute(f"CREATE TENSOR w (d0 DIM({length}), val DOUBLE)")
for name in names:
    for path in (f"small-{name}", name):  # the first one brings in the libraries
        before, reasons = resident(), []
        for sql in (f"SELECT SUM(val) FROM read_tensor('{path}')", f"COPY w FROM '{path}'"):
            try:
                con.execute(sql)
            except einsql.Error as error:
                reasons.append(error.reason)
    print(*reasons, resident() - before, sep="\t")
"""


def write(path: Path, values: np.ndarray) -> None:
    """Writes values that one column or array holds, compressed."""
    if path.suffix == ".npz":
        np.savez_compressed(path, val=values)
        return
    if path.stem.endswith("rows"):
        table = pa.table({"d0": np.arange(len(values)), "val": values})
    else:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values), len(values))
        kind = pa.fixed_shape_tensor(pa.float64(), values.shape)
        table = pa.table({"val": pa.ExtensionArray.from_storage(kind, rows)})
    if path.suffix == ".parquet":
        parquet.write_table(
            table, path, compression="zstd", data_page_size=2**30, write_batch_size=2**30,
            max_rows_per_page=2**30, row_group_size=2**30, use_dictionary=False,
        )  # fmt: skip
        return
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)


NAMES = ["tensor.npz", "tensor.arrow", "rows.arrow", "tensor.parquet", "rows.parquet"]


def test_what_does_not_fit_is_refused_before_it_is_decompressed(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / f"small-{name}", np.ones(4))
        write(tmp_path / name, np.zeros(LENGTH))
    found = subprocess.run(
        [sys.executable, "-c", READ, LIMIT, str(LENGTH), *NAMES],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name, line in zip(NAMES, found.stdout.splitlines(), strict=True):
        *reasons, more = line.split("\t")
        assert len(reasons) == 2
        for reason in reasons:
            assert reason.startswith(f"'{name}' does not fit in memory: decompressed it has")
        assert int(more) < 2**24
