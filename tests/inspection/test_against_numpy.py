"""Inspection equals a plain NumPy Transformer, written here from the formulas alone."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from penwright.config import Table, Task
from penwright.inspection import Inspector
from penwright.inspection.forward_pass import ForwardPass

MakeInspector = Callable[..., Inspector]
Array = np.ndarray


class NumpyTransformer:
    """A forward pass over one text. `steps` holds each head's intermediate values, `stream` each block's output."""

    def __init__(self, inspector: Inspector, reading: ForwardPass):
        self.model = inspector.model
        self.settings = inspector.model.settings
        self.weights = {
            name: w.detach().numpy() for name, w in inspector.model.named_parameters(remove_duplicate=False)
        }
        self.steps: dict[str, dict[str, Array]] = {}
        self.stream: list[Array] = []
        ids = [np.array([token.id for token in side], dtype=int) for side in (reading.source, reading.target)]
        shape = inspector.kind
        if shape != "writer":
            end = "source_embedding" if shape == "translator" else "embedding"
            encoded = hidden = self.stack("encoder", self.embed(end, ids[0]), None)
        if shape != "classifier":
            end = "target_embedding" if shape == "translator" else "embedding"
            hidden = self.stack("decoder", self.embed(end, ids[1]), encoded if shape == "translator" else None)
        if shape == "classifier":
            hidden = hidden.mean(0, keepdims=True)
        logits = hidden @ self.weights["output.weight"].T + self.weights.get("output.bias", 0.0)
        self.log_probs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        self.log_probs -= logits.max(-1, keepdims=True)

    def embed(self, name: str, ids: Array) -> Array:
        x = self.weights[f"{name}.tokens.weight"][ids]
        x = x * sqrt(self.settings.d_model) if self.settings.scale_embeddings else x
        if self.settings.positions.type == "learned":
            return x + self.weights[f"{name}.positions.weight"][: len(ids)]
        if self.settings.positions.type == "sinusoidal":
            angles = np.arange(len(ids))[:, None] / 10_000 ** (np.arange(0, x.shape[1], 2) / x.shape[1])
            x[:, ::2] += np.sin(angles)
            x[:, 1::2] += np.cos(angles)
        return x

    def stack(self, name: str, x: Array, encoded: Array | None) -> Array:
        n_layers = sum(f"{name}.blocks.{layer}.attention.query.weight" in self.weights for layer in range(9))
        self.stream = [x]
        for layer in range(n_layers):
            block = f"{name}.blocks.{layer}"
            x = self.residual(f"{block}.attention", x, lambda y, at=f"{block}.attention": self.attend(at, y, y))
            if encoded is not None:
                at = f"{block}.cross_attention"
                x = self.residual(f"{block}.cross", x, lambda y, at=at: self.attend(at, y, encoded))
            x = self.residual(
                f"{block}.feed_forward", x, lambda y, at=f"{block}.feed_forward": self.feed_forward(at, y)
            )
            self.stream.append(x)
        return self.norm(f"{name}.norm", x) if self.settings.norm_position == "pre" else x

    def residual(self, name: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
        norm = f"{name}_residual.norm"
        if self.settings.norm_position == "pre":
            return x + sublayer(self.norm(norm, x))
        return self.norm(norm, x + sublayer(x))

    def norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True) if self.settings.norm.type == "layer" else x
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.settings.norm.eps)
        return x * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def feed_forward(self, name: str, x: Array) -> Array:
        up = self.linear(f"{name}.up", x)
        if self.settings.feed_forward == "relu":
            return self.linear(f"{name}.down", up.clip(0))
        gate = self.linear(f"{name}.gate", x)
        return self.linear(f"{name}.down", gate / (1 + np.exp(-gate)) * up)

    def attend(self, name: str, x: Array, source: Array) -> Array:
        itself = not name.endswith("cross_attention")
        d_head, n_heads = self.settings.d_head, self.settings.n_heads
        queries, keys, values = (
            self.linear(f"{name}.{part}", y).reshape(len(y), -1, d_head).transpose(1, 0, 2)
            for part, y in (("query", x), ("key", source), ("value", source))
        )
        if itself and self.settings.qk_norm:
            queries, keys = self.norm(f"{name}.query_norm", queries), self.norm(f"{name}.key_norm", keys)
        if itself and self.settings.positions.type == "rotary":
            queries, keys = self.rotate(queries), self.rotate(keys)
        keys, values = (np.repeat(y, n_heads // len(y), 0) for y in (keys, values))
        scores = queries @ keys.transpose(0, 2, 1)
        scaled = scores / sqrt(d_head)
        target_at, source_at = np.indices(scores.shape[1:])
        hidden = (source_at > target_at) & (name.startswith("decoder") & itself)
        if itself and self.settings.window is not None:
            hidden |= abs(source_at - target_at) >= self.settings.window
        masked = np.where(hidden, -np.inf, scaled)
        weights = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
        output = weights @ values
        parts = (queries, keys, values, scores, scaled, masked, weights, output)
        names = ("queries", "keys", "values", "scores", "scaled", "masked", "weights", "output")
        self.steps[name] = dict(zip(names, parts, strict=True))
        return self.linear(f"{name}.output", output.transpose(1, 0, 2).reshape(len(x), -1))

    def rotate(self, x: Array) -> Array:
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * self.settings.positions.base ** -(np.arange(half) / half)
        rotated = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate([rotated.real, rotated.imag], -1)


def module_and_head(head: str) -> tuple[str, int]:
    part, layer, number = head.split(".")
    stack, attention = ("decoder", "cross_attention") if part == "cross" else (part, "attention")
    return f"{stack}.blocks.{layer}.{attention}", int(number)


@pytest.fixture
def inspector(make_inspector: MakeInspector, task: Task, variant: Table) -> Inspector:
    return make_inspector(task, variant)


def test_attention_weights_equal_numpy(inspector: Inspector, text_and_target: tuple[str, str | None]) -> None:
    expected_pass = NumpyTransformer(inspector, inspector.read(*text_and_target))
    maps = inspector.attention(*text_and_target)
    shown = 0
    for part in maps.parts:
        for layer, heads in zip(part.layers, part.weights, strict=True):
            name, _ = module_and_head(f"{part.name}.{layer}.0")
            np.testing.assert_allclose(heads, expected_pass.steps[name]["weights"], atol=1e-6)
            shown += 1
    assert shown == len(expected_pass.steps)


def test_each_step_of_a_heads_arithmetic_equals_numpy(
    inspector: Inspector, text_and_target: tuple[str, str | None]
) -> None:
    expected_pass = NumpyTransformer(inspector, inspector.read(*text_and_target))
    for head in inspector.heads:
        name, number = module_and_head(head)
        found = inspector.arithmetic(text_and_target[0], head, text_and_target[1])
        for step, expected in expected_pass.steps[name].items():
            np.testing.assert_allclose(getattr(found, step), expected[number], rtol=1e-5, atol=1e-5, err_msg=step)


def test_logit_lens_equals_numpy_and_ends_with_the_output(
    inspector: Inspector, text_and_target: tuple[str, str | None]
) -> None:
    expected_pass = NumpyTransformer(inspector, inspector.read(*text_and_target))
    lens = inspector.lens(*text_and_target, k=1000)
    ids = np.vectorize(inspector.outcomes.index)(np.array(lens.top_tokens))
    found = np.take_along_axis(lens.top_probabilities, ids.argsort(-1), -1)
    assert len(found) == len(expected_pass.stream)
    for hidden, probabilities in zip(expected_pass.stream, found, strict=True):
        stack = "encoder" if inspector.kind == "classifier" else "decoder"
        read = expected_pass.norm(f"{stack}.norm", hidden) if expected_pass.settings.norm_position == "pre" else hidden
        read = read.mean(0, keepdims=True) if inspector.kind == "classifier" else read
        logits = expected_pass.linear("output", read)
        expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(found[-1], np.exp(expected_pass.log_probs), atol=1e-6)
    for place, token in enumerate(inspector.read(*text_and_target).answers):
        np.testing.assert_allclose(lens.true_probabilities[:, place], found[:, place, token.id])
        own = found[:, place, token.id, None]
        assert lens.true_ranks[:, place].tolist() == (1 + (found[:, place] > own).sum(-1)).tolist()


@pytest.mark.parametrize("predicting", ["generate", "translate"])
def test_log_probabilities_ranks_and_entropies_equal_numpy(
    make_inspector: MakeInspector, predicting: Task, variant: Table
) -> None:
    inspector = make_inspector(predicting, variant)
    text_and_target = ("abc bad cab", None if predicting == "generate" else "a bad ace")
    log_probs = NumpyTransformer(inspector, inspector.read(*text_and_target)).log_probs
    found = inspector.token_scores(*text_and_target, k=3)
    answers = [token.id for token in inspector.read(*text_and_target).answers]
    assert [token.id for token in found.tokens] == answers
    rows = log_probs[: len(answers)]
    np.testing.assert_allclose(found.log_probs, rows[range(len(answers)), answers], atol=1e-5)
    np.testing.assert_allclose(found.entropies, -(np.exp(rows) * rows).sum(-1), atol=1e-5)
    assert found.ranks.tolist() == [
        1 + int((row > row[answer]).sum()) for row, answer in zip(rows, answers, strict=True)
    ]
    assert found.alternatives.ids.tolist() == np.argsort(-rows, -1)[:, :3].tolist()
    assert found.next.ids.tolist() == np.argsort(-log_probs[-1])[:3].tolist()
    assert found.alternatives.texts == [[inspector.words[i] for i in row] for row in found.alternatives.ids]


def test_ablated_head_equals_zeroed_output_columns(
    inspector: Inspector, text_and_target: tuple[str, str | None]
) -> None:
    reading = inspector.read(*text_and_target)
    before = NumpyTransformer(inspector, reading).log_probs
    answers = [token.id for token in reading.answers] or [int(before[0].argmax())]
    for head in inspector.heads[::3]:
        found = inspector.ablate(text_and_target[0], [head], text_and_target[1])
        name, number = module_and_head(head)
        width = inspector.model.settings.d_head
        matrix = inspector.model.get_submodule(name).output.weight
        kept = matrix.detach().clone()
        matrix.data[:, number * width : (number + 1) * width] = 0
        after = NumpyTransformer(inspector, reading).log_probs
        matrix.data.copy_(kept)
        losses = [-rows[range(len(answers)), answers] for rows in (before, after)]
        assert [found.loss_before, found.loss_after] == pytest.approx([loss.mean() for loss in losses], abs=1e-5)
        np.testing.assert_allclose(found.changes, losses[1] - losses[0], atol=1e-5)
        np.testing.assert_allclose(found.next_after, np.exp(after[-1][found.next_ids]), atol=1e-5)
