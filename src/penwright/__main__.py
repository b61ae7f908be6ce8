"""`python -m penwright` is the `penwright` command."""

from penwright.cli.main import main

main()
