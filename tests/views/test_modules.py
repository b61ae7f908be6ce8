"""Content and interaction of the views, in a browser."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import samples

from penwright.views import View, html, notebook
from penwright.views.ink import SIGNED, WEIGHTS
from penwright.views.packing import to_root_bytes

OpenHtml = Callable[..., Any]
LISTEN = "name => { window.heard = []; addEventListener(name, ({detail}) => window.heard.push(detail)); }"


def colours(stops: str) -> np.ndarray:
    """Return 256 colours interpolated between the stops, as the reference for modules/colour.js."""
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


def open_view(open_html: OpenHtml, name: str, data: Any, scheme: str = "light", **options: Any) -> Any:
    page = open_html(html([View(name, data, options)], name), scheme)
    page.wait_for_selector("main[data-ready]")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_grid_pixel_has_the_colour_of_its_weight(open_html: OpenHtml, scheme: str) -> None:
    data = samples.heads(3, 4, 20)
    page = open_view(open_html, "attention", data, scheme)
    table = colours(WEIGHTS)[:: 1 if scheme == "light" else -1]
    weights = data["parts"][0]["weights"]
    for layer, head, row, column in ((0, 0, 5, 2), (2, 3, 19, 19), (1, 2, 7, 6)):
        found = pixel(page, "canvas", layer * 4 + head, row, column)
        np.testing.assert_allclose(found[:3], table[weights[layer, head, row, column]], atol=1)
    assert pixel(page, "canvas", 0, 2, 5)[3] == 0, "masked positions are transparent"


def test_signed_pixel_has_the_colour_of_its_value(open_html: OpenHtml) -> None:
    similarity = np.array([[1.0, -0.5], [-0.5, 1.0]])
    page = open_view(open_html, "positions", {"similarity": similarity})
    for row, column in ((0, 0), (0, 1)):
        place = round((similarity[row, column] + 1) / 2 * 255)
        np.testing.assert_allclose(pixel(page, ".pw-field canvas", 0, row, column)[:3], colours(SIGNED)[place], atol=2)


@pytest.mark.parametrize("weights", ["bytes", "floats"])
def test_head_readout_follows_the_keyboard(open_html: OpenHtml, weights: str) -> None:
    data = samples.head(8)
    if weights == "bytes":
        data["weights"] = to_root_bytes(data["weights"])
    page = open_view(open_html, "head", data)
    page.focus(".pw-field")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expected = samples.head(8)["weights"][2, 1]
    readout = page.inner_text("[aria-live]")
    assert readout.startswith("“␣sat” (2) attends to “␣cat” (1): ")
    assert abs(float(readout.rpartition(": ")[2].rstrip(" %")) / 100 - expected) <= 0.009
    boxes = [page.locator(each).bounding_box() for each in (".pw-field", ".pw-band >> nth=0", ".pw-band >> nth=1")]
    cell = boxes[0]["width"] / 8
    assert boxes[1]["y"] - boxes[0]["y"] == 2 * cell, "the horizontal band covers the row"
    assert (boxes[2]["x"] - boxes[0]["x"], boxes[2]["y"]) == (cell, boxes[0]["y"]), (
        "the vertical band covers the column"
    )


def test_keyboard_opens_a_head_and_returns_to_the_grid(open_html: OpenHtml) -> None:
    page = open_view(open_html, "attention", samples.heads(3, 4, 12))
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


def test_selected_layers_keep_their_numbers(open_html: OpenHtml) -> None:
    data = samples.heads(2, 3, 12)
    data["parts"][0]["layers"] = (3, 7)
    page = open_view(open_html, "attention", data)
    page.evaluate(LISTEN, "head-opened")
    page.locator(".pw-head-card").nth(4).click()
    assert page.evaluate("heard") == [{"part": 0, "layer": 7, "head": 1}]
    np.testing.assert_allclose(
        pixel(page, ".pw-field canvas", 0, 9, 4)[:3], colours(WEIGHTS)[data["parts"][0]["weights"][1, 1, 9, 4]], atol=1
    )


def test_grid_is_a_single_tab_stop(open_html: OpenHtml) -> None:
    page = open_view(open_html, "heads", samples.heads(2, 3, 8))
    assert page.locator(".pw-head-card[tabindex='0']").count() == 1
    assert page.locator(".pw-head-card[tabindex='-1']").count() == 5


def test_heads_can_be_sorted_by_a_statistic(open_html: OpenHtml) -> None:
    data = samples.heads(3, 4, 12)
    page = open_view(open_html, "heads", data, sort="entropy")
    entropy = data["statistics"][0]["entropy"]
    layer, head = np.unravel_index(np.argsort(-entropy.ravel()), entropy.shape)
    first = page.locator(".pw-head-card").first.get_attribute("aria-label")
    assert first.startswith(f"decoder, layer {layer[0]}, head {head[0]}, entropy")


@pytest.mark.parametrize("scores", ["seen", "read"])
def test_thumbnail_pixel_is_the_maximum_weight(open_html: OpenHtml, scores: str) -> None:
    weights = to_root_bytes(samples.attention(1, 2, 150))
    tokens = samples.text(150)
    part = {"name": "encoder", "target_tokens": tokens, "source_tokens": tokens}
    thumbs = notebook.thumbnails(weights)
    page = open_view(
        open_html, "heads", {"parts": [part | ({"weights": weights} if scores == "seen" else {"thumbs": thumbs})]}
    )
    for row, column in ((0, 0), (63, 63), (30, 29)):
        inside = [np.arange(150) * 64 // 150 == place for place in (row, column)]
        strongest = weights[0, 1][inside[0]][:, inside[1]].max()
        assert thumbs[0, 1, row, column] == strongest
        np.testing.assert_allclose(pixel(page, "canvas", 1, row, column)[:3], colours(WEIGHTS)[strongest], atol=1)


def test_attention_of_selected_tokens_is_summed(open_html: OpenHtml) -> None:
    data = samples.head(6)
    page = open_view(open_html, "lines", data)
    page.click(".pw-from .pw-word >> nth=3")
    page.click(".pw-from .pw-word >> nth=5", modifiers=["Shift"])
    sums = data["weights"][[3, 5]].sum(0)
    readout = page.inner_text(".pw-readout")
    assert readout.startswith("“␣on” + “␣mat”: ")
    assert f"{100 * sums.max():.0f} %" in readout
    page.keyboard.press("Escape")
    assert page.locator(".pw-word[aria-pressed='true']").count() == 0


def test_alternative_token_is_chosen_by_its_digit(open_html: OpenHtml) -> None:
    data = samples.scores(12, given=2)
    page = open_view(open_html, "text", data)
    page.evaluate(LISTEN, "alternative-chosen")
    page.focus(".pw-token")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("3")
    assert page.evaluate("heard") == [{"place": 4, "number": 2, "text": data["alternatives"][2][2]["text"]}]
    assert f"{-data['log_probs'][2]:.3g} nats" in page.inner_text(".pw-panel")
    assert page.locator(".pw-panel tbody tr").count() == 10


def test_lens_shows_the_probability_of_the_true_token(open_html: OpenHtml) -> None:
    data = samples.lens(3, 60)
    page = open_view(open_html, "lens", data)
    assert page.locator(".pw-lens-table td").count() == 4 * 48, "as many positions as fit legibly"
    page.hover("td[data-layer='2'][data-position='7']")
    assert f"{100 * data['true_probabilities'][2, 7]:.0f} %" in page.inner_text(".pw-panel")


def test_search_finds_a_token_on_the_embedding_map(open_html: OpenHtml) -> None:
    data = samples.embeddings(200)
    page = open_view(open_html, "embeddings", data)
    page.evaluate(LISTEN, "token-chosen")
    page.fill("input[type=search]", data["labels"][77])
    page.click(".pw-found button")
    assert page.evaluate("heard") == [{"place": 77, "id": 77, "text": data["labels"][77]}]


def test_arithmetic_shows_the_numbers_of_every_step(open_html: OpenHtml) -> None:
    data = samples.arithmetic(4, 8)
    page = open_view(open_html, "arithmetic", data, target=1)
    cells = page.locator(".pw-steps li:nth-child(3) td").all_inner_texts()
    expected = [f"{data[name][1, source]:.2f}" for source in range(2) for name in ("scores", "scaled", "masked")]
    assert [cell.replace("−", "-") for cell in cells[:6]] == expected
    assert cells[8] == "−∞"
    total = page.locator(".pw-steps li:last-child td").all_inner_texts()
    assert [cell.replace("−", "-") for cell in total] == [f"{value:.2f}" for value in data["output"][1]]


def test_choosing_a_beam_node_gives_the_text_of_its_path(open_html: OpenHtml) -> None:
    data = samples.beam()
    page = open_view(open_html, "beam", data)
    page.evaluate(LISTEN, "node-chosen")
    final = next(node for node in data["nodes"] if node["final"])
    way = [final]
    while way[0]["parent"] is not None:
        way.insert(0, data["nodes"][way[0]["parent"]])
    page.locator(".pw-node").nth(final["id"]).click()
    assert page.evaluate("heard") == [{"id": final["id"], "text": "".join(node["token"] for node in way)}]
    assert page.locator(".pw-node.pw-way").count() == len(way)


def test_curve_readout_skips_points_without_a_logarithm(open_html: OpenHtml) -> None:
    runs = [{"name": "a", "x": [0, 1, 10, 100], "y": [8.0, 4.0, np.nan, 2.0]}]
    page = open_view(open_html, "curves", {"runs": runs, "x_label": "step"}, log_x=True, log_y=True)
    page.focus(".pw-plot")
    for _ in range(200):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".pw-keys") == "a 2"


def test_update_redraws_and_destroy_removes_the_view(open_html: OpenHtml) -> None:
    source = html([View("labels", samples.data_of_each_view()["labels"])], "labels").replace(
        "module_start.start({ labels: module_labels.draw });", ""
    )
    policy = source.index("<meta http-equiv"), source.index(">", source.index("script-src")) + 1
    page = open_html(source[: policy[0]] + source[policy[1] :])
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


def test_candidates_are_sorted_by_their_final_probability(open_html: OpenHtml) -> None:
    before = [{"text": text, "id": at, "probability": p} for at, (text, p) in enumerate((("a", 0.5), ("b", 0.3)))]
    after = [{**before[0], "probability": 0.4}, {**before[1], "probability": 0.6}]
    page = open_view(open_html, "candidates", {"before": before, "after": after, "entropy": 2.1972})
    assert page.locator(".pw-bars tbody th").all_inner_texts() == ["b", "a"]
    assert "as unsure as if choosing between 9 tokens" in page.inner_text(".pw-note")


def test_last_column_of_a_confusion_matrix_stays_visible(open_html: OpenHtml) -> None:
    names = [f"a label with a long name {number}" for number in range(14)]
    source = html([View("confusion", {"labels": names, "counts": np.eye(14)})], "confusion")
    page = open_html(source, "light", 390, 844)
    page.wait_for_selector("main[data-ready] table")
    frame, cell = (page.locator(each).last.bounding_box() for each in (".pw-scroll", "tbody td:last-child"))
    assert cell["x"] + cell["width"] <= frame["x"] + frame["width"] + 1


def test_confusion_matrix_of_eight_labels_fits_a_phone(open_html: OpenHtml) -> None:
    names = ["business", "culture", "food", "politics", "science", "sport", "travel", "weather"]
    page = open_html(html([View("confusion", {"labels": names, "counts": np.eye(8)})], "confusion"), "light", 390, 844)
    page.wait_for_selector("main[data-ready] table")
    assert page.evaluate("(frame => frame.scrollWidth <= frame.clientWidth)(document.querySelector('.pw-scroll'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_large_model_map_has_few_nodes_and_a_readout(open_html: OpenHtml, scheme: str) -> None:
    data = samples.model_map(256, 12, 12)
    page = open_view(open_html, "model", {"map": data, "pieces": {}, "circuit": None}, scheme)
    assert page.locator(".pw-model *").count() < 400, "the number of DOM nodes must not grow with the model"
    page.focus(".pw-flowmap")
    page.keyboard.press("ArrowRight")
    added = data["stacks"][0]["sublayers"][0]["added"][255]
    assert f"adds a vector of length {added:.3g}" in page.inner_text(".pw-readout")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-readout:has-text('does not contain')")


FRAMES = (
    "new Promise((done) => { let n = 6; const next = () => (n-- ? requestAnimationFrame(next) : done()); next(); })"
)


def test_numbers_above_the_line_do_not_overlap(open_html: OpenHtml) -> None:
    page = open_view(open_html, "model", {"map": samples.model_map(64, 6, 4), "pieces": {}, "circuit": None})
    page.evaluate(
        """() => {
          globalThis.drawn = [];
          for (const { prototype } of [CanvasRenderingContext2D, OffscreenCanvasRenderingContext2D]) {
            const { fillText } = prototype;
            prototype.fillText = function (text, x, y) {
              drawn.push([text, x, this.measureText(text).width]);
              fillText.call(this, text, x, y);
            };
          }
        }"""
    )
    most = 0
    for width in range(800, 1600, 60):
        page.evaluate("drawn.length = 0")
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(FRAMES)
        found = sorted((x, wide) for text, x, wide in page.evaluate("drawn") if text.startswith("+"))
        most = max(most, len(found))
        assert all(b[0] - a[0] >= (a[1] + b[1]) / 2 for a, b in pairwise(found)), width
    assert most == 12, "one number for each sublayer, where there is room"


def test_block_view_opens_a_head_and_reads_out_values(open_html: OpenHtml) -> None:
    block = samples.place()
    page = open_view(open_html, "place", block)
    page.evaluate(LISTEN, "head-chosen")
    page.locator(".pw-head-box").nth(1).click()
    assert page.evaluate("heard") == [{"head": "decoder.0.1"}]
    page.locator(".pw-strip").first.focus()
    page.keyboard.press("ArrowRight")
    readout = page.inner_text(".pw-place .pw-readout")
    assert readout.startswith("stream before the block, number 1 of 16: ")
    assert float(readout.rpartition(" ")[2].replace("−", "-")) == pytest.approx(
        block["sublayers"][0]["before"][1], rel=6e-3
    )


def test_block_is_described_as_the_model_computes_it(open_html: OpenHtml) -> None:
    block = samples.place()
    arrows = open_view(open_html, "place", block).locator(".pw-flow-arrow").all_inner_texts()
    assert arrows[0] == "↓ normalized, to every head"
    assert not any("and normalized" in each for each in arrows)
    post_norm = {**block, "sublayers": [{**each, "read": each["before"]} for each in block["sublayers"]]}
    arrows = open_view(open_html, "place", post_norm).locator(".pw-flow-arrow").all_inner_texts()
    assert arrows[0] == "↓ to every head"
    assert arrows[2].startswith("↓ added to the stream and normalized: the length changes")


def test_embedding_is_described_as_the_model_computes_it(open_html: OpenHtml) -> None:
    names = ["token", "position", "sum", "embedded"]
    vectors = [np.ones(8, np.float32)] * 4
    data = {**samples.place(), "place": "encoder.embedding", "names": names, "vectors": vectors, "sublayers": []}
    page = open_view(open_html, "place", data)
    assert [each[2:] for each in page.locator(".pw-flow-arrow").all_inner_texts()[1:]] == [
        "+ the vector of its position",
        "=",
        "normalized",
    ]
