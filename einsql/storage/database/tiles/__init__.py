"""Tiles of stored tensors: their grid, index, statistics, and arrays in memory."""
