"""Sites on MPI ranks: the ranks of a session, and the driver process that commands them.

The driver is the process with the connection. It plans, and it need not be a rank. It has a
socket to every rank: idle ranks sleep, the driver fetches results from the ranks that have
them, and it detects the end of a rank at once. The ranks communicate with each other by MPI.

Modules in the order of reading:

* Commands: `messages`, and their encoding on a socket (`framing`).
* Start: `start` chooses between new ranks (`job`) and those of an MPI job (`joined`). They connect
  to the driver at a `rendezvous` and authenticate in a `handshake`.
* Ends: `processes` watches the ranks, `failure_diagnosis` determines which rank failed first, and
  `leftovers` removes the files of killed ranks.
* Calls: `call` is one command with its answers, `driver` the session's ranks, `groups` the
  ranks that are alive.
* Tensors and programs of the driver: `program`, `windows`, `shipping`, `blocks`, `storage`.
* The rank's side: `rank`, its tiles (`tile_store`) and its threads (`threads`).
"""
