import io
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import samples

from penwright.errors import UsageError
from penwright.views import MODULES, View, ink, pictures


@pytest.mark.parametrize("name", sorted(pictures.DRAWINGS))
def test_a_view_is_saved_as_a_picture(name: str, tmp_path: Path) -> None:
    view = View(name, samples.every()[name])
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        view.save(tmp_path / f"view{ending}")
        assert (tmp_path / f"view{ending}").read_bytes().startswith(start)


def test_the_same_picture_is_the_same_file() -> None:
    assert len({pictures.picture("head", samples.head(), ".svg") for _ in range(2)}) == 1


def test_words_stay_words_in_svg_whatever_they_are() -> None:
    n = len(samples.HOSTILE)
    tokens = samples.tokens(samples.HOSTILE)
    svg = pictures.picture("lines", {**samples.head(n), "target_tokens": tokens, "source_tokens": tokens}, ".svg")
    text = svg.decode()
    for word in ("שלום", "مرحبا", "&lt;/script&gt;", "$x", "‹202E›", "⏎"):
        assert word in text, word


def test_a_pixel_of_the_picture_is_the_colour_of_the_weight() -> None:
    from PIL import Image

    weights = samples.head(4)
    picture = Image.open(io.BytesIO(pictures.picture("head", weights, ".png"))).convert("RGB")
    found = {colour for _, colour in picture.getcolors(maxcolors=100_000)}
    assert (0x20, 0x19, 0x4B) in found, "the first token can only look at itself"


def words_of(svg: bytes) -> list[str]:
    return [unescape("".join(each)) for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())]


def test_the_picture_of_a_tree_has_each_node_with_its_nats_and_frames_what_ended() -> None:
    data = samples.beam(3, 5)
    svg = pictures.picture("beam", data, ".svg")
    words = words_of(svg)
    for node in data["nodes"]:
        assert f"{node['log_prob']:.2f}".replace("-", "\N{MINUS SIGN}") in words or f"{node['log_prob']:.2f}" in words
    assert sum(word.startswith("␣") for word in words) == len(data["nodes"])
    assert svg.decode().count("stroke: #0072b2") == sum(node["final"] for node in data["nodes"])


def test_the_picture_of_the_arithmetic_has_the_numbers_of_the_last_token() -> None:
    data = samples.arithmetic(5, 16)
    words = words_of(pictures.picture("arithmetic", data, ".svg"))
    expected = [*data["queries"][-1][[*range(11), 15]], *data["scores"][-1], *data["output"][-1][[0, 15]]]
    assert {f"{value:.2f}" for value in expected} <= set(words)
    assert {f"{share:.0%}" for share in data["weights"][-1]} <= set(words)
    few = words_of(pictures.picture("arithmetic", samples.arithmetic(5, 4), ".svg"))
    assert "… 15" in words and not any(word.startswith("… ") for word in few)


def test_a_masked_score_is_written_as_infinite() -> None:
    data = samples.arithmetic(4, 8)
    data["masked"] = data["masked"].copy()
    data["masked"][-1, 0] = -np.inf
    assert "−∞" in words_of(pictures.picture("arithmetic", data, ".svg"))


def test_a_view_without_a_picture_says_which_have_one() -> None:
    with pytest.raises(UsageError, match=r"'importance' is only for \.html; as \.svg there are: ablation"):
        pictures.picture("importance", {}, ".svg")


def test_pictures_have_the_colours_of_the_modules() -> None:
    colour = (MODULES / "colour.js").read_text("utf-8")
    assert ink.WEIGHTS in colour
    assert ink.SIGNED in colour
    assert all(line in colour for line in ink.LINES)
