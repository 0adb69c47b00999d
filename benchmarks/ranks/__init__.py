"""einsql's sites on MPI ranks beside other systems; run by `make peers`."""
