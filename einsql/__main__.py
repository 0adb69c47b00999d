"""The command `einsql`, also `python -m einsql`."""

import gc
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        arguments: The command-line arguments without the command's name; None takes `sys.argv`.
    """
    # Imported modules are never freed. The garbage collector would scan them about 130 times during
    # the imports, a tenth of the time of a short script, and once more at exit.
    gc.disable()
    try:
        from einsql.frontends.console.main import main as run
    finally:
        gc.freeze()
        gc.enable()
    try:
        return run(arguments)
    finally:
        # The process ends, and what it leaves is not collected; DuckDB would report that as leaks.
        if arguments is None and "_duckdb" not in sys.modules:
            gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
