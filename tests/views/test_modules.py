"""What the views show and do, in a browser."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import samples

from penwright.views import View, html, notebook
from penwright.views.ink import SIGNED, WEIGHTS
from penwright.views.packing import to_root_bytes

Opened = Callable[..., Any]
LISTEN = "name => { window.heard = []; addEventListener(name, ({detail}) => window.heard.push(detail)); }"


def colours(stops: str) -> np.ndarray:
    """256 colours through the stops, as an oracle of modules/colour.js."""
    points = np.array([[int(stop[place : place + 2], 16) for place in (1, 3, 5)] for stop in stops.split()])
    at = np.linspace(0, len(points) - 1, 256)
    return np.stack([np.interp(at, np.arange(len(points)), channel) for channel in points.T], 1)


def pixel(page: Any, canvas: str, number: int, row: int, column: int) -> np.ndarray:
    script = """([canvas, number, x, y]) => {
      const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      copy.drawImage(document.querySelectorAll(canvas)[number], x, y, 1, 1, 0, 0, 1, 1);
      return [...copy.getImageData(0, 0, 1, 1).data];
    }"""
    return np.array(page.evaluate(script, [canvas, number, column, row]))


def show(opened: Opened, name: str, data: Any, scheme: str = "light", **options: Any) -> Any:
    page = opened(html([View(name, data, options)], name), scheme)
    page.wait_for_selector("main[data-ready]")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_pixel_of_the_grid_is_the_colour_of_the_weight(opened: Opened, scheme: str) -> None:
    data = samples.heads(3, 4, 20)
    page = show(opened, "attention", data, scheme)
    table = colours(WEIGHTS)[:: 1 if scheme == "light" else -1]
    weights = data["parts"][0]["weights"]
    for layer, head, row, column in ((0, 0, 5, 2), (2, 3, 19, 19), (1, 2, 7, 6)):
        found = pixel(page, "canvas", layer * 4 + head, row, column)
        np.testing.assert_allclose(found[:3], table[weights[layer, head, row, column]], atol=1)
    assert pixel(page, "canvas", 0, 2, 5)[3] == 0, "what a token may not see is left clear"


def test_a_pixel_of_signed_values_is_blue_below_and_orange_above_zero(opened: Opened) -> None:
    similarity = np.array([[1.0, -0.5], [-0.5, 1.0]])
    page = show(opened, "positions", {"similarity": similarity})
    for row, column in ((0, 0), (0, 1)):
        place = round((similarity[row, column] + 1) / 2 * 255)
        np.testing.assert_allclose(pixel(page, ".pw-field canvas", 0, row, column)[:3], colours(SIGNED)[place], atol=2)


@pytest.mark.parametrize("weights", ["bytes", "floats"])
def test_the_head_says_the_number_under_the_keys(opened: Opened, weights: str) -> None:
    data = samples.head(8)
    if weights == "bytes":
        data["weights"] = to_root_bytes(data["weights"])
    page = show(opened, "head", data)
    page.focus(".pw-field")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expected = samples.head(8)["weights"][2, 1]
    said = page.inner_text("[aria-live]")
    assert said.startswith("“␣sat” (2) attends to “␣cat” (1): ")
    assert abs(float(said.rpartition(": ")[2].rstrip(" %")) / 100 - expected) <= 0.009
    boxes = [page.locator(each).bounding_box() for each in (".pw-field", ".pw-band >> nth=0", ".pw-band >> nth=1")]
    cell = boxes[0]["width"] / 8
    assert boxes[1]["y"] - boxes[0]["y"] == 2 * cell, "the crosshair lies over the row"
    assert (boxes[2]["x"] - boxes[0]["x"], boxes[2]["y"]) == (cell, boxes[0]["y"]), "and over the column"


def test_keys_lead_from_the_grid_into_a_head_and_back(opened: Opened) -> None:
    page = show(opened, "attention", samples.heads(3, 4, 12))
    page.evaluate(LISTEN, "head-opened")
    page.focus(".pw-head-card")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("heard") == [{"part": 0, "layer": 1, "head": 1}]
    assert page.evaluate("document.activeElement.textContent") == "decoder, layer 1, head 1"
    assert page.is_hidden(".pw-grid")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "decoder, layer 1, head 1"
    assert page.is_visible(".pw-grid")


def test_layers_have_their_own_numbers_where_some_are_left_out(opened: Opened) -> None:
    data = samples.heads(2, 3, 12)
    data["parts"][0]["layers"] = (3, 7)
    page = show(opened, "attention", data)
    page.evaluate(LISTEN, "head-opened")
    page.locator(".pw-head-card").nth(4).click()
    assert page.evaluate("heard") == [{"part": 0, "layer": 7, "head": 1}]
    np.testing.assert_allclose(
        pixel(page, ".pw-field canvas", 0, 9, 4)[:3], colours(WEIGHTS)[data["parts"][0]["weights"][1, 1, 9, 4]], atol=1
    )


def test_the_grid_is_one_stop_of_the_tab_key(opened: Opened) -> None:
    page = show(opened, "heads", samples.heads(2, 3, 8))
    assert page.locator(".pw-head-card[tabindex='0']").count() == 1
    assert page.locator(".pw-head-card[tabindex='-1']").count() == 5


def test_heads_are_sorted_by_a_statistic(opened: Opened) -> None:
    data = samples.heads(3, 4, 12)
    page = show(opened, "heads", data, sort="entropy")
    entropy = data["statistics"][0]["entropy"]
    layer, head = np.unravel_index(np.argsort(-entropy.ravel()), entropy.shape)
    first = page.locator(".pw-head-card").first.get_attribute("aria-label")
    assert first.startswith(f"decoder, layer {layer[0]}, head {head[0]}, entropy")


@pytest.mark.parametrize("scores", ["seen", "read"])
def test_a_thumbnail_keeps_the_strongest_weight(opened: Opened, scores: str) -> None:
    weights = to_root_bytes(samples.attention(1, 2, 150))
    tokens = samples.text(150)
    part = {"name": "encoder", "target_tokens": tokens, "source_tokens": tokens}
    thumbs = notebook.thumbnails(weights)
    page = show(opened, "heads", {"parts": [part | ({"weights": weights} if scores == "seen" else {"thumbs": thumbs})]})
    for row, column in ((0, 0), (63, 63), (30, 29)):
        inside = [np.arange(150) * 64 // 150 == place for place in (row, column)]
        strongest = weights[0, 1][inside[0]][:, inside[1]].max()
        assert thumbs[0, 1, row, column] == strongest
        np.testing.assert_allclose(pixel(page, "canvas", 1, row, column)[:3], colours(WEIGHTS)[strongest], atol=1)


def test_lines_of_several_tokens_are_summed(opened: Opened) -> None:
    data = samples.head(6)
    page = show(opened, "lines", data)
    page.click(".pw-from .pw-word >> nth=3")
    page.click(".pw-from .pw-word >> nth=5", modifiers=["Shift"])
    sums = data["weights"][[3, 5]].sum(0)
    said = page.inner_text(".pw-readout")
    assert said.startswith("“␣on” + “␣mat”: ")
    assert f"{100 * sums.max():.0f} %" in said
    page.keyboard.press("Escape")
    assert page.locator(".pw-word[aria-pressed='true']").count() == 0


def test_a_token_shows_its_alternatives_and_one_can_be_chosen_by_its_digit(opened: Opened) -> None:
    data = samples.scores(12, given=2)
    page = show(opened, "text", data)
    page.evaluate(LISTEN, "alternative-chosen")
    page.focus(".pw-token")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("3")
    assert page.evaluate("heard") == [{"place": 4, "number": 2, "text": data["alternatives"][2][2]["text"]}]
    assert f"{-data['log_probs'][2]:.3g} nats" in page.inner_text(".pw-panel")
    assert page.locator(".pw-panel tbody tr").count() == 10


def test_the_lens_names_the_probability_of_what_followed(opened: Opened) -> None:
    data = samples.lens(3, 60)
    page = show(opened, "lens", data)
    assert page.locator(".pw-lens-table td").count() == 4 * 48, "as many positions as are legible"
    page.hover("td[data-layer='2'][data-position='7']")
    assert f"{100 * data['true_probabilities'][2, 7]:.0f} %" in page.inner_text(".pw-panel")


def test_search_finds_a_token_on_the_map(opened: Opened) -> None:
    data = samples.embeddings(200)
    page = show(opened, "embeddings", data)
    page.evaluate(LISTEN, "token-chosen")
    page.fill("input[type=search]", data["labels"][77])
    page.click(".pw-found button")
    assert page.evaluate("heard") == [{"place": 77, "id": 77, "text": data["labels"][77]}]


def test_the_arithmetic_of_every_step_is_written_out(opened: Opened) -> None:
    data = samples.arithmetic(4, 8)
    page = show(opened, "arithmetic", data, target=1)
    cells = page.locator(".pw-steps li:nth-child(3) td").all_inner_texts()
    expected = [f"{data[name][1, source]:.2f}" for source in range(2) for name in ("scores", "scaled", "masked")]
    assert [cell.replace("−", "-") for cell in cells[:6]] == expected
    assert cells[8] == "−∞"
    total = page.locator(".pw-steps li:last-child td").all_inner_texts()
    assert [cell.replace("−", "-") for cell in total] == [f"{value:.2f}" for value in data["output"][1]]


def test_the_way_to_a_node_of_the_beam_is_its_text(opened: Opened) -> None:
    data = samples.beam()
    page = show(opened, "beam", data)
    page.evaluate(LISTEN, "node-chosen")
    final = next(node for node in data["nodes"] if node["final"])
    way = [final]
    while way[0]["parent"] is not None:
        way.insert(0, data["nodes"][way[0]["parent"]])
    page.locator(".pw-node").nth(final["id"]).click()
    assert page.evaluate("heard") == [{"id": final["id"], "text": "".join(node["token"] for node in way)}]
    assert page.locator(".pw-node.pw-way").count() == len(way)


def test_curves_say_the_values_at_a_place_and_leave_out_what_has_no_logarithm(opened: Opened) -> None:
    runs = [{"name": "a", "x": [0, 1, 10, 100], "y": [8.0, 4.0, np.nan, 2.0]}]
    page = show(opened, "curves", {"runs": runs, "x_label": "step"}, log_x=True, log_y=True)
    page.focus(".pw-plot")
    for _ in range(200):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".pw-keys") == "a 2"


def test_update_draws_anew_and_destroy_leaves_nothing(opened: Opened) -> None:
    source = html([View("labels", samples.every()["labels"])], "labels").replace(
        "module_start.start({ labels: module_labels.draw });", ""
    )
    policy = source.index("<meta http-equiv"), source.index(">", source.index("script-src")) + 1
    page = opened(source[: policy[0]] + source[policy[1] :])
    script = """() => {
      const handle = module_labels.draw(document.body, { labels: ["a", "b"], probabilities: [0.4, 0.6] });
      handle.update({ labels: ["c"], probabilities: [1] });
      const shown = document.querySelector(".pw-labels").innerText;
      handle.destroy();
      return [shown, document.querySelectorAll(".pw-labels").length];
    }"""
    shown, left = page.evaluate(script)
    assert "c" in shown
    assert "a" not in shown.split("\n")[-1]
    assert left == 0


def test_candidates_are_ordered_by_the_number_shown_last(opened: Opened) -> None:
    before = [{"text": text, "id": at, "probability": p} for at, (text, p) in enumerate((("a", 0.5), ("b", 0.3)))]
    after = [{**before[0], "probability": 0.4}, {**before[1], "probability": 0.6}]
    page = show(opened, "candidates", {"before": before, "after": after, "entropy": 2.1972})
    assert page.locator(".pw-bars tbody th").all_inner_texts() == ["b", "a"]
    assert "as unsure as if choosing between 9 tokens" in page.inner_text(".pw-note")


def test_the_last_column_of_a_confusion_matrix_stays_in_view(opened: Opened) -> None:
    names = [f"a label with a long name {number}" for number in range(14)]
    source = html([View("confusion", {"labels": names, "counts": np.eye(14)})], "confusion")
    page = opened(source, "light", 390, 844)
    page.wait_for_selector("main[data-ready] table")
    frame, cell = (page.locator(each).last.bounding_box() for each in (".pw-scroll", "tbody td:last-child"))
    assert cell["x"] + cell["width"] <= frame["x"] + frame["width"] + 1


def test_a_confusion_matrix_of_eight_labels_fits_a_phone(opened: Opened) -> None:
    names = ["business", "culture", "food", "politics", "science", "sport", "travel", "weather"]
    page = opened(html([View("confusion", {"labels": names, "counts": np.eye(8)})], "confusion"), "light", 390, 844)
    page.wait_for_selector("main[data-ready] table")
    assert page.evaluate("(frame => frame.scrollWidth <= frame.clientWidth)(document.querySelector('.pw-scroll'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_model_of_many_layers_and_tokens_is_drawn_and_says_its_numbers(opened: Opened, scheme: str) -> None:
    data = samples.model_map(256, 12, 12)
    page = show(opened, "model", {"map": data, "pieces": {}, "circuit": None}, scheme)
    assert page.locator(".pw-model *").count() < 400, "the picture has few nodes, whatever the size of the model"
    page.focus(".pw-flowmap")
    page.keyboard.press("ArrowRight")
    added = data["stacks"][0]["sublayers"][0]["added"][255]
    assert f"adds a vector of length {added:.3g}" in page.inner_text(".pw-readout")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-readout:has-text('does not contain')")


def test_an_attention_head_is_opened_from_the_parts(opened: Opened) -> None:
    block = samples.place()
    page = show(opened, "place", block)
    page.evaluate(LISTEN, "head-chosen")
    page.locator(".pw-head-box").nth(1).click()
    assert page.evaluate("heard") == [{"head": "decoder.0.1"}]
    page.locator(".pw-strip").first.focus()
    page.keyboard.press("ArrowRight")
    said = page.inner_text(".pw-place .pw-readout")
    assert said.startswith("stream before the block, number 1 of 16: ")
    assert float(said.rpartition(" ")[2].replace("−", "-")) == pytest.approx(
        block["sublayers"][0]["before"][1], rel=6e-3
    )
