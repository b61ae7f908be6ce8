"""Short descriptions of objects, for `repr`."""

from collections.abc import Sequence

from penwright.model import Model
from penwright.tokenizers import Tokenizer

LONGEST = 60  # maximum number of characters of a text in a description


def brief(text: str) -> str:
    """Return the repr of a text, shortened if it is long."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def noted(warnings: Sequence[str]) -> str:
    """Return the number of warnings as a phrase to append; "" without warnings."""
    return f", {len(warnings)} warning{'s' if len(warnings) > 1 else ''}" if warnings else ""


def described(kind: str, model: Model, tokenizer: Tokenizer, more: str = "") -> str:
    """Describe a model and its tokenizer in one line."""
    n_parameters, settings = sum(parameter.numel() for parameter in model.parameters()), model.settings
    return (
        f"<{kind}: {n_parameters:,} parameters, {settings.n_layers} layers of {settings.d_model}, "
        f"context {settings.context_length:,}, vocabulary {tokenizer.vocab_size:,}{more}>"
    )
