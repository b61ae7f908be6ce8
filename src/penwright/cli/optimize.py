"""The `penwright optimize` command: make a run generate or translate faster."""

from penwright.cli.options import InPrecision, Json, RunFolder, print_json, warn

NAME, OLD_NAME = "optimize", "quicken"


def command(
    run: RunFolder,
    precision: InPrecision = None,
    json: Json = False,
) -> None:
    """Make a run generate or translate faster.

    Chooses the fastest precision that is as accurate as float32, and compiles the decoding steps. Takes a few minutes,
    once per run.
    """
    from penwright.cli.progress import print_message
    from penwright.workflows import api

    nats = api.optimize(run, precision, print_message)
    if json:
        print_json(nats)
        return
    for name, value in nats.items():
        print(f"{name}\t{value:.4f} nats per token on held-out text")
    print(f"{run} now uses compiled steps. For its original accuracy, use --precision float32")


def deprecated_command(run: RunFolder, precision: InPrecision = None, json: Json = False) -> None:
    """Run `penwright optimize` under its old name."""
    warn(f"`penwright {OLD_NAME}` is now `penwright {NAME}`; the old name will be removed")
    command(run, precision, json)
