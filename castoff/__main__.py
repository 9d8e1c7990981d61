"""``python -m castoff``."""

from castoff.cli.main import main

if __name__ == "__main__":
    main()
