"""Experiments: a file each with its SQL, its contestants and the check of their answers."""
