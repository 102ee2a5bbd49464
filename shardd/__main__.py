"""`python -m shardd`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # `-m` has put the current directory there: nothing of ours is imported from where somebody stands

from shardd.cli.start import main

if __name__ == "__main__":
    main()
