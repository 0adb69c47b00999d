"""Sites on MPI ranks: the ranks of a session, and the driver process that commands them.

The driver is the process with the connection. It plans, and it need not be a rank. It has a
socket to every rank: idle ranks sleep, results are fetched from the ranks that have them, and
the end of a rank is noticed at once. The ranks speak MPI with each other.

Modules in the order of reading:

* Commands: `messages`, and their bytes on a socket (`framing`).
* Start: `start` chooses between new ranks (`job`) and those of an MPI job (`joined`). They call
  the driver at a `rendezvous` and authenticate in a `handshake`.
* Ends: `processes` watches the ranks, `failure_diagnosis` says which one failed first, and
  `leftovers` removes the files of killed ones.
* Calls: `call` is one command with its answers, `driver` the session's ranks, `groups` those
  that are alive.
* Tensors and programs of the driver: `program`, `windows`, `shipping`, `blocks`, `storage`.
* The rank's side: `rank`, its tiles (`tile_store`) and its threads (`threads`).
"""
