"""Results as views: the same numbers, in pages that open by themselves."""

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

Asked = tuple[str, str | None]


def packed_in(page: str) -> list[dict[str, Any]]:
    """The views as a browser finds them in a page, with their arrays."""
    (text,) = re.findall(r'id="data">([^<]*)<', page)
    packed = zlib.decompress(base64.b64decode(text))
    first = 4 + int.from_bytes(packed[:4], "little")

    def unfold(value: Any) -> Any:
        if isinstance(value, list):
            return [unfold(each) for each in value]
        if isinstance(value, dict) and set(value) == {"shape", "dtype", "offset"}:
            kind = {"u8": np.uint8, "f32": np.float32, "i32": np.int32}[value["dtype"]]
            return np.frombuffer(packed, kind, int(np.prod(value["shape"])), first + value["offset"]).reshape(
                value["shape"]
            )
        return {key: unfold(each) for key, each in value.items()} if isinstance(value, dict) else value

    return unfold(json.loads(packed[4:first]))["views"]


def results(look: Inspector, text: str, target: str | None) -> list[Any]:
    """One of each kind that this shape of model has."""
    found = [
        look.attention(text, target),
        look.rollout(text, target)[-1],
        look.lens(text, target),
        look.attribution(text, target),
        look.ablate(text, look.heads[:2], target),
        look.arithmetic(text, look.heads[-1], target),
        look.neighbours("a"),
        look.embedding_map(),
        look.positions(),
    ]
    if look.shape == "translator":
        found.append(look.alignment(text, target))
    if look.shape == "classifier":
        found.append(look.occlusion(text))
    else:
        scores = look.token_scores(text, target)
        found += [scores, scores.next, look.loss_by_position([text], target and [target])]
    return found


def test_the_page_of_each_shape_opens_from_a_file(
    inspector: Callable[..., Inspector], task: Task, asked: Asked, opened: Callable[..., Any]
) -> None:
    page = opened(html(list(overview(inspector(task), *asked)), "A page"))
    page.wait_for_selector("main[data-ready]")
    assert page.locator("section h2").count() >= 6
    page.locator(".pw-grid button, .pw-grid [role=button]").first.click()
    assert "not why" in page.locator(".pw-caution").first.inner_text()


def test_every_result_is_a_view_that_opens_and_a_picture_where_there_is_one(
    inspector: Callable[..., Inspector], task: Task, asked: Asked, opened: Callable[..., Any], tmp_path: Path
) -> None:
    views = [view(found) for found in results(inspector(task), *asked)]
    opened(html(views, "All")).wait_for_selector("main[data-ready]")
    for each in views:
        assert "text/html" in each._repr_mimebundle_()
        if each.name in DRAWINGS:
            each.save(tmp_path / "view.png")


@pytest.mark.parametrize("text", ["", " ", "a", "\0", "🦊\u2028\ud800"])
def test_the_page_of_any_text_opens(
    inspector: Callable[..., Inspector], task: Task, text: str, opened: Callable[..., Any]
) -> None:
    views = list(overview(inspector(task), text, "" if task == "translate" else None))
    opened(html(views, "A page")).wait_for_selector("main[data-ready]")


def test_packed_numbers_are_those_of_the_inspector(
    inspector: Callable[..., Inspector], task: Task, asked: Asked
) -> None:
    look = inspector(task)
    found = {each["name"]: each["data"] for each in packed_in(html(list(overview(look, *asked))))}
    maps = {part.name: part for part in look.attention(*asked).parts}
    assert {part["name"] for part in found["attention"]["parts"]} == set(maps)
    for part in found["attention"]["parts"]:
        assert part["weights"].dtype == np.uint8
        np.testing.assert_allclose(unpack(part["weights"]), maps[part["name"]].weights, atol=0.004)
    rollout = look.rollout(*asked)[-1]  # the last of them is the last in the page
    np.testing.assert_allclose(unpack(found["rollout"]["weights"]), rollout.weights, atol=0.004)
    lens = look.lens(*asked)
    np.testing.assert_allclose(found["lens"]["top_probabilities"], lens.top_probabilities, rtol=1e-6)
    np.testing.assert_allclose(found["attribution"]["values"].sum(), look.attribution(*asked).values.sum(), rtol=1e-5)
    if task != "classify":
        np.testing.assert_allclose(found["text"]["log_probs"], look.token_scores(*asked).log_probs, rtol=1e-6)
    else:
        np.testing.assert_allclose(sum(found["labels"]["probabilities"]), 1, rtol=1e-6)


def test_crossing_rows_bear_the_token_that_is_chosen_there(inspector: Callable[..., Inspector]) -> None:
    look = inspector("translate")
    maps = look.attention("abc", "bad")
    (cross, *_) = view(maps).data["parts"]
    assert (cross.name, cross.target_tokens) == ("cross", maps.answers)
    assert view(look.rollout("abc", "bad")[-1]).data["target_tokens"] == maps.answers


def test_an_alignment_links_each_token_to_what_it_looks_at_most(inspector: Callable[..., Inspector]) -> None:
    found = inspector("translate").alignment("abc bad cab", "a bad ace")
    links = view(found).data["links"]
    strongest = {link["target"]: link for link in sorted(links, key=lambda link: link["strength"])}
    assert [strongest[place]["source"] for place in range(len(found.tokens))] == found.weights.argmax(-1).tolist()


def test_a_classifier_without_a_token_to_predict_shows_its_label(inspector: Callable[..., Inspector]) -> None:
    look = inspector("classify")
    assert view(look.lens("abc")).data["tokens"] == ("(label)",)
    assert view(look.ablate("abc", ["0.1"])).data["tokens"] == ("(label)",)


def test_what_is_no_single_result_has_no_view(inspector: Callable[..., Inspector]) -> None:
    look = inspector("generate")
    with pytest.raises(UsageError, match="view each of them"):
        view(look.rollout("abc"))
    with pytest.raises(UsageError, match="no view of HeadStatistics"):
        view(look.head_statistics("abc")[0])
    assert isinstance(view(look.rollout("abc")[0]), View)
