"""``python -m castoff``."""

import sys

from castoff.core.errors import INTERRUPTED_EXIT_CODE

if __name__ == "__main__":
    try:
        from castoff.cli.main import main

        main()
    except KeyboardInterrupt:  # while the modules are loaded: after that the commands say what they leave
        sys.exit(INTERRUPTED_EXIT_CODE)
