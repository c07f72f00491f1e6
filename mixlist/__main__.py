"""Run the command ``mixlist`` as ``python -m mixlist``."""

import sys

from mixlist.cli import main

if __name__ == "__main__":
    sys.exit(main())
