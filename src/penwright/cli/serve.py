"""The `penwright serve` command: serve trained models over HTTP."""

import os
from importlib.util import find_spec
from typing import Annotated

import typer

from penwright.cli.options import Device, without_none
from penwright.errors import PenwrightError

KEY = "PENWRIGHT_API_KEY"
NEEDED = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, or NAME=FOLDER. The first is the default model.", metavar="RUN...")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free port.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Key that requests must send, except to /health. Required if other machines can connect.", envvar=KEY
        ),
    ] = None,
    device: Device = "cpu",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a limit, such as max_rows=16. Repeatable.")
    ] = None,
) -> None:
    """Serve a web page and HTTP APIs (OpenAI, LibreTranslate)."""
    from penwright.config import merge, parse_override, validate

    require_packages()

    from penwright.serving.server import serve
    from penwright.serving.settings import ServingSettings

    key = os.environ.get(KEY) if api_key is None else api_key  # ServingSettings rejects a blank API key
    flags = without_none({"host": host, "port": port, "api_key": key, "device": device})
    table = merge(flags, *(parse_override(text) for text in set_ or []))
    server = serve(runs, validate(ServingSettings, table, "the options"))
    for line in server.lines():
        print(line, flush=True)
    server.run(open_page=open_)


def require_packages() -> None:
    """Raise PenwrightError if a package that the server needs is not installed."""
    missing = [package for package in NEEDED if find_spec(package.replace("-", "_")) is None]
    if missing:
        raise PenwrightError(f"serving needs {' and '.join(missing)}. Install with: pip install 'penwright[serve]'")
