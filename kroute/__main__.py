"""`python -m kroute`."""

from kroute.cli import main

main()
