"""Macros: their definitions, and their expansion in a statement."""
