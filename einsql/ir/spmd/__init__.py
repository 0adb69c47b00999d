"""SPMD programs: what every site does, step by step."""
