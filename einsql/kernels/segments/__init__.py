"""Labels found in data: rows copied by number, and reductions of rows by a computed key.

`rows` chooses the labels that number rows and computes derived labels per row; `gather` copies
rows; `reduce` sorts rows by segment and runs the kernel that `source` writes.
"""

from einsql.kernels.segments.gather import compile_gather
from einsql.kernels.segments.reduce import compile_segments

__all__ = ["compile_gather", "compile_segments"]
