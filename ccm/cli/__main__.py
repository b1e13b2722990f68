"""`python -m ccm.cli` = the `ccm` command."""

import sys

from ccm.cli import main

if __name__ == "__main__":
    sys.exit(main())
