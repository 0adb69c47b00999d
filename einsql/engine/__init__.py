"""Executors of programs: steps in this process, on sites, and on MPI ranks."""
