"""The `penwright studio` command: train, watch and use models in the browser."""

import os
from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import Device, without_none
from penwright.cli.serve import KEY, require_packages
from penwright.errors import PenwrightError


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the texts and the runs. It is created if it does not exist.")
    ] = Path(),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free port.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help="Key that requests must send. Required if other machines can connect.", envvar=KEY),
    ] = None,
    device: Device = "cpu",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a limit, such as max_upload_bytes=1000000. Repeatable.")
    ] = None,
) -> None:
    """Train, watch and use models in the browser, without a terminal.

    Drop your texts on the page, check the plan and press Train. Training continues when the page or the server is
    closed.
    """
    from penwright.config import merge, parse_override, validate

    require_packages()
    if os.name != "posix":
        raise PenwrightError("the studio needs Linux or macOS. On Windows, use it inside WSL")

    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings
    from penwright.serving.studio import Studio

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be created: {error.strerror}. Choose a different folder") from None
    key = os.environ.get(KEY) if api_key is None else api_key  # ServingSettings rejects a blank API key
    flags = without_none({"host": host, "port": port, "api_key": key, "device": device})
    table = merge(flags, *(parse_override(text) for text in set_ or []))
    settings = validate(ServingSettings, table, "the options")
    studio = Studio(folder, settings)
    studio.queue.open()
    server = Server(ModelRegistry([], home=studio.folder), settings, studio)
    for line in server.lines():
        print(line, flush=True)
    server.run(open_page=open_)
