"""What inspection shows is what a plain NumPy Transformer, written here from its formulas alone, computes itself."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from penwright.config import Table, Task
from penwright.inspection import Inspector
from penwright.inspection.forward_pass import ForwardPass

Make = Callable[..., Inspector]
Array = np.ndarray


class Plain:
    """One pass over one text; `steps` keeps what every head computes, `stream` what each block gives at last."""

    def __init__(self, inspector: Inspector, reading: ForwardPass):
        self.model = inspector.model
        self.settings = inspector.model.settings
        self.weights = {
            name: w.detach().numpy() for name, w in inspector.model.named_parameters(remove_duplicate=False)
        }
        self.steps: dict[str, dict[str, Array]] = {}
        self.stream: list[Array] = []
        ids = [np.array([token.id for token in side], dtype=int) for side in (reading.source, reading.target)]
        shape = inspector.shape
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
            x = self.residual(f"{block}.feed_forward", x, lambda y, at=f"{block}.feed_forward": self.prefetcher(at, y))
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

    def prefetcher(self, name: str, x: Array) -> Array:
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
            queries, keys = self.transition(queries), self.transition(keys)
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

    def transition(self, x: Array) -> Array:
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * self.settings.positions.base ** -(np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], -1)


def name_of(head: str) -> tuple[str, int]:
    part, layer, number = head.split(".")
    stack, attention = ("decoder", "cross_attention") if part == "cross" else (part, "attention")
    return f"{stack}.blocks.{layer}.{attention}", int(number)


@pytest.fixture
def inspected(inspector: Make, task: Task, variant: Table) -> Inspector:
    return inspector(task, variant)


def test_every_weight_of_every_head_is_the_formulas(inspected: Inspector, asked: tuple[str, str | None]) -> None:
    plain = Plain(inspected, inspected.read(*asked))
    maps = inspected.attention(*asked)
    shown = 0
    for part in maps.parts:
        for layer, heads in zip(part.layers, part.weights, strict=True):
            name, _ = name_of(f"{part.name}.{layer}.0")
            np.testing.assert_allclose(heads, plain.steps[name]["weights"], atol=1e-6)
            shown += 1
    assert shown == len(plain.steps)


def test_every_step_of_a_heads_arithmetic_is_the_formulas(inspected: Inspector, asked: tuple[str, str | None]) -> None:
    plain = Plain(inspected, inspected.read(*asked))
    for head in inspected.heads:
        name, number = name_of(head)
        found = inspected.arithmetic(asked[0], head, asked[1])
        for step, expected in plain.steps[name].items():
            np.testing.assert_allclose(getattr(found, step), expected[number], rtol=1e-5, atol=1e-5, err_msg=step)


def test_the_lens_reads_every_layer_and_ends_with_the_models_own_answer(
    inspected: Inspector, asked: tuple[str, str | None]
) -> None:
    plain = Plain(inspected, inspected.read(*asked))
    lens = inspected.lens(*asked, k=1000)
    ids = np.vectorize(inspected.outcomes.index)(np.array(lens.top_tokens))
    found = np.take_along_axis(lens.top_probabilities, ids.argsort(-1), -1)
    assert len(found) == len(plain.stream)
    for hidden, probabilities in zip(plain.stream, found, strict=True):
        stack = "encoder" if inspected.shape == "classifier" else "decoder"
        read = plain.norm(f"{stack}.norm", hidden) if plain.settings.norm_position == "pre" else hidden
        read = read.mean(0, keepdims=True) if inspected.shape == "classifier" else read
        logits = plain.linear("output", read)
        expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(found[-1], np.exp(plain.log_probs), atol=1e-6)
    for place, token in enumerate(inspected.read(*asked).answers):
        np.testing.assert_allclose(lens.true_probabilities[:, place], found[:, place, token.id])
        own = found[:, place, token.id, None]
        assert lens.true_ranks[:, place].tolist() == (1 + (found[:, place] > own).sum(-1)).tolist()


@pytest.mark.parametrize("predicting", ["generate", "translate"])
def test_log_probabilities_ranks_and_entropies_are_the_formulas(
    inspector: Make, predicting: Task, variant: Table
) -> None:
    inspected = inspector(predicting, variant)
    asked = ("abc bad cab", None if predicting == "generate" else "a bad ace")
    log_probs = Plain(inspected, inspected.read(*asked)).log_probs
    found = inspected.token_scores(*asked, k=3)
    answers = [token.id for token in inspected.read(*asked).answers]
    assert [token.id for token in found.tokens] == answers
    rows = log_probs[: len(answers)]
    np.testing.assert_allclose(found.log_probs, rows[range(len(answers)), answers], atol=1e-5)
    np.testing.assert_allclose(found.entropies, -(np.exp(rows) * rows).sum(-1), atol=1e-5)
    assert found.ranks.tolist() == [
        1 + int((row > row[answer]).sum()) for row, answer in zip(rows, answers, strict=True)
    ]
    assert found.alternatives.ids.tolist() == np.argsort(-rows, -1)[:, :3].tolist()
    assert found.next.ids.tolist() == np.argsort(-log_probs[-1])[:3].tolist()
    assert found.alternatives.texts == [[inspected.words[i] for i in row] for row in found.alternatives.ids]


def test_the_loss_without_a_head_is_that_of_a_model_whose_output_matrix_ignores_it(
    inspected: Inspector, asked: tuple[str, str | None]
) -> None:
    reading = inspected.read(*asked)
    before = Plain(inspected, reading).log_probs
    answers = [token.id for token in reading.answers] or [int(before[0].argmax())]
    for head in inspected.heads[::3]:
        found = inspected.ablate(asked[0], [head], asked[1])
        name, number = name_of(head)
        width = inspected.model.settings.d_head
        matrix = inspected.model.get_submodule(name).output.weight
        kept = matrix.detach().clone()
        matrix.data[:, number * width : (number + 1) * width] = 0
        after = Plain(inspected, reading).log_probs
        matrix.data.copy_(kept)
        losses = [-rows[range(len(answers)), answers] for rows in (before, after)]
        assert [found.loss_before, found.loss_after] == pytest.approx([loss.mean() for loss in losses], abs=1e-5)
        np.testing.assert_allclose(found.changes, losses[1] - losses[0], atol=1e-5)
        np.testing.assert_allclose(found.next_after, np.exp(after[-1][found.next_ids]), atol=1e-5)
