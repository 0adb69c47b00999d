"""SQL over tiles: a SELECT whose FROM holds TILES becomes tensor-relational algebra.

`recognise.py` tells such a SELECT by looking, `sources.py` binds its FROM, `select.py`
the SELECT, `kernels.py` what is done to arrays.
"""
