"""``python -m lit_group_rl``."""

import sys

from lit_group_rl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
