"""penwright optimize: make a run write or translate faster from now on."""

from penwright.cli.options import InPrecision, Json, RunFolder, print_json, warn

NAME, OLD_NAME = "optimize", "quicken"


def command(
    run: RunFolder,
    precision: InPrecision = None,
    json: Json = False,
) -> None:
    """Make a run write or translate faster from now on.

    Chooses the fastest precision that is as good, and compiles the steps of decoding. Takes some minutes, once.
    """
    from penwright.cli.progress import err
    from penwright.workflows import api

    nats = api.optimize(run, precision, err)
    if json:
        print_json(nats)
        return
    for name, value in nats.items():
        print(f"{name}\t{value:.4f} nats per token, held out")
    print(f"{run} uses compiled steps from now on; with --precision float32 it is as exact as before")


def renamed(run: RunFolder, precision: InPrecision = None, json: Json = False) -> None:
    """Do what `penwright optimize` does, under its old name."""
    warn(f"`penwright {OLD_NAME}` is now `penwright {NAME}`; the old name will go")
    command(run, precision, json)
