"""The model map equals a NumPy Transformer, and its page leads down to a single product."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from penwright.config import Table, Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.pages import whole_model
from penwright.views import html

from .test_circuits import PatchedTransformer

TextAndTarget = tuple[str, str | None]


@pytest.fixture
def inspector(make_inspector: Callable[..., Inspector], task: Task, variant: Table) -> Inspector:
    return make_inspector(task, variant)


def module_names(part: str, layer: int, kind: str) -> tuple[str, str]:
    """Return the names of a sublayer's residual connection and module."""
    block = f"{'decoder' if part == 'cross' else part}.blocks.{layer}"
    which = "cross" if part == "cross" else kind
    return f"{block}.{which}", f"{block}.cross_attention" if part == "cross" else f"{block}.{kind}"


def test_model_map_equals_numpy(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    expected_pass = PatchedTransformer(inspector, inspector.read(*text_and_target))
    found = inspector.model_map(*text_and_target, position=2)
    assert found.position == found.stacks[-1].position == 2
    for stack in found.stacks:
        lengths = np.linalg.norm(expected_pass.vectors[stack.name][0] + expected_pass.vectors[stack.name][1], axis=-1)
        np.testing.assert_allclose(stack.embedded, lengths, rtol=1e-5)
        streams = [
            expected_pass.before[module_names(each.part, each.layer, each.kind)[0]] for each in stack.sublayers[1:]
        ]
        for each, after in zip(stack.sublayers, streams, strict=False):
            np.testing.assert_allclose(each.after, np.linalg.norm(after, axis=-1), rtol=1e-5)
        for each in stack.sublayers:
            residual, name = module_names(each.part, each.layer, each.kind)
            np.testing.assert_allclose(each.added, np.linalg.norm(expected_pass.out[residual], axis=-1), rtol=1e-5)
            if each.kind == "attention":
                np.testing.assert_allclose(
                    each.weights, expected_pass.steps[name]["weights"][:, stack.position], atol=1e-6
                )
                added = [expected_pass.head_output(name, head)[stack.position] for head in range(4)]
                np.testing.assert_allclose(each.head_added, np.linalg.norm(added, axis=-1), rtol=1e-5)
    row = np.exp(expected_pass.log_probs[0 if inspector.kind == "classifier" else 2])
    np.testing.assert_allclose(found.outcomes.probabilities, row[found.outcomes.ids], rtol=1e-5)
    lens = inspector.lens(*text_and_target, k=1).top_probabilities[:, 0 if inspector.kind == "classifier" else 2, 0]
    np.testing.assert_allclose(found.layer_probabilities, lens, rtol=1e-6)
    np.testing.assert_allclose(
        np.exp(found.logits[0] - found.logits[1]), row[found.outcomes.ids[0]] / row[found.outcomes.ids[1]], rtol=1e-4
    )


def test_block_details_equal_numpy(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    expected_pass = PatchedTransformer(inspector, inspector.read(*text_and_target))
    stack = inspector.model_map(*text_and_target).stacks[-1].name
    found = inspector.place_detail(text_and_target[0], f"{stack}.0", text_and_target[1], position=2)
    assert found.token == inspector.read(*text_and_target).sides(stack)[0][2]
    for each in found.sublayers:
        residual, name = module_names(each.part, each.layer, each.kind)
        np.testing.assert_allclose(each.before, expected_pass.before[residual][2], atol=1e-5)
        np.testing.assert_allclose(each.output, expected_pass.out[residual][2], atol=1e-5)
        if each.kind == "attention":
            weights = expected_pass.steps[name]["weights"][:, 2]
            assert list(each.head_sources) == weights.argmax(-1).tolist()
            np.testing.assert_allclose(each.head_weights, weights.max(-1), atol=1e-6)
        elif inspector.model.settings.norm_position == "pre":
            read = expected_pass.norm(f"{residual}_residual.norm", expected_pass.before[residual])[2]
            np.testing.assert_allclose(each.read, read, atol=1e-5)
            np.testing.assert_allclose(expected_pass.linear(f"{name}.down", each.hidden), each.output, atol=1e-5)
    whole = inspector.place_detail(text_and_target[0], f"{stack}.embedding", text_and_target[1], position=3)
    np.testing.assert_allclose(sum(whole.vectors[:-1]), whole.vectors[-1], atol=1e-5)


def test_output_layer_details_equal_numpy(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    expected_pass = PatchedTransformer(inspector, inspector.read(*text_and_target))
    found = inspector.place_detail(text_and_target[0], "output", text_and_target[1], position=2)
    np.testing.assert_allclose(found.vectors[0], expected_pass.last[2], atol=1e-5)
    logits = expected_pass.linear("output", found.vectors[-1][None])[0]
    np.testing.assert_allclose(found.logits, logits[found.outcomes.ids], atol=1e-4)
    assert found.log_sum == pytest.approx(np.log(np.exp(logits).sum()), abs=1e-4)


def test_places_of_a_post_norm_model_have_no_norm_that_it_lacks(make_inspector: Callable[..., Inspector]) -> None:
    classic = {"norm": {"type": "layer"}, "norm_position": "post", "embedding_norm": True, "bias": True}
    inspector = make_inspector("classify", {**classic, "positions": {"type": "learned"}})
    assert inspector.place_detail("abc", "output").names == ("stream", "pooled")
    found = inspector.place_detail("abc", "encoder.embedding", position=2)
    assert found.names == ("token", "position", "sum", "embedded")
    token, position, whole, embedded = found.vectors
    np.testing.assert_allclose(token + position, whole, atol=1e-6)
    norm = inspector.model.embedding.norm
    np.testing.assert_allclose(norm(torch.from_numpy(whole).double()).detach().numpy(), embedded, atol=1e-5)
    assert make_inspector("classify").place_detail("abc", "output").names == ("stream", "normalized", "pooled")


def test_single_row_equals_that_row_of_the_arithmetic(inspector: Inspector, text_and_target: TextAndTarget) -> None:
    whole = inspector.arithmetic(text_and_target[0], inspector.heads[-1], text_and_target[1])
    row = whole.row(3)
    assert row.queries.shape[0] == len(row.target_tokens) == 1
    np.testing.assert_allclose(row.scores[0], whole.queries[3] @ whole.keys.T, rtol=1e-12)
    np.testing.assert_array_equal(row.weights[0], whole.weights[3])
    with pytest.raises(UsageError, match="no position 99"):
        whole.row(99)


def test_unknown_places_and_positions_are_refused(make_inspector: Callable[..., Inspector]) -> None:
    inspector = make_inspector("generate")
    for place in ("decoder.9", "encoder.0", "decoder", "decoder.x"):
        with pytest.raises(UsageError, match="no place"):
            inspector.place_detail("abc", place)
    with pytest.raises(UsageError, match="no position"):
        inspector.model_map("abc", position=99)


def test_saved_page_leads_to_one_product_by_keyboard(
    make_inspector: Callable[..., Inspector], task: Task, text_and_target: TextAndTarget, open_html: Callable[..., Any]
) -> None:
    inspector = make_inspector(task)
    view = whole_model(inspector, *text_and_target)
    page = open_html(html([view], "The whole model"))
    page.set_default_timeout(20_000)
    page.wait_for_selector("main[data-ready] .pw-flowmap")
    part = inspector.heads[-1].split(".")[0]
    page.focus(".pw-flowmap")
    page.keyboard.press("End")
    found = inspector.model_map(*text_and_target)
    for _ in found.stacks[-1].tokens:
        page.keyboard.press("ArrowDown")  # down to the heads
    for _ in range(2 if part == "cross" else 1):
        page.keyboard.press("ArrowRight")
    readout = page.inner_text(".pw-model .pw-readout")
    head = readout.split()[1]
    assert readout.startswith(f"Head {part}.0.0 at")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-model-inner .pw-field")
    page.focus(".pw-model-inner .pw-field")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-row-table")
    row = inspector.arithmetic(text_and_target[0], head, text_and_target[1]).row(
        int(page.inner_text(".pw-crumbs [aria-current]").split()[1])
    )
    shown = page.locator(".pw-row-table td:nth-child(2)").all_inner_texts()
    expected = [score for score, masked in zip(row.scores[0], row.masked[0], strict=True) if np.isfinite(masked)]
    np.testing.assert_allclose([float(each.replace("−", "-")) for each in shown], expected, atol=0.006)
    page.locator(".pw-row-table button").first.click()
    page.wait_for_selector(".pw-sum")
    score = float(page.inner_text(".pw-sum >> nth=0").split()[0].replace("−", "-"))
    assert score == pytest.approx(row.scores[0, 0], rel=0.006, abs=1e-3)
    for _ in range(4):
        page.keyboard.press("Escape")
    page.wait_for_selector(".pw-flowmap:visible")
    page.reload()  # reload at the position whose circuit is in the file
    page.wait_for_selector("main[data-ready] .pw-flowmap")
    page.click("text=Circuit")
    page.wait_for_selector(".pw-path")
    assert page.locator(".pw-path").first.inner_text().startswith("Without the path from")
