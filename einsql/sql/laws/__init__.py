"""Tests of the laws that definitions in SQL declare."""
