"""Sites on MPI ranks: the ranks of a session, and the process that tells them what to do.

The process that holds the connection plans; it need not be a rank. It speaks with every
rank over a socket of its own, so that idle ranks sleep, results are fetched from where
they lie, and the end of a rank is noticed at once. Among each other ranks speak MPI.
"""
