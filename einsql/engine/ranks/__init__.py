"""Sites on MPI ranks: the ranks of a session, and the process that tells them what to do.

The process that holds the connection plans; it need not be a rank. It speaks with every
rank over a socket of its own, so that idle ranks sleep, results are fetched from where
they lie, and the end of a rank is noticed at once. Among each other ranks speak MPI.

In the order of reading: `messages` and how they travel (`wire`); where ranks call
(`meeting`), what is known of their processes (`processes`) and of their ends (`endings`);
they are started (`job`) or there already (`joined`), as `start` is asked; one command and
its answers (`call`), the session's ranks (`driver`) and who of them is left (`groups`).
With these: tensors at ranks and placed programs (`program`), plans over blocks (`blocks`),
single tiles and files (`storage`). At the other end of the line: `rank`, and what it does
alone (`keeping`).
"""
