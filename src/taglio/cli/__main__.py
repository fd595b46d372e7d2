"""`python -m taglio.cli`."""

import sys

from taglio.cli import main

if __name__ == "__main__":
    sys.exit(main())
