"""Loops generated for a node and compiled by Numba."""
