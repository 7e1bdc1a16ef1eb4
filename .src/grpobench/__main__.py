"""`python -m grpobench` is the command `grpobench`."""

import sys

from grpobench.runs.cli import main

if __name__ == "__main__":
    sys.exit(main())
