"""penwright serve: models for programs and people on this machine."""

import os
from importlib.util import find_spec
from typing import Annotated

import typer

from penwright.cli.options import Device, without_none
from penwright.errors import PenwrightError

NAME = "serve"
KEY = "PENWRIGHT_API_KEY"
NEEDED = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, or NAME=FOLDER; the first is the default.", metavar="RUN...")
    ],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(help="The key that every request but /health must show.", envvar=KEY)
    ] = None,
    device: Device = "cpu",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A limit, as max_rows=16; may be repeated.")] = None,
) -> None:
    """Serve a page, and the APIs of OpenAI and LibreTranslate."""
    from penwright.config import merge, parse_override, validate

    missing = [package for package in NEEDED if find_spec(package.replace("-", "_")) is None]
    if missing:
        raise PenwrightError(f"serving needs {' and '.join(missing)}: pip install 'penwright[serve]'")

    from penwright.serving.server import serve
    from penwright.serving.settings import ServingSettings

    key = os.environ.get(KEY) if api_key is None else api_key  # a blank variable is refused too, not taken for none
    flags = without_none({"host": host, "port": port, "api_key": key, "device": device})
    table = merge(flags, *(parse_override(text) for text in set_ or []))
    server = serve(runs, validate(ServingSettings, table, "the options"))
    for line in server.lines():
        print(line, flush=True)
    server.run(open_page=open_)
