"""Functions and built-in macros of FROM."""

from __future__ import annotations

from einsql.sql.functions import tile_functions

TABLE_FUNCTIONS = (
    "range",
    "generate_series",
    "einsum",
    "gradient",
    "read_tensor",
    *tile_functions.TABLE_FUNCTIONS,
)
"""Functions that return a relation."""

TABLE_MACROS = ("attention", "layer_norm", "log_softmax", "rms_norm", "softmax")
"""Built-in table macros."""
