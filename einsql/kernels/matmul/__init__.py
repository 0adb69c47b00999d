"""Sums of products of two operands: how they become matrix products, and who computes them.

`layout.py` decides from the strides that operands arrive with, `pieces.py` cuts the work,
`multiply.py` does it by BLAS, `rows.py` where matrices would have to be copied first or nothing
is summed over both operands.
"""
