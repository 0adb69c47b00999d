"""Tensor-relational algebra: plans of queries that are cut into tiles."""
