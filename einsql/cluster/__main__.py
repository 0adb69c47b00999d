"""A rank of a session: `python -m mpi4py -m einsql.cluster ADDRESS`."""

import sys

from einsql.cluster.rank import main

if __name__ == "__main__":
    main(sys.argv[1:])
