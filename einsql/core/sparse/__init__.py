"""Sparse matrices: the stored form, and fields of relations over it."""
