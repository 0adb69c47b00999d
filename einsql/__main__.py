"""The command `einsql`, also `python -m einsql`."""

import sys

from einsql.console.main import main

if __name__ == "__main__":
    sys.exit(main())
