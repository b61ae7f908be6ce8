"""Views of inspection results: pages that open and have the inspector's numbers."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penwright.config import Task
from penwright.errors import UsageError
from penwright.inspection import Inspector, overview, view
from penwright.inspection.attention_maps import unpack
from penwright.views import View, html
from penwright.views.pictures import DRAWINGS

TextAndTarget = tuple[str, str | None]


def unpacked_views(page: str) -> list[dict[str, Any]]:
    """Return the views of a page as a browser unpacks them, with their arrays."""
    (text,) = re.findall(r'id="data">([^<]*)<', page)
    packed = zlib.decompress(base64.b64decode(text))
    first = 4 + int.from_bytes(packed[:4], "little")

    def restore_arrays(value: Any) -> Any:
        if isinstance(value, list):
            return [restore_arrays(each) for each in value]
        if isinstance(value, dict) and set(value) == {"shape", "dtype", "offset"}:
            kind = {"u8": np.uint8, "f32": np.float32, "i32": np.int32}[value["dtype"]]
            return np.frombuffer(packed, kind, int(np.prod(value["shape"])), first + value["offset"]).reshape(
                value["shape"]
            )
        return {key: restore_arrays(each) for key, each in value.items()} if isinstance(value, dict) else value

    return restore_arrays(json.loads(packed[4:first]))["views"]


def results_of_each_kind(inspector: Inspector, text: str, target: str | None) -> list[Any]:
    """Return one result of each kind that this kind of model has."""
    found = [
        inspector.attention(text, target),
        inspector.rollout(text, target)[-1],
        inspector.lens(text, target),
        inspector.attribution(text, target),
        inspector.ablate(text, inspector.heads[:2], target),
        inspector.arithmetic(text, inspector.heads[-1], target),
        inspector.neighbours("a"),
        inspector.embedding_map(),
        inspector.positions(),
    ]
    if inspector.kind == "translator":
        found.append(inspector.alignment(text, target))
    if inspector.kind == "classifier":
        found.append(inspector.occlusion(text))
    else:
        scores = inspector.token_scores(text, target)
        found += [scores, scores.next, inspector.loss_by_position([text], target and [target])]
    return found


def test_overview_page_of_each_task_opens_from_a_file(
    make_inspector: Callable[..., Inspector], task: Task, text_and_target: TextAndTarget, open_html: Callable[..., Any]
) -> None:
    page = open_html(html(list(overview(make_inspector(task), *text_and_target)), "A page"))
    page.wait_for_selector("main[data-ready]")
    assert page.locator("section h2").count() >= 6
    page.locator(".pw-grid button, .pw-grid [role=button]").first.click()
    assert "not why" in page.locator(".pw-caution").first.inner_text()


def test_every_result_has_a_view_that_opens_and_can_be_saved(
    make_inspector: Callable[..., Inspector],
    task: Task,
    text_and_target: TextAndTarget,
    open_html: Callable[..., Any],
    tmp_path: Path,
) -> None:
    views = [view(found) for found in results_of_each_kind(make_inspector(task), *text_and_target)]
    open_html(html(views, "All")).wait_for_selector("main[data-ready]")
    for each in views:
        assert "text/html" in each._repr_mimebundle_()
        if each.name in DRAWINGS:
            each.save(tmp_path / "view.png")


@pytest.mark.parametrize("text", ["", " ", "a", "\0", "🦊\u2028\ud800"])
def test_overview_page_of_any_text_opens(
    make_inspector: Callable[..., Inspector], task: Task, text: str, open_html: Callable[..., Any]
) -> None:
    views = list(overview(make_inspector(task), text, "" if task == "translate" else None))
    open_html(html(views, "A page")).wait_for_selector("main[data-ready]")


def test_packed_numbers_equal_the_inspectors(
    make_inspector: Callable[..., Inspector], task: Task, text_and_target: TextAndTarget
) -> None:
    inspector = make_inspector(task)
    found = {each["name"]: each["data"] for each in unpacked_views(html(list(overview(inspector, *text_and_target))))}
    maps = {part.name: part for part in inspector.attention(*text_and_target).parts}
    assert {part["name"] for part in found["attention"]["parts"]} == set(maps)
    for part in found["attention"]["parts"]:
        assert part["weights"].dtype == np.uint8
        np.testing.assert_allclose(unpack(part["weights"]), maps[part["name"]].weights, atol=0.004)
    rollout = inspector.rollout(*text_and_target)[-1]  # the page shows the last one
    np.testing.assert_allclose(unpack(found["rollout"]["weights"]), rollout.weights, atol=0.004)
    lens = inspector.lens(*text_and_target)
    np.testing.assert_allclose(found["lens"]["top_probabilities"], lens.top_probabilities, rtol=1e-6)
    np.testing.assert_allclose(
        found["attribution"]["values"].sum(), inspector.attribution(*text_and_target).values.sum(), rtol=1e-5
    )
    if task != "classify":
        np.testing.assert_allclose(
            found["text"]["log_probs"], inspector.token_scores(*text_and_target).log_probs, rtol=1e-6
        )
    else:
        np.testing.assert_allclose(sum(found["labels"]["probabilities"]), 1, rtol=1e-6)


def test_cross_attention_rows_are_labelled_with_predicted_tokens(make_inspector: Callable[..., Inspector]) -> None:
    inspector = make_inspector("translate")
    maps = inspector.attention("abc", "bad")
    (cross, *_) = view(maps).data["parts"]
    assert (cross.name, cross.target_tokens) == ("cross", maps.answers)
    assert view(inspector.rollout("abc", "bad")[-1]).data["target_tokens"] == maps.answers


def test_alignment_links_each_token_to_its_strongest_source(make_inspector: Callable[..., Inspector]) -> None:
    found = make_inspector("translate").alignment("abc bad cab", "a bad ace")
    links = view(found).data["links"]
    strongest = {link["target"]: link for link in sorted(links, key=lambda link: link["strength"])}
    assert [strongest[place]["source"] for place in range(len(found.tokens))] == found.weights.argmax(-1).tolist()


def test_classifier_views_show_the_label_as_the_token(make_inspector: Callable[..., Inspector]) -> None:
    inspector = make_inspector("classify")
    assert view(inspector.lens("abc")).data["tokens"] == ("(label)",)
    assert view(inspector.ablate("abc", ["0.1"])).data["tokens"] == ("(label)",)


def test_values_that_are_not_single_results_have_no_view(make_inspector: Callable[..., Inspector]) -> None:
    inspector = make_inspector("generate")
    with pytest.raises(UsageError, match="view each one separately"):
        view(inspector.rollout("abc"))
    with pytest.raises(UsageError, match="no view of HeadStatistics"):
        view(inspector.head_statistics("abc")[0])
    assert isinstance(view(inspector.rollout("abc")[0]), View)
