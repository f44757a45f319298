"""``python -m normplace`` runs the command line."""

import sys

from normplace.cli import main

if __name__ == "__main__":
    sys.exit(main())
