"""The picture of a whole model has the numbers that a NumPy Transformer computes itself, and goes in to one product."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penwright.config import Table, Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.pages import whole_model
from penwright.views import html

from .test_circuits import Changed

Asked = tuple[str, str | None]


@pytest.fixture
def inspected(inspector: Callable[..., Inspector], task: Task, variant: Table) -> Inspector:
    return inspector(task, variant)


def module(part: str, layer: int, kind: str) -> tuple[str, str]:
    """The names of a sublayer's residual connection and module."""
    block = f"{'decoder' if part == 'cross' else part}.blocks.{layer}"
    which = "cross" if part == "cross" else kind
    return f"{block}.{which}", f"{block}.cross_attention" if part == "cross" else f"{block}.{kind}"


def test_the_overview_is_the_formulas(inspected: Inspector, asked: Asked) -> None:
    plain = Changed(inspected, inspected.read(*asked))
    found = inspected.model_map(*asked, position=2)
    assert found.position == found.stacks[-1].position == 2
    for stack in found.stacks:
        lengths = np.linalg.norm(plain.vectors[stack.name][0] + plain.vectors[stack.name][1], axis=-1)
        np.testing.assert_allclose(stack.embedded, lengths, rtol=1e-5)
        streams = [plain.before[module(each.part, each.layer, each.kind)[0]] for each in stack.sublayers[1:]]
        for each, after in zip(stack.sublayers, streams, strict=False):
            np.testing.assert_allclose(each.after, np.linalg.norm(after, axis=-1), rtol=1e-5)
        for each in stack.sublayers:
            residual, name = module(each.part, each.layer, each.kind)
            np.testing.assert_allclose(each.added, np.linalg.norm(plain.out[residual], axis=-1), rtol=1e-5)
            if each.kind == "attention":
                np.testing.assert_allclose(each.weights, plain.steps[name]["weights"][:, stack.position], atol=1e-6)
                added = [plain.head_output(name, head)[stack.position] for head in range(4)]
                np.testing.assert_allclose(each.head_added, np.linalg.norm(added, axis=-1), rtol=1e-5)
    row = np.exp(plain.log_probs[0 if inspected.shape == "classifier" else 2])
    np.testing.assert_allclose(found.outcomes.probabilities, row[found.outcomes.ids], rtol=1e-5)
    lens = inspected.lens(*asked, k=1).top_probabilities[:, 0 if inspected.shape == "classifier" else 2, 0]
    np.testing.assert_allclose(found.layer_probabilities, lens, rtol=1e-6)
    np.testing.assert_allclose(
        np.exp(found.logits[0] - found.logits[1]), row[found.outcomes.ids[0]] / row[found.outcomes.ids[1]], rtol=1e-4
    )


def test_a_block_is_the_formulas(inspected: Inspector, asked: Asked) -> None:
    plain = Changed(inspected, inspected.read(*asked))
    stack = inspected.model_map(*asked).stacks[-1].name
    found = inspected.place_detail(asked[0], f"{stack}.0", asked[1], position=2)
    assert found.token == inspected.read(*asked).sides(stack)[0][2]
    for each in found.sublayers:
        residual, name = module(each.part, each.layer, each.kind)
        np.testing.assert_allclose(each.before, plain.before[residual][2], atol=1e-5)
        np.testing.assert_allclose(each.output, plain.out[residual][2], atol=1e-5)
        if each.kind == "attention":
            weights = plain.steps[name]["weights"][:, 2]
            assert list(each.head_sources) == weights.argmax(-1).tolist()
            np.testing.assert_allclose(each.head_weights, weights.max(-1), atol=1e-6)
        elif inspected.model.settings.norm_position == "pre":
            read = plain.norm(f"{residual}_residual.norm", plain.before[residual])[2]
            np.testing.assert_allclose(each.read, read, atol=1e-5)
            np.testing.assert_allclose(plain.linear(f"{name}.down", each.hidden), each.output, atol=1e-5)
    whole = inspected.place_detail(asked[0], f"{stack}.embedding", asked[1], position=3)
    np.testing.assert_allclose(sum(whole.vectors[:-1]), whole.vectors[-1], atol=1e-5)


def test_the_output_layer_is_the_formulas(inspected: Inspector, asked: Asked) -> None:
    plain = Changed(inspected, inspected.read(*asked))
    found = inspected.place_detail(asked[0], "output", asked[1], position=2)
    np.testing.assert_allclose(found.vectors[0], plain.last[2], atol=1e-5)
    logits = plain.linear("output", found.vectors[-1][None])[0]
    np.testing.assert_allclose(found.logits, logits[found.outcomes.ids], atol=1e-4)
    assert found.log_sum == pytest.approx(np.log(np.exp(logits).sum()), abs=1e-4)


def test_one_row_of_a_head_is_that_row_of_its_arithmetic(inspected: Inspector, asked: Asked) -> None:
    whole = inspected.arithmetic(asked[0], inspected.heads[-1], asked[1])
    row = whole.row(3)
    assert row.queries.shape[0] == len(row.target_tokens) == 1
    np.testing.assert_allclose(row.scores[0], whole.queries[3] @ whole.keys.T, rtol=1e-12)
    np.testing.assert_array_equal(row.weights[0], whole.weights[3])
    with pytest.raises(UsageError, match="no position 99"):
        whole.row(99)


def test_places_that_do_not_exist_are_refused(inspector: Callable[..., Inspector]) -> None:
    look = inspector("generate")
    for place in ("decoder.9", "encoder.0", "decoder", "decoder.x"):
        with pytest.raises(UsageError, match="no place"):
            look.place_detail("abc", place)
    with pytest.raises(UsageError, match="no position"):
        look.model_map("abc", position=99)


def test_the_saved_picture_goes_in_to_one_product_with_keys(
    inspector: Callable[..., Inspector], task: Task, asked: Asked, opened: Callable[..., Any]
) -> None:
    look = inspector(task)
    view = whole_model(look, *asked)
    page = opened(html([view], "The whole model"))
    page.set_default_timeout(20_000)
    page.wait_for_selector("main[data-ready] .pw-flowmap")
    part = look.heads[-1].split(".")[0]
    page.focus(".pw-flowmap")
    page.keyboard.press("End")
    found = look.model_map(*asked)
    for _ in found.stacks[-1].tokens:
        page.keyboard.press("ArrowDown")  # to the heads
    for _ in range(2 if part == "cross" else 1):
        page.keyboard.press("ArrowRight")
    said = page.inner_text(".pw-model .pw-readout")
    head = said.split()[1]
    assert said.startswith(f"Head {part}.0.0 at")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-model-inner .pw-field")
    page.focus(".pw-model-inner .pw-field")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-row-table")
    row = look.arithmetic(asked[0], head, asked[1]).row(int(page.inner_text(".pw-crumbs [aria-current]").split()[1]))
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
    page.reload()  # back at the position whose circuit the file has
    page.wait_for_selector("main[data-ready] .pw-flowmap")
    page.click("text=Circuit")
    page.wait_for_selector(".pw-path")
    assert page.locator(".pw-path").first.inner_text().startswith("Without the path from")
