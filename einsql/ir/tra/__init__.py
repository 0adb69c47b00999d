"""Tensor-relational algebra: how a query is cut into tiles."""
