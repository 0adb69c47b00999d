"""Reductions by a key found in data.

`rows` chooses the labels that number rows, and computes the place of each row's key; `reduce`
sorts rows by it, or adds them to their results directly.
"""

from einsql.kernels.segments.reduce import compile_segments

__all__ = ["compile_segments"]
