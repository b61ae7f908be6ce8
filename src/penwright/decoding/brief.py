"""Short forms of what users hold, for `repr`."""

from collections.abc import Sequence

from penwright.model import Model
from penwright.tokenizers import Tokenizer

LONGEST = 60  # characters of a text


def brief(text: str) -> str:
    """Return the repr of a text, of a long one that of its beginning."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def noted(warnings: Sequence[str]) -> str:
    """Say how many warnings there are."""
    return f", {len(warnings)} warning{'s' if len(warnings) > 1 else ''}" if warnings else ""


def described(kind: str, model: Model, tokenizer: Tokenizer, more: str = "") -> str:
    """Describe a model with its tokenizer."""
    n_parameters, settings = sum(each.numel() for each in model.parameters()), model.settings
    return (
        f"<{kind}: {n_parameters:,} parameters, {settings.n_layers} layers of {settings.d_model}, "
        f"context {settings.context_length:,}, vocabulary {tokenizer.vocab_size:,}{more}>"
    )
