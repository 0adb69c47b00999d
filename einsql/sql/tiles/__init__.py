"""SQL over tiles: a SELECT with TILES in its FROM becomes tensor-relational algebra.

`recognise.py` detects such a SELECT, `sources.py` binds its FROM and `select.py` the SELECT.
`kernels.py` builds the kernels over arrays.
"""
