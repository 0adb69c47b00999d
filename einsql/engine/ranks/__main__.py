"""A rank of a session: `python -m mpi4py -m einsql.engine.ranks ADDRESS`."""

import sys

from einsql.engine.ranks.rank import main

if __name__ == "__main__":
    main(sys.argv[1:])
