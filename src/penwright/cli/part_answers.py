"""Terminal drawings of what `penwright inspect` finds about the parts of a model."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from penwright.cli.answers import MAX_ROWS, Drawn
from penwright.cli.drawing import label, numbers, signed_bar, table_of
from penwright.inspection.logit_attribution import LogitAttribution, readable_part
from penwright.inspection.model_map import ModelMap
from penwright.inspection.patching import Patching
from penwright.inspection.paths import Paths


def parts(found: LogitAttribution, console: Console) -> Drawn:
    """Draw what the parts with the largest effect add to the logit of the predicted token or label."""
    order = np.argsort(-np.abs(found.values), kind="stable")[:MAX_ROWS]
    largest = float(np.abs(found.values).max()) or 1.0
    yield Text(str(found))
    rows = [
        [readable_part(found.names[at]), f"{found.values[at]:+.2f}", signed_bar(found.values[at] / largest)]
        for at in order
    ]
    yield table_of(["part", "logit", ""], rows, last="left")
    rest = found.values.sum() - found.values[order].sum()
    if len(order) < len(found.values):
        yield Text(f"all other parts ({len(found.values) - len(order)}) together add {rest:+.2f}")


def paths(found: Paths, console: Console) -> Drawn:
    """Draw the strongest paths through the model, with a sentence about the strongest one."""
    yield Text(str(found))
    rows = [
        [
            readable_part(edge.source),
            edge.via,
            "the output" if edge.destination == "output" else readable_part(edge.destination),
            f"{edge.effect:+.3f}",
            f"{edge.estimate:+.3f}",
        ]
        for edge in found.edges
    ]
    yield table_of(["from", "to the", "of", "effect", "estimate"], rows)
    yield Text(f"effects on log p, in nats; the {len(found.edges)} strongest of {found.n_edges:,} paths were measured")


def patching(found: Sequence[Patching], console: Console) -> Drawn:
    """Draw the share of the original preference that each activation patch restores: one table for each part."""
    for part in found:
        yield Text(str(part))
        heads = [f"head {number}" for number in range(part.restored.shape[1])]
        columns = heads if part.kind == "heads" else [label(token.text) for token in part.other_tokens]
        rows = [f"layer {layer}" for layer in part.layers]
        title = f"share restored by the {part.kind.replace('_', '-')} of the {part.part}"
        yield numbers(title, part.restored, rows, columns, console)


def whole(found: ModelMap, console: Console) -> Drawn:
    """Draw each sublayer at one position: what it adds, and what it attends to."""
    for stack in found.stacks:
        token = label(stack.tokens[stack.position].text)
        yield Text(
            f"{stack.name}, position {stack.position} ({token}): vector of length {stack.embedded[stack.position]:.3g}"
        )
        rows = []
        for each in stack.sublayers:
            sources = found.stacks[0].tokens if each.part == "cross" else stack.tokens
            mean = each.weights.mean(0) if each.kind == "attention" else np.zeros(0)
            most = [f"{label(sources[at].text)} {mean[at]:.0%}" for at in np.argsort(-mean, kind="stable")[:3]]
            lengths = [f"{vector[stack.position]:.3g}" for vector in (each.added, each.after)]
            rows.append([f"{each.part} {each.layer} {each.kind.replace('_', '-')}", *lengths, ", ".join(most)])
        yield table_of(["sublayer", "adds", "stream", "attends most to"], rows, last="left")
    shares = zip(found.outcomes.texts, found.outcomes.probabilities, strict=True)
    yield Text("predicts " + ", ".join(f"{label(str(text))} {share:.0%}" for text, share in shares))
