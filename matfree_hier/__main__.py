"""`python -m matfree_hier`: the command line."""

import sys

from matfree_hier.cli import main

if __name__ == "__main__":
    sys.exit(main())
