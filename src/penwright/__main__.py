"""Entry point of `python -m penwright`, which runs the `penwright` command."""

from penwright.cli.main import main

main()
