"""Properties of attention weights and of statistics computed from them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.classification.classifier import Classifier
from penwright.config import Table, Task
from penwright.errors import UsageError
from penwright.inspection import Inspector, head_statistics
from penwright.inspection.attention_maps import pack, rollout, unpack
from penwright.inspection.forward_pass import hidden_states, logits_of
from penwright.model.attention_kernels import record_attention

MakeInspector = Callable[..., Inspector]


def test_inspection_leaves_logits_unchanged(
    make_inspector: MakeInspector, task: Task, variant: Table, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task, variant)
    model, reading = inspector.model.eval(), inspector.read(*text_and_target)
    fused = logits_of(model, hidden_states(model, reading))
    with record_attention(model):
        explicit = logits_of(model, hidden_states(model, reading))
    torch.testing.assert_close(explicit, fused)
    inspector.attention(*text_and_target)
    inspector.ablate(text_and_target[0], inspector.heads, text_and_target[1])
    torch.testing.assert_close(logits_of(model, hidden_states(model, reading)), fused, rtol=0, atol=0)


def test_rows_of_attention_and_rollout_sum_to_one(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    for part in inspector.attention(*text_and_target).parts:
        np.testing.assert_allclose(part.weights.sum(-1), 1, atol=1e-5)
        assert part.weights.shape[2:] == (len(part.target_tokens), len(part.source_tokens))
    found = {part.name: part.weights for part in inspector.rollout(*text_and_target)}
    if "cross" in found:
        found["decoder"] = np.concatenate([found["decoder"], found.pop("cross")], 1)
    for weights in found.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert weights.min() >= 0


def test_rollout_multiplies_averages_of_attention_and_identity() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4, 3))
    first, second = (0.5 * layer.mean(0) + 0.5 * np.eye(3) for layer in weights)
    np.testing.assert_allclose(rollout(weights), second @ first)


def test_selected_layers_equal_those_of_all_layers(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    every, second = inspector.attention(*text_and_target), inspector.attention(*text_and_target, layers=[1])
    for whole, part in zip(every.parts, second.parts, strict=True):
        assert (whole.name, part.layers) == (part.name, (1,))
        np.testing.assert_array_equal(part.weights, whole.weights[1:])
    with pytest.raises(UsageError, match=r"layer 7: .*0 to 1"):
        inspector.attention(*text_and_target, layers=[7])


@given(st.lists(st.floats(0, 1), min_size=1))
@settings(max_examples=50)
def test_packing_error_is_below_half_a_percent(weights: list[float]) -> None:
    array = np.array(weights)
    assert np.abs(unpack(pack(array)) - array).max() <= 0.004


def test_packed_attention_equals_attention(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("generate")
    (whole,), (packed,) = inspector.attention("abc").parts, inspector.packed_attention("abc")
    assert packed.weights.dtype == np.uint8
    np.testing.assert_allclose(unpack(packed.weights), whole.weights, atol=0.004)


def test_alignment_is_mean_cross_attention_per_target_token(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("translate")
    found, cross = inspector.alignment("abc", "ba"), inspector.attention("abc", "ba").part("cross")
    assert [token.text for token in found.tokens] == ["b", "a", "</s>"]
    assert [token.text for token in cross.target_tokens] == ["<s>", "b", "a"]
    np.testing.assert_allclose(found.weights, cross.weights.mean((0, 1)))
    with pytest.raises(UsageError, match="no cross"):
        make_inspector("generate").alignment("abc")


def only_head(head: np.ndarray) -> np.ndarray:
    return head[None, None]  # the only head of the only layer


def test_idealised_heads_have_the_expected_statistics() -> None:
    n = 6
    back = only_head(np.eye(n, k=-1))
    back[0, 0, 0, 0] = 1
    assert (head_statistics.offset(back, 1), head_statistics.offset(back, 0)) == (1, 1 / n)
    assert head_statistics.distance(back) == pytest.approx((n - 1) / n)
    assert (head_statistics.entropy(back), head_statistics.confidence(back)) == (0, 1)
    sink = only_head(np.eye(n)[np.zeros(n, dtype=int)])
    assert (head_statistics.first(sink), head_statistics.offset(sink, 1)) == (1, 1 / (n - 1))
    even = only_head(np.full((n, n), 1 / n))
    assert (head_statistics.entropy(even), head_statistics.confidence(even)) == (
        pytest.approx(np.log(n)),
        pytest.approx(1 / n),
    )
    assert head_statistics.distance(even) == pytest.approx(np.mean([abs(t - s) for t in range(n) for s in range(n)]))


def test_perfect_induction_head_scores_one() -> None:
    ids = np.array([5, 6, 7, 5, 6, 7])
    weights = np.eye(6)[[0, 1, 2, 1, 2, 3]]  # from the fourth on: the token after the first occurrence
    assert head_statistics.induction(only_head(weights), ids) == 1
    assert head_statistics.induction(only_head(np.eye(6, k=-1)), ids) == 0
    assert np.isnan(head_statistics.induction(only_head(weights), np.arange(6)))
    doubled = np.array([4, 4])  # the token after the first 4 is the target itself, which does not count
    assert np.isnan(head_statistics.induction(only_head(np.eye(2)), doubled))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 9))
@settings(max_examples=50)
def test_induction_equals_brute_force(ids: list[int], seed: int) -> None:
    n = len(ids)
    weights = only_head(np.tril(np.random.default_rng(seed).random((n, n))))
    sums = []
    for t in range(n):
        followers = [s + 1 for s in range(t) if ids[s] == ids[t] and s + 1 < t]
        sums += [sum(weights[0, 0, t, s] for s in followers)] if followers else []
    expected = np.mean(sums) if sums else np.nan
    assert head_statistics.induction(weights, np.array(ids)) == pytest.approx(expected, nan_ok=True)


def test_statistics_cover_every_head_and_are_nan_if_undefined(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    found = {part.name: part for part in inspector.head_statistics(*text_and_target)}
    assert sum(part.entropy.size for part in found.values()) == len(inspector.heads)
    for name, part in found.items():
        for statistic in head_statistics.STATISTICS:
            missing = (name == "cross" and statistic in ("distance", "previous", "induction")) or (
                name == "decoder" and statistic == "last"
            )
            assert np.isnan(getattr(part, statistic)).all() == missing, (name, statistic)


def test_induction_scores_are_probabilities_and_need_a_decoder(make_inspector: MakeInspector) -> None:
    found = make_inspector("generate").induction(n=8)
    assert ((found.induction >= 0) & (found.induction <= 1)).all()
    with pytest.raises(UsageError, match="classifier"):
        make_inspector("classify").induction()


def test_ablating_every_head_equals_zero_attention_output(
    make_inspector: MakeInspector, task: Task, variant: Table, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task, variant)
    without = inspector.ablate(text_and_target[0], inspector.heads, text_and_target[1], k=1000)
    for name, parameter in inspector.model.named_parameters():
        if "attention.output.weight" in name:
            parameter.data.zero_()
    label = None
    if isinstance(inspector.application, Classifier):
        label = inspector.outcomes[int(np.argmax(without.next_before))]
    emptied = inspector.ablate(text_and_target[0], [], label or text_and_target[1], k=1000)
    order, emptied_order = without.next_ids.argsort(), emptied.next_ids.argsort()
    np.testing.assert_allclose(without.next_after[order], emptied.next_before[emptied_order], atol=1e-9)


def test_head_importance_equals_single_head_ablation(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    found = {part.name: part for part in inspector.head_importance(*text_and_target)}
    for head in inspector.heads:
        part, layer, number = head.split(".")
        only_head = inspector.ablate(text_and_target[0], [head], text_and_target[1])
        change = only_head.loss_after - only_head.loss_before
        assert found[part].changes[found[part].layers.index(int(layer)), int(number)] == pytest.approx(change)


@pytest.mark.parametrize("head", ["", "9.0", "0.9", "0", "a.b", "cross.0.0", "0.0.0", "-1.0", "🦊"])
def test_unknown_head_is_refused_with_the_valid_range(make_inspector: MakeInspector, head: str) -> None:
    with pytest.raises(UsageError, match=r"from 0\.0 to 1\.3"):
        make_inspector("generate").ablate("abc", [head])
