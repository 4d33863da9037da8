"""The program `mem1`, and `python -m mem1`."""

import sys


def main() -> None:
    """`mem1.cli.main.main`, whose imports can be interrupted as quietly as its work."""
    try:
        from mem1.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
