"""SPMD programs: the steps that every site runs."""
