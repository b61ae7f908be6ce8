"""What a server allows: every limit is on unless it is raised."""

from ipaddress import ip_address

from pydantic import PositiveFloat, PositiveInt

from penwright.config import Settings


class ServingSettings(Settings):
    """Where it listens, who may ask, and for how much."""

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
    deadline_seconds: PositiveFloat = 300.0  # for one request; beyond: 504
    drain_seconds: PositiveFloat = 10.0  # that requests have to come to their end when the server stops

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
