"""Sums of products of two operands: how they become matrix products, and what computes them.

`layout.py` chooses an order of axes from the strides of the operands, and `pieces.py` cuts the
work. `multiply.py` multiplies by BLAS. `rows.py` multiplies where matrices would have to be
copied first, or where no label of both operands is summed.
"""
