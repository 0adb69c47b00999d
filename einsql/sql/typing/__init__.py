"""Typed scalar expressions: SQL types, casts, literals and functions over bound values."""
