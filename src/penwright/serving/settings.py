"""The settings of a server. All limits apply by default."""

from ipaddress import ip_address

from pydantic import PositiveFloat, PositiveInt, field_validator

from penwright.config import Precision, Settings


class ServingSettings(Settings):
    """The address, the key and the limits of a server."""

    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # port to listen on; 0 for any free port
    api_key: str | None = None  # key that every request except /health must send; None for no key
    device: str = "cpu"  # device on which the models run
    precision: Precision | None = None  # precision of the weights; None to use the one chosen after training
    max_body_bytes: PositiveInt = 2_000_000  # maximum size of a request body, in bytes
    max_characters: PositiveInt = 50_000  # maximum length of a text, in characters
    max_texts: PositiveInt = 128  # maximum number of texts per request
    max_n: PositiveInt = 16  # maximum number of completions per prompt, or of alternative translations
    max_new_tokens: PositiveInt = 4096  # maximum number of new tokens of a completion
    max_rows: PositiveInt = 64  # maximum number of completions that a model generates at a time
    max_waiting: PositiveInt = 512  # maximum number of queued and running texts per model (else status 429)
    max_models: PositiveInt = 16  # maximum number of models that the studio loads, newest first
    max_model_bytes: PositiveInt = 4_000_000_000  # maximum total size of the models that the studio loads, in bytes
    max_upload_bytes: PositiveInt = 500_000_000  # maximum size of a text that is uploaded to the studio, in bytes
    max_text_bytes: PositiveInt = 4_000_000_000  # maximum size of all uploads, and of one unpacked text, in bytes
    min_free_bytes: PositiveInt = 1_000_000_000  # minimum free disk space to leave, in bytes
    plan_seconds: PositiveFloat = 180.0  # maximum seconds to read texts and plan a run (else status 504)
    max_connections: PositiveInt = 512  # maximum number of open connections; beyond it, an idle connection is closed
    read_seconds: PositiveFloat = 20.0  # maximum seconds to send a request (else status 408) or read part of a response
    build_seconds: PositiveFloat = 10.0  # maximum seconds to compile constraints or shorten a chat (else status 400)
    deadline_seconds: PositiveFloat = 300.0  # maximum seconds to answer a request (else status 504)
    drain_seconds: PositiveFloat = 10.0  # seconds that running requests get to finish when the server stops

    @field_validator("api_key")
    @classmethod
    def _refuse_blank(cls, key: str | None) -> str | None:
        """Reject a blank key: it would let every request in."""
        if key is not None and not key.strip():
            raise ValueError("the key is blank. Give a key with at least one visible character, or omit the option")
        return key

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect to the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
