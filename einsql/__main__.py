"""The command `einsql`, also `python -m einsql`."""

import gc
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        arguments: What follows the command's name; by default `sys.argv`'s.
    """
    # What is imported stays: the collector of cycles would look at it 130 times meanwhile, for a
    # tenth of the time that a short script takes, and once more at the end.
    gc.disable()
    try:
        from einsql.frontends.console.main import main as run
    finally:
        gc.freeze()
        gc.enable()
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
