"""`python -m mem1`."""

from mem1.cli.main import main

main()
