"""``python -m lit_group_rl``."""

from lit_group_rl.cli.main import main

if __name__ == "__main__":
    main()
