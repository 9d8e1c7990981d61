"""``python -m castoff``."""

from castoff.cli import main

if __name__ == "__main__":
    main()
