"""`python -m forebay` is the command `forebay`."""

import sys

from forebay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
