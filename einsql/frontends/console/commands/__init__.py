"""Dot commands, which control the console itself; `registry.py` lists them."""
