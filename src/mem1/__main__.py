"""`python -m mem1`."""

from mem1.cli.main import main

if __name__ == "__main__":
    main()
