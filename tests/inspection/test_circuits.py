"""Logit attribution, activation patching and path ablation equal a patched NumPy Transformer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penwright.config import Table, Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.patching import PATCH_KINDS
from penwright.inspection.paths import Edge, Paths
from penwright.views.ink import label

from .test_against_numpy import NumpyTransformer

Array = np.ndarray
Change = Callable[[str, str, Array], Array]
OTHER, PLACES = "abc bad dab", [8, 9]  # positions where the texts differ, with or without a start token


class PatchedTransformer(NumpyTransformer):
    """A forward pass in which `change` may replace a sublayer's input, its output, or the outputs of its heads.

    `cut` is (sublayer, "query", "key", "value" or "input", head, what to subtract from the stream that it reads).
    """

    def __init__(self, inspector: Inspector, reading: Any, change: Change | None = None, cut: Any = None):
        self.change = change or (lambda kind, name, x: x)
        self.cut = cut
        self.before: dict[str, Array] = {}
        self.out: dict[str, Array] = {}
        self.encoded: Array | None = None
        self.vectors: dict[str, tuple[Array, Array]] = {}
        self.inner: Array | None = None
        super().__init__(inspector, reading)

    def embed(self, name: str, ids: Array) -> Array:
        x = super().embed(name, ids)
        tokens = self.weights[f"{name}.tokens.weight"][ids]
        tokens = tokens * self.settings.d_model**0.5 if self.settings.scale_embeddings else tokens
        side = (
            "encoder" if "encoder.blocks.0.attention.query.weight" in self.weights and not self.vectors else "decoder"
        )
        self.vectors[side] = tokens, x - tokens
        return x

    def residual(self, name: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
        if name.startswith("decoder.blocks.0.attention") and "encoder" in self.vectors:
            self.encoded = self.last
        self.before[name] = x = self.change("before", name, x)
        if self.cut and self.cut[0] == name:
            inner = x - self.cut[3] if self.cut[1] in ("query", "input") or not name.endswith("cross") else x
            self.inner = self.norm(f"{name}_residual.norm", inner) if self.pre else inner

        def keep(y: Array) -> Array:
            y = self.inner if self.inner is not None and self.cut[1] == "input" else y
            self.out[name] = self.change("output", name, sublayer(y))
            return self.out[name]

        self.last = super().residual(name, x, keep)
        self.inner = None
        return self.last

    @property
    def pre(self) -> bool:
        return self.settings.norm_position == "pre"

    def attend(self, name: str, x: Array, source: Array) -> Array:
        def mixed(steps: dict[str, Array]) -> Array:
            scores = steps["queries"] @ steps["keys"].transpose(0, 2, 1) / self.settings.d_head**0.5
            powers = np.exp(np.where(np.isneginf(steps["masked"]), -np.inf, scores))
            steps["output"] = powers / powers.sum(-1, keepdims=True) @ steps["values"]
            heads = self.change("heads", name, steps["output"])
            return self.linear(f"{name}.output", heads.transpose(1, 0, 2).reshape(len(x), -1))

        super().attend(name, x, source)
        steps = dict(self.steps[name])
        if self.inner is not None:
            via, head = self.cut[1:3]
            other = self.inner
            if source is not x:  # cross-attention
                other = source if via == "query" else self.encoded - self.cut[3]
                other = self.norm("encoder.norm", other) if via != "query" and self.pre else other
            super().attend(name, self.inner, other)
            field = {"query": "queries", "key": "keys", "value": "values"}[via]
            steps[field] = steps[field].copy()
            steps[field][head] = self.steps[name][field][head]
        out = mixed(steps)
        self.steps[name] = steps
        return out

    def head_output(self, name: str, head: int) -> Array:
        width = self.settings.d_head
        matrix = self.weights[f"{name}.output.weight"][:, head * width : (head + 1) * width]
        return self.steps[name]["output"][head] @ matrix.T

    def frozen(self, norm: str, x: Array, stream: Array) -> Array:
        """Return the norm of x with the statistics of a stream."""
        if self.settings.norm.type == "layer":
            x, stream = (each - each.mean(-1, keepdims=True) for each in (x, stream))
        scale = np.sqrt((stream**2).mean(-1, keepdims=True) + self.settings.norm.eps)
        return x / scale * self.weights[f"{norm}.weight"] + self.weights.get(f"{norm}.bias", 0.0)

    def replay(self, stack: str, without: str, until: str | None = None) -> Array:
        """Return the stream, up to a sublayer or the end, without the output of one part, all others unchanged."""
        tokens, positions = self.vectors[stack]
        x = sum((v for n, v in (("tokens", tokens), ("positions", positions)) if without != f"{stack}.{n}"), 0 * tokens)
        for name in self.before:
            if not name.startswith(stack):
                continue
            if name == until:
                return x
            out = self.out[name]
            part, layer, last = without.split(".") if without.count(".") == 2 else ("", "", "")
            which = {"feed_forward": "feed_forward"}.get(last, "cross" if part == "cross" else "attention")
            if part in (stack, "cross") and name == f"{stack}.blocks.{layer}.{which}":
                full = f"{name}_attention" if which == "cross" else name
                out = out - (self.out[name] if which == "feed_forward" else self.head_output(full, int(last)))
            x = (
                x + out
                if self.pre
                else self.frozen(f"{name}_residual.norm", x + out, self.before[name] + self.out[name])
            )
        return x

    def logits_of(self, stream: Array, stack: str, freeze: Array | None = None) -> Array:
        if self.pre:
            x = self.norm(f"{stack}.norm", stream) if freeze is None else self.frozen(f"{stack}.norm", stream, freeze)
        else:
            x = stream
        x = x.mean(0, keepdims=True) if "encoder" in stack else x
        return x @ self.weights["output.weight"].T + self.weights.get("output.bias", 0.0)


@pytest.fixture
def inspector(make_inspector: Any, task: Task, variant: Table) -> Inspector:
    return make_inspector(task, variant)


TextAndTarget = tuple[str, str | None]


def last_stack(inspector: Inspector) -> str:
    return "encoder" if inspector.kind == "classifier" else "decoder"


def test_logit_attribution_equals_the_loss_without_each_part(
    inspector: Inspector, text_and_target: TextAndTarget
) -> None:
    expected_pass, stack = PatchedTransformer(inspector, inspector.read(*text_and_target)), last_stack(inspector)
    found = inspector.logit_attribution(*text_and_target)
    outcome = inspector.outcomes.index(found.target)
    whole = expected_pass.logits_of(expected_pass.last, stack)[found.position]
    assert found.logit == pytest.approx(whole[outcome] - whole.mean(), abs=1e-5)
    assert found.values.sum() == pytest.approx(found.logit, abs=1e-5)
    assert len(set(found.names)) == len(found.names)
    for name, value in zip(found.names[1:], found.values[1:], strict=True):
        without = expected_pass.logits_of(expected_pass.replay(stack, name), stack, expected_pass.last)[found.position]
        expected = whole[outcome] - whole.mean() - (without[outcome] - without.mean())
        assert value == pytest.approx(expected, abs=1e-5), name
    assert label(found.target) in str(found)
    part = inspector.heads[-1].split(".")[0]
    assert found.heads(part)[0, 1] == found.values[found.names.index(f"{part}.0.1")]


def test_logit_attribution_against_another_outcome(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    found = inspector.logit_attribution(*text_and_target)
    other = next(each for each in inspector.outcomes if each.strip() and each != found.target)
    compared = inspector.logit_attribution(*text_and_target, against=other)
    logits = NumpyTransformer(inspector, inspector.read(*text_and_target)).log_probs[found.position]
    expected = logits[inspector.outcomes.index(found.target)] - logits[inspector.outcomes.index(other)]
    assert compared.logit == pytest.approx(expected, abs=1e-5)
    assert compared.values.sum() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UsageError, match="compared with itself"):
        inspector.logit_attribution(*text_and_target, against=found.target)


@pytest.mark.parametrize("kind", PATCH_KINDS)
def test_activation_patching_equals_numpy(inspector: Inspector, text_and_target: TextAndTarget, kind: Any) -> None:
    text, target = text_and_target
    other = OTHER
    readings = inspector.reader.read_both(text, other, target)
    source, expected_pass = (PatchedTransformer(inspector, each) for each in readings)
    for found in inspector.patching(text, other, target, kind=kind, positions=PLACES):
        assert found.restored.shape == (len(found.layers), 4 if kind == "heads" else 2)
        (position,) = (
            {0} if inspector.kind == "classifier" else {first_differing_position(source, expected_pass, inspector.kind)}
        )
        outcome, against = (inspector.outcomes.index(each) for each in (found.target, found.against))
        one, two = (
            each.log_probs[position, outcome] - each.log_probs[position, against] for each in (source, expected_pass)
        )
        for row, column in np.ndindex(found.restored.shape):
            change = patch_from(source, found.part, found.layers[row], kind, column, PLACES)
            patched = PatchedTransformer(inspector, readings[1], change).log_probs[position]
            expected = (patched[outcome] - patched[against] - two) / (one - two)
            assert found.restored[row, column] == pytest.approx(expected, abs=1e-4)
        assert "restores" in str(found)


def first_differing_position(one: NumpyTransformer, two: NumpyTransformer, shape: str) -> int:
    places = np.flatnonzero(one.log_probs.argmax(-1) != two.log_probs.argmax(-1))
    return len(one.log_probs) - 1 if shape == "writer" or not len(places) else int(places[0])


def patch_from(
    source: PatchedTransformer, part: str, layer: int, kind: str, column: int, positions: list[int]
) -> Change:
    stack = "decoder" if part == "cross" else part
    of = {"feed_forward": "feed_forward"}.get(kind, "cross" if part == "cross" else "attention")
    place = f"{stack}.blocks.{layer}.{of}"
    attention = f"{place}_attention" if part == "cross" else place

    def change(at: str, name: str, x: Array) -> Array:
        if kind == "heads" and at == "heads" and name == attention:
            x = x.copy()
            x[column, positions] = source.steps[name]["output"][column, positions]
        if (at, name) == ({"residual": "before"}.get(kind, "output"), place) and kind != "heads":
            x = x.copy()
            x[positions[column]] = (source.before if kind == "residual" else source.out)[name][positions[column]]
        return x

    return change


def test_path_effects_and_estimates_equal_numpy(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    reading = inspector.read(*text_and_target)
    expected_pass, stack = PatchedTransformer(inspector, reading), last_stack(inspector)
    found = inspector.paths(*text_and_target, n_edges=25)
    outcome = inspector.outcomes.index(found.target)
    assert found.log_prob == pytest.approx(expected_pass.log_probs[found.position, outcome], abs=1e-5)
    assert [abs(edge.effect) for edge in found.edges] == sorted((abs(e.effect) for e in found.edges), reverse=True)
    assert len(found.edges) == 25 < found.n_edges
    step = 1e-4
    for edge in found.edges:
        source_stack = "decoder" if edge.source.startswith("cross") else edge.source.split(".")[0]
        if edge.destination == "output":
            delta = expected_pass.last - expected_pass.replay(stack, edge.source)

            def run(size: float, delta: Array = delta) -> float:
                logits = expected_pass.logits_of(expected_pass.last - size * delta, stack)[found.position]
                return float(logits[outcome] - np.log(np.exp(logits).sum()))
        else:
            part, layer, last = edge.destination.split(".")
            which = "feed_forward" if last == "feed_forward" else "cross" if part == "cross" else "attention"
            place = f"{'decoder' if part == 'cross' else part}.blocks.{layer}.{which}"
            crossing = which == "cross" and edge.via != "query"
            whole = expected_pass.encoded if crossing else expected_pass.before[place]
            delta = whole - expected_pass.replay(source_stack, edge.source, None if crossing else place)
            head = 0 if last == "feed_forward" else int(last)

            def run(size: float, delta: Array = delta, at: Any = (place, edge.via, head)) -> float:
                return float(
                    PatchedTransformer(inspector, reading, None, (*at, size * delta)).log_probs[found.position, outcome]
                )

        assert edge.effect == pytest.approx(found.log_prob - run(1.0), abs=1e-5), edge
        assert edge.estimate == pytest.approx((run(-step) - run(step)) / (2 * step), abs=1e-5), edge
        assert found.sentence(edge).startswith("Without the path from")


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (0.5, "falls from 96.5% to 58.5%."),
        (-0.02, "rises from 96.5% to 98.4%."),
        (1e-5, "hardly changes (96.5%)."),
        (-1e-5, "hardly changes (96.5%)."),
    ],
)
def test_sentence_about_a_path_names_a_change_that_its_figures_show(effect: float, words: str) -> None:
    edge = Edge("decoder.tokens", "output", "input", effect, effect)
    found = Paths(" b\n", 0, np.log(0.965), 1, (edge,))
    where = "Without the path from the token vectors directly to the output"
    assert found.explanation == f"{where}, the probability of “␣b⏎” {words}"


def test_patching_unsuitable_texts_is_refused(make_inspector: Any) -> None:
    with pytest.raises(UsageError, match="12 and 4 tokens"):
        make_inspector("generate").patching("abc bad cab", "abc")
    with pytest.raises(UsageError, match="same prediction"):
        make_inspector("generate").patching("abc", "abc")


def test_invalid_outcomes_positions_and_labels_are_refused(make_inspector: Any) -> None:
    inspector = make_inspector("generate")
    with pytest.raises(UsageError, match="not a single token"):
        inspector.logit_attribution("abc", outcome="abc abc")
    with pytest.raises(UsageError, match="invalid positions"):
        inspector.patching("abc", "abd", positions=[9])
    with pytest.raises(UsageError, match="no label"):
        make_inspector("classify").logit_attribution("abc", outcome="excellent")
