"""Sums of products of two operands: how they become matrix products, and who computes them.

`layout.py` decides from the strides that operands arrive with, `pieces.py` cuts the work,
`multiply.py` does it by BLAS, `outer.py` where nothing is summed over both operands.
"""
