"""Macros and views: their definitions, and their expansion in a statement."""
