"""Names of attention heads: part, layer and number. Layers and numbers count from 0."""

from typing import NamedTuple

from penwright.errors import UsageError
from penwright.inspection.forward_pass import PartName
from penwright.model import Model
from penwright.model.attention import Attention
from penwright.model.encoder_decoder import EncoderDecoder


class Head(NamedTuple):
    """An attention head of a model."""

    part: PartName
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.part}.{self.layer}.{self.number}"


def attentions(model: Model) -> dict[tuple[PartName, int], str]:
    """Return the name of each attention module of a model, by part and layer."""
    return {place_of(name): name for name, module in model.named_modules() if isinstance(module, Attention)}


def place_of(name: str) -> tuple[PartName, int]:
    """Return the part and layer of an attention module with a name like decoder.blocks.0.cross_attention."""
    stack, _, layer, which = name.split(".")
    part: PartName = "cross" if which == "cross_attention" else "encoder" if stack == "encoder" else "decoder"
    return part, int(layer)


def all_heads(model: Model) -> list[Head]:
    """Return every head of a model, part by part, layer by layer."""
    places = sorted(attentions(model), key=lambda place: ("encoder", "decoder", "cross").index(place[0]))
    return [Head(part, layer, number) for part, layer in places for number in range(model.settings.n_heads)]


def parse_head(text: str, model: Model) -> Head:
    """Parse a head's name: "3.2" is head 2 of layer 3.

    In a translator, "3.2" is a decoder head; other heads are named "encoder.3.2" or "cross.3.2". Raises UsageError with
    the range of valid names if the model lacks this head.
    """
    heads = all_heads(model)
    parts = list(dict.fromkeys(head.part for head in heads))
    usual = "decoder" if isinstance(model, EncoderDecoder) else parts[0]
    named = text.strip() if text.strip().startswith(tuple(parts)) else f"{usual}.{text.strip()}"
    for head in heads:
        if str(head) == named:
            return head
    last = heads[-1]
    kinds = "" if len(parts) == 1 else f", optionally after {' or '.join(f'{part}.' for part in parts)}"
    raise UsageError(
        f"there is no head '{text}': heads are named LAYER.HEAD, from 0.0 to {last.layer}.{last.number}{kinds}"
    )
