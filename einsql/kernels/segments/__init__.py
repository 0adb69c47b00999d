"""Labels found in data: rows copied by number, and reductions of rows by a key of theirs.

`rows` finds which labels number rows and computes derived labels for each; `gather` copies
rows; `reduce` sorts them by segment and runs the kernel that `source` writes.
"""

from einsql.kernels.kernel import Kernel
from einsql.kernels.segments.gather import compile_gather
from einsql.kernels.segments.reduce import compile_segments

GATHER = Kernel("gather", "rows found by number are copied", compile_gather)
SEGMENTS = Kernel(
    "segments", "float reductions by a key found in data sort the rows first", compile_segments
)

__all__ = ["GATHER", "SEGMENTS"]
