"""`python -m kroute`."""

from kroute.cli.main import main

main()
