"""Compare hidden states, logit attribution, activation patching and path attribution with TransformerLens.

A tiny writer of the shape of GPT-2 is trained, exported to `huggingface`, and loaded by TransformerLens.
Both sides compute in float64, but TransformerLens keeps the results of patching in float32. Figures are the largest
absolute difference, and the largest value for comparison.

Run, where transformer-lens is installed: python -m benchmarks.transformer_lens
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from transformer_lens import ActivationCache, patching
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2LMHeadModel

import penwright
from benchmarks.report import Result, write_result
from penwright.inspection import Inspector
from penwright.inspection.paths import Edge
from penwright.inspection.recording import record

NAME = "transformer_lens"
TEXT, OTHER = "It was day 12, and the rain fell on house 22.", "It was day 12, and the snow fell on house 22."
DAYS = [
    f"It was day {number}, and the {('rain', 'snow')[number % 2]} fell on house {number * 7 % 31}.\n"
    for number in range(600)
]
SETTINGS: dict[str, Any] = {
    "model": {"size": "gpt2", "d_model": 48, "n_layers": 3, "n_heads": 4, "d_ff": 192, "context_length": 64},
    "tokenizer": {"type": "bpe", "vocab_size": 300},
    "training": {"steps": 150, "batch_tokens": 1024},
}
PATCHES = {
    "residual": patching.get_act_patch_resid_pre,
    "attention": patching.get_act_patch_attn_out,
    "feed_forward": patching.get_act_patch_mlp_out,
    "heads": patching.get_act_patch_attn_head_out_all_pos,
}


class Both(NamedTuple):
    """The same model on both sides, and the tokens of a text with what TransformerLens computes for them."""

    inspector: Inspector
    lens: TransformerBridge
    exported: GPT2LMHeadModel
    tokens: torch.Tensor
    logits: torch.Tensor
    cache: ActivationCache


def main() -> None:
    """Train, export and compare."""
    with TemporaryDirectory() as folder:
        both = _both(Path(folder))
    comparisons = {
        "hidden states": _hidden_states(both),
        "direct logit attribution": _logit_attribution(both),
        **{f"activation patching, {kind}": _patching(both, kind) for kind in PATCHES},
        "path attribution, 60 edges": _paths(both),
    }
    results = [
        Result(
            name,
            {
                "values": [ours.size],
                "largest value": [abs(theirs).max()],
                "largest difference": [abs(ours - theirs).max()],
            },
        )
        for name, (ours, theirs) in comparisons.items()
    ]
    write_result(NAME, f"python -m benchmarks.{NAME}", results, "transformer-lens 4.3.0, float64 on both sides.")


def _both(folder: Path) -> Both:
    (folder / "days.txt").write_text("".join(DAYS), encoding="utf-8")
    penwright.train(folder / "days.txt", run=folder / "run", settings=SETTINGS, quiet=True)
    penwright.export(folder / "run", to="huggingface", output=folder / "export")
    inspector = Inspector(penwright.load(folder / "run", precision="float32"))
    inspector.model.double()
    exported = str(folder / "export")
    lens = TransformerBridge.boot_transformers(exported, dtype=torch.float64, device="cpu")
    lens.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    for switch in (lens.set_use_attn_result, lens.set_use_split_qkv_input, lens.set_use_hook_mlp_in):
        switch(True)
    tokens = _tokens(inspector, TEXT)
    logits, cache = lens.run_with_cache(tokens)
    weights = GPT2LMHeadModel.from_pretrained(exported).double()
    return Both(inspector, lens, weights, tokens, logits.detach(), cache)


def _tokens(inspector: Inspector, text: str) -> torch.Tensor:
    return torch.tensor([[token.id for token in inspector.read(text).target]])


def _hidden_states(both: Both) -> tuple[np.ndarray, np.ndarray]:
    reading = both.inspector.read(TEXT)
    (stack,) = record(both.inspector.model, reading, len(reading.target) - 1).stacks
    theirs = []
    for layer in range(both.lens.cfg.n_layers):
        theirs += [both.cache["resid_mid", layer][0], both.cache["resid_post", layer][0]]
    return np.stack([each.after.detach() for each in stack.sublayers]), torch.stack(theirs).detach().numpy()


def _logit_attribution(both: Both) -> tuple[np.ndarray, np.ndarray]:
    """Compare the preference for the likeliest token over the second at the last position, part by part."""
    best, second = both.logits[0, -1].topk(2).indices.tolist()
    names = both.inspector.outcomes
    found = both.inspector.logit_attribution(TEXT, outcome=names[best], against=names[second])
    parts = {
        "decoder.tokens": both.cache["embed"],
        "decoder.positions": both.cache["pos_embed"],
        **{name: vector for name, vector in _contributions(both)},
    }
    stacked = torch.stack([parts[name][0, -1] for name in found.names[1:]])[:, None]
    scaled = both.cache.apply_ln_to_stack(stacked, layer=-1, pos_slice=-1)[:, 0] * both.exported.transformer.ln_f.weight
    output = both.exported.lm_head.weight
    theirs = scaled @ (output[best] - output[second])
    return found.values[1:], theirs.detach().numpy()


def _contributions(both: Both) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what each head and each feed-forward network adds to the residual stream, by our names."""
    for layer in range(both.lens.cfg.n_layers):
        for head in range(both.lens.cfg.n_heads):
            yield f"decoder.{layer}.{head}", both.cache["result", layer][:, :, head]
        yield f"decoder.{layer}.feed_forward", both.cache["mlp_out", layer]


def _patching(both: Both, kind: str) -> tuple[np.ndarray, np.ndarray]:
    names, other = both.inspector.outcomes, _tokens(both.inspector, OTHER)
    (found,) = both.inspector.patching(TEXT, OTHER, kind=kind)  # type: ignore[arg-type]
    good, bad = names.index(found.target), names.index(found.against)

    def preference(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, good] - logits[0, -1, bad]

    before = preference(both.lens(other))
    theirs = PATCHES[kind](both.lens, other, both.cache, preference)
    return found.restored, ((theirs - before) / (preference(both.logits) - before)).detach().numpy()


def _paths(both: Both) -> tuple[np.ndarray, np.ndarray]:
    """Compare the effects of the strongest edges: what the log-probability of the last token loses without each."""
    found = both.inspector.paths(TEXT, n_edges=60)
    outcome = both.inspector.outcomes.index(found.target)
    parts = {
        "decoder.tokens": both.cache["embed"],
        "decoder.positions": both.cache["pos_embed"],
        **dict(_contributions(both)),
    }

    def without(edge: Edge) -> float:
        vector = parts[edge.source]
        hook = partial(
            _subtract, vector=vector, head=int(edge.destination.split(".")[2]) if edge.via != "input" else None
        )
        logits = both.lens.run_with_hooks(both.tokens, fwd_hooks=[(_hook_of(edge, both.lens.cfg.n_layers), hook)])
        return float(logits[0, found.position].detach().log_softmax(-1)[outcome])

    whole = float(both.logits[0, found.position].log_softmax(-1)[outcome])
    return np.array([each.effect for each in found.edges]), np.array([whole - without(each) for each in found.edges])


def _hook_of(edge: Edge, n_layers: int) -> str:
    """Return the name of the hook where the destination of an edge reads the residual stream."""
    if edge.destination == "output":
        return f"blocks.{n_layers - 1}.hook_resid_post"
    layer = edge.destination.split(".")[1]
    return f"blocks.{layer}.hook_mlp_in" if edge.via == "input" else f"blocks.{layer}.hook_{edge.via[0]}_input"


def _subtract(stream: torch.Tensor, hook: Any, vector: torch.Tensor, head: int | None) -> torch.Tensor:
    stream = stream.clone()
    if head is None:
        return stream - vector
    stream[:, :, head] -= vector
    return stream


if __name__ == "__main__":
    main()
