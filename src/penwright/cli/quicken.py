"""penwright quicken: have a run write or translate faster from now on."""

from penwright.cli.options import InPrecision, Json, RunFolder, print_json

NAME = "quicken"


def command(
    run: RunFolder,
    precision: InPrecision = None,
    json: Json = False,
) -> None:
    """Have a run write or translate faster from now on.

    Chooses the quickest precision that is as good, and compiles the steps of decoding: some minutes, once.
    """
    from penwright.cli.progress import err
    from penwright.workflows import api

    nats = api.quicken(run, precision, err)
    if json:
        print_json(nats)
        return
    for name, value in nats.items():
        print(f"{name}\t{value:.4f} nats a token, held out")
    print(f"{run} is used with compiled steps from now on; --precision float32 is as exact as before")
