"""SQL over tiles: a SELECT with TILES in its FROM becomes tensor-relational algebra.

`recognise.py` finds such a SELECT, `sources.py` binds its FROM, `select.py` the SELECT, and
`kernels.py` builds the kernels over arrays.
"""
