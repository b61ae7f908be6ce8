"""Sample data for every view, made without a model: structured attention, and texts that are hard to display."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from penwright.views import View
from penwright.views.packing import to_root_bytes

SENTENCE = "the cat sat on the mat and the dog sat on the log while the cat saw the dog and the dog saw the cat ."
WORDS = ["", *SENTENCE.split()]
HOSTILE = [
    "</script><script>x()</script>",
    "שלום",
    "مرحبا",
    "👩‍👩‍👧",
    "\u200b",
    "\u202e",
    "\n",
    "",
    "\u2028",
    "<!--",
    "$x",
    "a" * 2000,
]


def tokens(texts: list[str]) -> list[dict[str, Any]]:
    starts = np.cumsum([0, *map(len, texts)])
    return [
        {"text": text, "id": place, "start": int(starts[place]), "end": int(starts[place + 1])}
        for place, text in enumerate(texts)
    ]


def text(n: int) -> list[dict[str, Any]]:
    return tokens([(" " if place else "") + WORDS[place % 23 + 1] for place in range(n)])


def softmax(scores: ndarray) -> ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(n_layers: int, n_heads: int, n: int, *, causal: bool = True, seed: int = 0) -> ndarray:
    """Return heads that attend to the previous token, the first one, an induction target, or nearby tokens."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(n)[:, None] - np.arange(n)[None, :]
    same = (np.arange(n)[:, None] - np.arange(n)[None, :] + 1) % 23 == 0
    kinds = [-4.0 * np.abs(offsets - 1), 8.0 * (np.arange(n)[None, :] == 0), 5.0 * same, -np.abs(offsets) / 6]
    maps = np.empty((n_layers, n_heads, n, n), dtype=np.float32)
    for place in np.ndindex(n_layers, n_heads):
        scores = kinds[rng.integers(4)] * rng.uniform(0.3, 1.2) + rng.normal(0, 0.8, (n, n))
        maps[place] = softmax(np.where(offsets >= 0, scores, -np.inf) if causal else scores)
    return maps


def statistics(weights: ndarray) -> dict[str, ndarray]:
    n = weights.shape[-1]
    offsets = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    return {
        "entropy": -(weights * np.log(weights + 1e-12)).sum(-1).mean(-1),
        "distance": (weights * offsets).sum(-1).mean(-1),
        "previous": weights.diagonal(-1, 2, 3).mean(-1),
        "first": weights[..., 0].mean(-1),
    }


def heads(n_layers: int = 4, n_heads: int = 6, n: int = 24) -> dict[str, Any]:
    weights = attention(n_layers, n_heads, n)
    part = {"name": "decoder", "weights": to_root_bytes(weights), "target_tokens": text(n), "source_tokens": text(n)}
    return {"parts": [part], "statistics": [statistics(weights)]}


def head(n: int = 24) -> dict[str, Any]:
    weights = attention(1, 1, n, seed=3)[0, 0]
    return {
        "name": "decoder",
        "layer": 2,
        "head": 1,
        "weights": weights,
        "target_tokens": text(n),
        "source_tokens": text(n),
    }


def choices(k: int, seed: int = 0) -> list[dict[str, Any]]:
    probabilities = np.sort(softmax(np.random.default_rng(seed).normal(0, 2, k)))[::-1]
    return [
        {"text": " " + WORDS[(seed + j) % 23 + 1], "id": j, "probability": float(p)}
        for j, p in enumerate(probabilities)
    ]


def scores(n: int = 40, given: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    log_probs = -rng.exponential(1.6, n - given)
    return {
        "tokens": text(n),
        "log_probs": log_probs,
        "ranks": np.ceil(np.exp(-log_probs * 1.2)).astype(int),
        "entropies": rng.uniform(0.2, 5, n - given),
        "alternatives": [choices(10, place) for place in range(n - given)],
    }


def lens(n_layers: int = 6, n: int = 20, k: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    sharp = np.linspace(0.5, 5, n_layers + 1)[:, None, None]
    probabilities = np.sort(softmax(rng.normal(0, 1, (n_layers + 1, n, k)) * sharp), -1)[..., ::-1]
    found = [
        [[" " + WORDS[(i + j * (7 - layer)) % 23 + 1] for j in range(k)] for i in range(n)]
        for layer in range(n_layers + 1)
    ]
    truth = probabilities[..., 0] * 0.8
    ranks = np.ones((n_layers + 1, n), dtype=np.int32)
    return {
        "tokens": text(n),
        "top_tokens": found,
        "top_probabilities": probabilities,
        "true_probabilities": truth,
        "true_ranks": ranks,
    }


def ablation(n: int = 30) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {
        "heads": [["decoder", 2, 1], ["decoder", 3, 0]],
        "loss": [2.31, 2.58],
        "tokens": text(n),
        "changes": rng.normal(0.25, 0.7, n - 1),
        "next": {"before": choices(6), "after": choices(6, 2)},
    }


def embeddings(n: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    centres = rng.normal(0, 3, (9, 2))
    xy = centres[np.arange(n) % 9] + rng.normal(0, 0.6, (n, 2))
    return {
        "xy": xy,
        "labels": [f"{WORDS[i % 23 + 1]}{i}" for i in range(n)],
        "note": "2 principal components, 31 % of the variance.",
    }


def positions(n: int = 64, d: int = 32) -> dict[str, Any]:
    frequencies = 10_000.0 ** (-np.arange(d // 2) / (d // 2))
    angles = np.arange(n)[:, None] * frequencies
    encodings = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(n, d)
    return {"encodings": encodings, "similarity": encodings @ encodings.T * 2 / d, "frequencies": frequencies}


def arithmetic(n: int = 6, d: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(6)
    queries, keys, values = rng.normal(0, 1, (3, n, d))
    products = queries @ keys.T
    masked = np.where(np.tri(n), products / np.sqrt(d), -np.inf)
    weights = softmax(masked)
    rows = {"queries": queries, "keys": keys, "values": values, "scores": products, "scaled": products / np.sqrt(d)}
    named = {"layer": 0, "head": 1, "target_tokens": text(n), "source_tokens": text(n)}
    return {**named, **rows, "masked": masked, "weights": weights, "output": weights @ values}


def beam(width: int = 3, depth: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    nodes: list[dict[str, Any]] = []
    living: list[dict[str, Any] | None] = [None]
    for step in range(depth):
        tried = []
        for parent in living:
            for _ in range(width):
                log_prob = (parent["log_prob"] if parent else 0.0) - float(rng.exponential(0.9))
                node = {"id": len(nodes), "parent": parent and parent["id"], "token": " " + WORDS[len(nodes) % 23 + 1]}
                node["text"] = (parent["text"] if parent else "") + node["token"]
                tried.append({**node, "log_prob": log_prob, "step": step, "kept": False, "final": False})
                nodes.append(tried[-1])
        best = sorted(tried, key=lambda node: -node["log_prob"])[:width]
        for node in best:
            node["kept"], node["final"] = True, step == depth - 1
        living = list(best)
    return {"nodes": nodes}


def curves(n_runs: int = 3, n: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    x = np.arange(1, n + 1)
    runs = [
        {"name": f"run {number}", "x": x, "y": 1.3 + 3 * x ** -(0.3 + 0.1 * number) + rng.normal(0, 0.06, n)}
        for number in range(n_runs)
    ]
    return {"runs": runs, "x_label": "step", "y_label": "nats a token"}


def comparison(n: int = 30) -> dict[str, Any]:
    rng = np.random.default_rng(10)
    first, second = rng.exponential(1.6, (2, n))
    first[3] = second[5] = np.nan
    words = [token["text"] for token in text(n)]
    return {
        "names": ["early", "late"],
        "first_texts": ["" if place == 3 else word for place, word in enumerate(words)],
        "second_texts": ["" if place == 5 else word for place, word in enumerate(words)],
        "first": first,
        "second": second,
        "differences": second - first,
        "sums": [float(np.nansum(first)), float(np.nansum(second))],
    }


def compared_heads() -> dict[str, Any]:
    first, second = (statistics(attention(3, 4, 24, seed=seed)) for seed in (0, 1))
    first["entropy"][2] = np.nan  # the first has two layers only
    part = {"name": "decoder", "layers": [0, 1, 2], "first": first, "second": second}
    return {"names": ["early", "late"], "parts": [part]}


def alignment() -> dict[str, Any]:
    pairs = [(0, 0, 0.9), (1, 2, 0.8), (2, 1, 0.85), (3, 3, 0.6), (3, 4, 0.3), (4, 5, 0.95)]
    links = [{"source": s, "target": t, "strength": p} for s, t, p in pairs]
    return {
        "source": ["Die", "Katze", "schwarze", "schläft", "."],
        "target": ["The", "black", "cat", "is", "asleep", "."],
        "links": links,
    }


def model_map(n: int = 24, n_layers: int = 3, n_heads: int = 4, position: int | None = None) -> dict[str, Any]:
    """Return the data of the model map for one pass of a writer."""
    rng = np.random.default_rng(11)
    at = n - 1 if position is None else position
    weights = attention(n_layers, n_heads, n)[:, :, at]
    sublayers: list[dict[str, Any]] = []
    for layer in range(n_layers):
        added, after = rng.uniform(0.2, 3, (2, 2, n)).astype(np.float32)
        common = {"part": "decoder", "layer": layer}
        written = rng.uniform(0.1, 1, n_heads).astype(np.float32)
        here = {"kind": "attention", "weights": weights[layer], "head_added": written}
        sublayers.append({**common, **here, "added": added[0], "after": after[0] + 2})
        here = {"kind": "feed_forward", "weights": np.zeros((0, 0)), "head_added": np.zeros(0)}
        sublayers.append({**common, **here, "added": added[1], "after": after[1] + 3})
    stack = {"name": "decoder", "tokens": text(n), "position": at, "sublayers": sublayers}
    outcomes = choices(6)
    return {
        "stacks": [{**stack, "embedded": rng.uniform(1, 2, n).astype(np.float32)}],
        "answers": text(n),
        "position": at,
        "d_model": 32,
        "layer_texts": [f" {WORDS[layer + 1]}" for layer in range(n_layers + 1)],
        "layer_probabilities": np.linspace(0.1, 0.8, n_layers + 1),
        "outcomes": {
            "ids": np.array([each["id"] for each in outcomes]),
            "texts": [each["text"] for each in outcomes],
            "probabilities": np.array([each["probability"] for each in outcomes]),
        },
        "logits": np.linspace(4, 1, 6),
    }


def place() -> dict[str, Any]:
    """Return the details of a block at one position."""
    rng = np.random.default_rng(12)
    before, read, output, after = rng.normal(0, 1, (4, 16)).astype(np.float32)
    common = {"part": "decoder", "layer": 0, "before": before, "read": read, "output": output, "after": after}
    empty = np.zeros(0)
    seen = {"head_added": np.array([0.5, 0.7]), "head_sources": [1, 3], "head_weights": np.array([0.6, 0.9])}
    none = {"head_added": empty, "head_sources": [], "head_weights": empty, "sources": []}
    hidden = rng.normal(0, 1, 32).astype(np.float32)
    sublayers = [
        {**common, "kind": "attention", "hidden": empty, **seen, "sources": text(5)},
        {**common, "kind": "feed_forward", "hidden": hidden, **none},
    ]
    where = {"place": "decoder.0", "position": 4, "token": text(5)[4], "names": [], "vectors": []}
    return {**where, "sublayers": sublayers, "outcomes": None, "logits": empty, "log_sum": 0.0}


def circuit() -> dict[str, Any]:
    edges = [
        {"source": "decoder.0.1", "destination": "decoder.1.2", "via": "key", "estimate": 0.5, "effect": 0.6},
        {"source": "decoder.tokens", "destination": "decoder.0.feed_forward", "via": "input", "effect": -0.3},
        {"source": "decoder.1.2", "destination": "output", "via": "input", "estimate": 0.2, "effect": 0.25},
    ]
    sentences = [f"Without path {number}, the probability falls." for number in range(len(edges))]
    names = ["biases", "decoder.tokens", "decoder.positions", "decoder.0.1", "decoder.1.2", "decoder.0.feed_forward"]
    found = {"target": " dog", "position": 23, "explanation": sentences[0], "edges": edges, "sentences": sentences}
    return {**found, "names": names, "values": np.array([0.1, -0.4, 0.0, 1.2, 0.8, -0.2])}


def parts(n: int = 30) -> dict[str, Any]:
    values = np.random.default_rng(13).normal(0, 1, n)
    labels = [f"head {number // 4}.{number % 4}" for number in range(n)]
    return {"explanation": "Most of it.", "target": " dog", "logit": values.sum(), "values": values, "labels": labels}


def patching(n: int = 8) -> dict[str, Any]:
    restored = np.linspace(-0.2, 1, 3 * n).reshape(3, n)
    other = text(n)
    other[2] = {**other[2], "text": " fox"}
    where = {"kind": "residual", "part": "decoder", "layers": [0, 1, 2], "tokens": text(n), "other_tokens": other}
    return {**where, "explanation": "Copying restores much.", "restored": restored}


def data_of_each_view(n: int = 24) -> dict[str, Mapping[str, Any]]:
    """Return the data of each view by name. Texts have about n tokens."""
    counts = np.random.default_rng(9).integers(0, 12, (4, 4)) + np.diag([60, 80, 40, 70])
    names = ["world", "sport", "business", "science"]
    return {
        "ablation": ablation(n + 6),
        "alignment": alignment(),
        "arithmetic": arithmetic(min(n, 6)),
        "attention": heads(),
        "attribution": {
            "method": "integrated gradients",
            "target": " dog",
            "tokens": text(n),
            "values": np.random.default_rng(3).normal(0, 1, n),
            "gap": 0.012,
        },
        "beam": beam(3, n // 4),
        "candidates": {"before": choices(10), "after": choices(10)[:5], "entropy": 1.83},
        "circuit": circuit(),
        "comparison": comparison(n),
        "confusion": {"labels": names, "counts": counts},
        "curves": curves(),
        "embeddings": embeddings(),
        "head": head(n),
        "heads": heads(2, 4, 12),
        "importance": {
            "parts": [
                {
                    "name": "decoder",
                    "layers": [0, 1, 2],
                    "n_heads": 4,
                    "changes": np.linspace(-0.2, 1, 12).reshape(3, 4),
                }
            ]
        },
        "labels": {
            "labels": names,
            "probabilities": [0.12, 0.71, 0.05, 0.12],
            "note": "Calibrated on 500 held-out texts.",
        },
        "lens": lens(6, n - 4),
        "lines": head(16),
        "model": {"map": model_map(n), "pieces": {"place decoder.0 23": place()}, "circuit": circuit()},
        "neighbours": {
            "token": " cat",
            "neighbours": [{"text": f" {w}", "id": i, "similarity": 0.9 - i / 12} for i, w in enumerate(WORDS[1:9])],
        },
        "parts": parts(),
        "patching": patching(),
        "place": place(),
        "positions": positions(n * 2),
        "rollout": {key: value for key, value in head(n).items() if key not in ("layer", "head")},
        "statistics": compared_heads(),
        "text": scores(n + 16),
    }


def views(n: int = 24) -> list[View]:
    return [View(name, data, heading=name.capitalize()) for name, data in data_of_each_view(n).items()]
