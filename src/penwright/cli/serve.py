"""The commands that serve models over HTTP: `penwright serve` and `penwright studio`."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, without_none
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from penwright.serving.settings import ServingSettings

KEY = "PENWRIGHT_API_KEY"
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 picks a free port.", metavar="N", min=0, max=65535)]
NEEDED = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(help="Run folders, or NAME=FOLDER. The first of each kind is the default.", metavar="RUN"),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Key that requests must send, except to /health. Required if other machines can connect.", envvar=KEY
        ),
    ] = None,
    device: Device = "cpu",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a limit, such as max_rows=16. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Serve a web page and HTTP APIs (OpenAI, LibreTranslate)."""
    require_packages()

    from penwright.serving.server import serve

    server = serve(runs, _settings(host, port, api_key, device, set_))
    for line in server.lines():
        print(line, flush=True)
    server.run(open_page=open_)


def studio(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder for the texts and the runs. It is created if it does not exist.", metavar="FOLDER"),
    ] = Path(),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help="Key that requests must send. Required if other machines can connect.", envvar=KEY),
    ] = None,
    device: Device = "cpu",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a limit, such as max_upload_bytes=1000000. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Train, watch and use models in the browser, without a terminal.

    Drop your texts on the page, check the plan and press Train. Training continues when the page or the server is
    closed.
    """
    require_packages()
    if os.name != "posix":
        raise PenwrightError("the studio needs Linux or macOS. On Windows, use it inside WSL")

    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.server import Server
    from penwright.serving.studio import Studio

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be created: {error.strerror}. Choose a different folder") from None
    settings = _settings(host, port, api_key, device, set_)
    studio = Studio(folder, settings)
    studio.queue.open()
    server = Server(ModelRegistry([], home=studio.folder), settings, studio)
    for line in server.lines():
        print(line, flush=True)
    server.run(open_page=open_)


def _settings(
    host: str, port: int, api_key: str | None, device: str, overrides: Sequence[str] | None
) -> "ServingSettings":
    """Return the settings of the server from the options and --set. Later values override earlier ones."""
    from penwright.config import merge, parse_override, validate
    from penwright.serving.settings import ServingSettings

    key = os.environ.get(KEY) if api_key is None else api_key  # ServingSettings rejects a blank API key
    flags = without_none({"host": host, "port": port, "api_key": key, "device": device})
    return validate(ServingSettings, merge(flags, *(parse_override(text) for text in overrides or [])), "the options")


def require_packages() -> None:
    """Raise PenwrightError if a package that the server needs is not installed."""
    missing = [package for package in NEEDED if find_spec(package.replace("-", "_")) is None]
    if missing:
        raise PenwrightError(f"serving needs {' and '.join(missing)}. Install with: pip install 'penwright[serve]'")
