"""``python -m mixlist`` is the command ``mixlist``."""

import sys

from mixlist.cli import main

if __name__ == "__main__":
    sys.exit(main())
