"""The limits of a server. Every limit applies unless it is raised."""

from ipaddress import ip_address

from pydantic import PositiveFloat, PositiveInt, field_validator

from penwright.config import Settings


class ServingSettings(Settings):
    """Where the server listens, who may use it, and how much one request may ask for."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    device: str = "cpu"  # that models compute on
    max_body_bytes: PositiveInt = 2_000_000
    max_characters: PositiveInt = 50_000  # of one text
    max_texts: PositiveInt = 128  # of one request
    max_n: PositiveInt = 16  # completions of one prompt, or alternatives
    max_new_tokens: PositiveInt = 4096
    max_rows: PositiveInt = 64  # texts that a writer writes at a time
    max_waiting: PositiveInt = 512  # texts that wait or are worked on, for one model; beyond: 429
    max_connections: PositiveInt = 512  # open at a time; beyond, the one that has been idle longest is closed
    read_seconds: PositiveFloat = 20.0  # for a client to send a request, or to take a part of its answer; beyond: 408
    build_seconds: PositiveFloat = 10.0  # to prepare a pattern and words before writing; beyond: 400
    deadline_seconds: PositiveFloat = 300.0  # for one request; beyond: 504
    drain_seconds: PositiveFloat = 10.0  # that requests have to come to their end when the server stops

    @field_validator("api_key")
    @classmethod
    def _refuse_blank(cls, key: str | None) -> str | None:
        """Refuse a blank key: every request would match it."""
        if key is not None and not key.strip():
            raise ValueError("the key is blank. Give a key of at least one visible character, or leave the option out")
        return key

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
