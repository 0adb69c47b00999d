"""Sums of products of two operands, as matrix products.

`layout.py` chooses an order of axes from the strides of the operands, and `pieces.py` cuts the
work. `multiply.py` multiplies by BLAS. `rows.py` multiplies if matrices would have to be copied
first, or if no common label of the operands is summed.
"""
