"""Properties of attention weights and of what is counted from them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.classification.classifier import Classifier
from penwright.config import Table, Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection import head_statistics as of
from penwright.inspection.attention_maps import pack, rollout, unpack
from penwright.inspection.forward_pass import scores
from penwright.model.attention_recording import record_attention

Make = Callable[..., Inspector]


def test_looking_changes_no_logits_and_leaves_no_trace(
    inspector: Make, task: Task, variant: Table, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task, variant)
    reading = inspected.read(*asked)
    fused = scores(inspected.model.eval(), reading)
    with record_attention(inspected.model):
        explicit = scores(inspected.model, reading)
    torch.testing.assert_close(explicit, fused)
    inspected.attention(*asked)
    inspected.ablate(asked[0], inspected.heads, asked[1])
    torch.testing.assert_close(scores(inspected.model, reading), fused, rtol=0, atol=0)


def test_rows_of_attention_and_of_rollout_sum_to_one(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task)
    for part in inspected.attention(*asked).parts:
        np.testing.assert_allclose(part.weights.sum(-1), 1, atol=1e-5)
        assert part.weights.shape[2:] == (len(part.target_tokens), len(part.source_tokens))
    found = {part.name: part.weights for part in inspected.rollout(*asked)}
    if "cross" in found:
        found["decoder"] = np.concatenate([found["decoder"], found.pop("cross")], 1)
    for weights in found.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert weights.min() >= 0


def test_a_rollout_multiplies_half_attention_half_identity() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4, 3))
    first, second = (0.5 * layer.mean(0) + 0.5 * np.eye(3) for layer in weights)
    np.testing.assert_allclose(rollout(weights), second @ first)


def test_the_layers_asked_for_are_those_of_all_layers(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task)
    every, second = inspected.attention(*asked), inspected.attention(*asked, layers=[1])
    for whole, part in zip(every.parts, second.parts, strict=True):
        assert (whole.name, part.layers) == (part.name, (1,))
        np.testing.assert_array_equal(part.weights, whole.weights[1:])
    with pytest.raises(UsageError, match=r"layer 7: .*0 to 1"):
        inspected.attention(*asked, layers=[7])


@given(st.lists(st.floats(0, 1), min_size=1))
@settings(max_examples=50)
def test_packing_loses_less_than_half_a_percent(weights: list[float]) -> None:
    array = np.array(weights)
    assert np.abs(unpack(pack(array)) - array).max() <= 0.004


def test_packed_maps_are_the_maps(inspector: Make) -> None:
    inspected = inspector("generate")
    (whole,), (packed,) = inspected.attention("abc").parts, inspected.packed_attention("abc")
    assert packed.weights.dtype == np.uint8
    np.testing.assert_allclose(unpack(packed.weights), whole.weights, atol=0.004)


def test_alignment_tells_where_each_token_was_chosen(inspector: Make) -> None:
    inspected = inspector("translate")
    found, cross = inspected.alignment("abc", "ba"), inspected.attention("abc", "ba").part("cross")
    assert [token.text for token in found.tokens] == ["b", "a", "</s>"]
    assert [token.text for token in cross.target_tokens] == ["<s>", "b", "a"]
    np.testing.assert_allclose(found.weights, cross.weights.mean((0, 1)))
    with pytest.raises(UsageError, match="no cross"):
        inspector("generate").alignment("abc")


def alone(head: np.ndarray) -> np.ndarray:
    return head[None, None]  # the only head of the only layer


def test_heads_that_do_one_thing_score_one_for_it_and_zero_for_the_rest() -> None:
    n = 6
    back = alone(np.eye(n, k=-1))
    back[0, 0, 0, 0] = 1
    assert (of.offset(back, 1), of.offset(back, 0)) == (1, 1 / n)
    assert of.distance(back) == pytest.approx((n - 1) / n)
    assert (of.entropy(back), of.confidence(back)) == (0, 1)
    sink = alone(np.eye(n)[np.zeros(n, dtype=int)])
    assert (of.first(sink), of.offset(sink, 1)) == (1, 1 / (n - 1))
    even = alone(np.full((n, n), 1 / n))
    assert (of.entropy(even), of.confidence(even)) == (pytest.approx(np.log(n)), pytest.approx(1 / n))
    assert of.distance(even) == pytest.approx(np.mean([abs(t - s) for t in range(n) for s in range(n)]))


def test_an_exact_induction_pattern_scores_one_and_looking_back_one_does_not() -> None:
    ids = np.array([5, 6, 7, 5, 6, 7])
    weights = np.eye(6)[[0, 1, 2, 1, 2, 3]]  # from the fourth on: what followed the same token the first time
    assert of.induction(alone(weights), ids) == 1
    assert of.induction(alone(np.eye(6, k=-1)), ids) == 0
    assert np.isnan(of.induction(alone(weights), np.arange(6)))
    doubled = np.array([4, 4])  # what follows the first 4 is the target itself, which is no looking back
    assert np.isnan(of.induction(alone(np.eye(2)), doubled))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 9))
@settings(max_examples=50)
def test_induction_is_the_sum_over_earlier_places_by_brute_force(ids: list[int], seed: int) -> None:
    n = len(ids)
    weights = alone(np.tril(np.random.default_rng(seed).random((n, n))))
    sums = []
    for t in range(n):
        followers = [s + 1 for s in range(t) if ids[s] == ids[t] and s + 1 < t]
        sums += [sum(weights[0, 0, t, s] for s in followers)] if followers else []
    expected = np.mean(sums) if sums else np.nan
    assert of.induction(weights, np.array(ids)) == pytest.approx(expected, nan_ok=True)


def test_statistics_cover_every_head_and_lack_what_makes_no_sense(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task)
    found = {part.name: part for part in inspected.head_statistics(*asked)}
    assert sum(part.entropy.size for part in found.values()) == len(inspected.heads)
    for name, part in found.items():
        for statistic in of.STATISTICS:
            missing = (name == "cross" and statistic in ("distance", "previous", "induction")) or (
                name == "decoder" and statistic == "last"
            )
            assert np.isnan(getattr(part, statistic)).all() == missing, (name, statistic)


def test_the_induction_test_reads_random_tokens_twice(inspector: Make) -> None:
    found = inspector("generate").induction(n=8)
    assert ((found.induction >= 0) & (found.induction <= 1)).all()
    with pytest.raises(UsageError, match="classifier"):
        inspector("classify").induction()


def test_ablating_every_head_leaves_the_model_without_attention(
    inspector: Make, task: Task, variant: Table, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task, variant)
    without = inspected.ablate(asked[0], inspected.heads, asked[1], k=1000)
    for name, parameter in inspected.model.named_parameters():
        if "attention.output.weight" in name:
            parameter.data.zero_()
    label = None
    if isinstance(inspected.application, Classifier):
        label = inspected.outcomes[int(np.argmax(without.next_before))]
    emptied = inspected.ablate(asked[0], [], label or asked[1], k=1000)
    order, emptied_order = without.next_ids.argsort(), emptied.next_ids.argsort()
    np.testing.assert_allclose(without.next_after[order], emptied.next_before[emptied_order], atol=1e-9)


def test_importance_is_the_ablation_of_each_head_alone(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task)
    found = {part.name: part for part in inspected.head_importance(*asked)}
    for head in inspected.heads:
        part, layer, number = head.split(".")
        alone = inspected.ablate(asked[0], [head], asked[1])
        change = alone.loss_after - alone.loss_before
        assert found[part].changes[found[part].layers.index(int(layer)), int(number)] == pytest.approx(change)


@pytest.mark.parametrize("head", ["", "9.0", "0.9", "0", "a.b", "cross.0.0", "0.0.0", "-1.0", "🦊"])
def test_a_head_that_is_not_there_is_named_with_those_that_are(inspector: Make, head: str) -> None:
    with pytest.raises(UsageError, match=r"from 0\.0 to 1\.3"):
        inspector("generate").ablate("abc", [head])
