"""See cli.py."""

import sys

from tests.sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
