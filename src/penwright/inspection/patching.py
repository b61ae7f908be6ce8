"""Activation patching between two texts (Vig et al. 2020; Meng et al. 2022): which activations carry the difference.

The model processes the other text, with one activation replaced by the one from the first text. If this restores the
prediction for the first text, the difference passes through the patched place. Both texts need the same number of
tokens, since an activation is copied to the same position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from penwright.errors import UsageError
from penwright.inspection.forward_pass import (
    ForwardPass,
    PartName,
    Token,
    log_probs_in_steps,
    require_position,
    scores,
)
from penwright.inspection.gradients import AttributionTarget
from penwright.inspection.logit_attribution import LONGEST_OUTCOME, readable_part
from penwright.inspection.recording import Edit, Kind, Recording, SublayerRecord, edited_logits, record
from penwright.model import Model, evaluating
from penwright.views.ink import label

PatchKind = Literal["residual", "attention", "feed_forward", "heads"]
PATCH_KINDS: tuple[PatchKind, ...] = ("residual", "attention", "feed_forward", "heads")
SMALLEST = 1e-9  # differences between preferences below this are treated as rounding errors


@dataclass(frozen=True)
class Patching:
    """The share of the difference between two texts that each patch restores, from 0 (nothing) to 1 (everything).

    Each text has a preference: the logit of `target` minus that of `against`. Rows are layers. Columns are the
    patched positions, or the heads, which are patched at all of these positions at once.
    """

    kind: PatchKind
    part: PartName
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[Token, ...]  # tokens of the first text at `positions`
    other_tokens: tuple[Token, ...]  # tokens of the other text at `positions`
    target: str
    against: str
    difference: float  # the first text's logit of `target` minus its logit of `against`
    other_difference: float  # the other text's logit of `target` minus its logit of `against`
    restored: Float64[np.ndarray, "n_layers columns"]

    @property
    def explanation(self) -> str:
        """A sentence about the patch that restores the largest share of the first text's preference."""
        layer, column = np.unravel_index(int(self.restored.argmax()), self.restored.shape)
        target, against = (label(each, LONGEST_OUTCOME) for each in (self.target, self.against))
        share = f"{max(0.0, self.restored[layer, column]):.0%} of the preference for “{target}” over “{against}”"
        if self.kind == "heads":
            what = f"the output of {readable_part(f'{self.part}.{self.layers[layer]}.{column}')}"
        else:
            token, other = (label(each[column].text) for each in (self.tokens, self.other_tokens))
            where = f"“{other}”" if token == other else f"“{other}” (“{token}” in the text)"
            named = {
                "residual": f"the {self.part} residual stream before layer {self.layers[layer]}",
                "attention": f"the {self.part} attention output of layer {self.layers[layer]}",
                "feed_forward": f"the {self.part} feed-forward output of layer {self.layers[layer]}",
            }
            what = f"{named[self.kind]} at {where}"
        return f"Copying {what} from this text into the other one restores {share}."

    def __str__(self) -> str:
        return self.explanation


def patching(
    model: Model,
    texts: tuple[ForwardPass, ForwardPass],
    objective: AttributionTarget,
    names: Sequence[str],
    kind: PatchKind,
    positions: Sequence[int] | None = None,
) -> tuple[Patching, ...]:
    """Patch each activation of the first text into a forward pass over the second; return a result for each part.

    `aim.against` must be given. `positions` are the positions to patch, by default all.
    """
    text, other = texts
    require_same_lengths(text, other)
    assert objective.against is not None
    kind = parse_kind(kind)
    recording, parts = record(model, text, objective.position), []
    whole, before = (
        float(_differences(logits, objective)[0])
        for logits in (recording.logits[None], _scores(model, other, objective.position))
    )
    if abs(whole - before) < SMALLEST:
        raise UsageError("both texts lead to the same prediction, so no patch can change it. Choose different texts")
    for part, sublayers in _sublayers(recording, kind):
        tokens, others = (each.sides(part)[0] for each in texts)
        chosen = _positions(positions, len(tokens))
        patches = [patch for sublayer in sublayers for patch in _patches(sublayer, kind, chosen)]
        patched = edited_logits(model, other, patches, objective.position)
        values = np.concatenate([_differences(each, objective) for each in patched])
        parts.append(
            Patching(
                kind,
                part,
                tuple(sublayer.layer for sublayer in sublayers),
                tuple(chosen),
                tuple(tokens[at] for at in chosen),
                tuple(others[at] for at in chosen),
                names[objective.outcome],
                names[objective.against],
                whole,
                before,
                ((values - before) / (whole - before)).reshape(len(sublayers), -1),
            )
        )
    return tuple(parts)


def _patches(sublayer: SublayerRecord, kind: PatchKind, positions: list[int]) -> list[Edit]:
    """Return the patches to try at a place in the model: one for each head, or one for each position."""
    if kind == "heads":
        outputs = sublayer.heads.outputs
        return [Edit(sublayer, "heads", (head, positions), outputs[head, positions]) for head in range(len(outputs))]
    if kind == "residual":
        return [Edit(sublayer, "residual", at, sublayer.before[at]) for at in positions]
    return [Edit(sublayer, "output", at, sublayer.output[at]) for at in positions]


def parse_kind(text: str) -> PatchKind:
    """Return the kind of patch with this name. Raise UsageError if there is none."""
    for kind in PATCH_KINDS:
        if kind == text:
            return kind
    raise UsageError(f"there is no kind of patch '{text}': choose one of {', '.join(PATCH_KINDS)}")


def preferences(
    model: Model,
    texts: tuple[ForwardPass, ForwardPass],
    position: int | None,
    outcomes: Sequence[int | None],
    *,
    last: bool,
) -> AttributionTarget:
    """Return the position and the two outcomes to compare, by default the model's predictions for the two texts.

    The default position is the last one or, with `last=False`, the first at which the predictions differ.
    """
    require_same_lengths(*texts)
    length = texts[0].n_outputs
    if position is None:
        differing = [] if last else _differing(model, texts)
        position = differing[0] if differing else length - 1
    require_position(position, length)
    text, other = (_scores(model, each, position)[0] for each in texts)
    outcome = int(text.argmax()) if outcomes[0] is None else outcomes[0]
    against = outcomes[1]
    if against is None:
        others = [each for each in other.topk(min(2, len(other))).indices.tolist() if each != outcome]
        against = others[0] if others else outcome
    if against == outcome:
        raise UsageError("an outcome is compared with itself. Choose two different outcomes")
    return AttributionTarget(position, outcome, against)


def _differing(model: Model, texts: tuple[ForwardPass, ForwardPass]) -> list[int]:
    """Return the positions at which the predictions for two texts differ."""
    text, other = (torch.cat([each.argmax(-1) for each in log_probs_in_steps(model, reading)]) for reading in texts)
    return (text != other).nonzero()[:, 0].tolist()


def require_same_lengths(text: ForwardPass, other: ForwardPass) -> None:
    """Raise UsageError unless both texts have the same number of tokens."""
    for one, two in ((text.source, other.source), (text.target, other.target)):
        if len(one) != len(two):
            raise UsageError(
                f"the texts have {len(one)} and {len(two)} tokens. Choose texts of the same length in tokens, "
                "for example by replacing one word with another"
            )


def _scores(model: Model, reading: ForwardPass, position: int) -> Float[Tensor, "1 outcomes"]:
    """Return the logits of a model in evaluation mode at a position, without a gradient."""
    with evaluating(model), torch.no_grad():
        return scores(model, reading, position)


def _differences(logits: Float[Tensor, "rows outcomes"], objective: AttributionTarget) -> Float64[np.ndarray, " rows"]:
    differences: Float64[np.ndarray, " rows"] = (
        (logits[:, objective.outcome] - logits[:, objective.against]).cpu().numpy()
    )
    return differences


def _positions(positions: Sequence[int] | None, length: int) -> list[int]:
    chosen = list(range(length)) if positions is None else list(positions)
    if not chosen or not all(0 <= at < length for at in chosen):
        raise UsageError(f"invalid positions {chosen}: choose one or more from 0 to {length - 1}")
    return chosen


def _sublayers(recording: Recording, kind: PatchKind) -> Iterator[tuple[PartName, list[SublayerRecord]]]:
    """Yield each part with its sublayers to patch. The residual stream is patched before the self-attention."""
    of: Kind = "feed_forward" if kind == "feed_forward" else "attention"
    parts: tuple[PartName, ...] = ("encoder", "decoder", "cross")
    for part in parts:
        sublayers = recording.sublayers(part, of)
        if sublayers and (part != "cross" or kind in ("attention", "heads")):
            yield part, sublayers
