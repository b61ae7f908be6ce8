import io
import re
import warnings
from collections.abc import Callable
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import samples

from penwright.errors import PenwrightWarning, UsageError
from penwright.views import MODULES, View, ink, pictures


@pytest.mark.parametrize("name", sorted(pictures.DRAWINGS))
def test_a_view_is_saved_as_a_picture(name: str, tmp_path: Path) -> None:
    view = View(name, samples.every()[name])
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        view.save(tmp_path / f"view{ending}")
        assert (tmp_path / f"view{ending}").read_bytes().startswith(start)


def test_the_same_picture_is_the_same_file() -> None:
    assert len({pictures.render("head", samples.head(), ".svg") for _ in range(2)}) == 1


def test_words_stay_words_in_svg_whatever_they_are() -> None:
    n = len(samples.HOSTILE)
    tokens = samples.tokens(samples.HOSTILE)
    svg = pictures.render("lines", {**samples.head(n), "target_tokens": tokens, "source_tokens": tokens}, ".svg")
    text = svg.decode()
    for word in ("שלום", "مرحبا", "&lt;/script&gt;", "$x", "‹202E›", "⏎"):
        assert word in text, word


def test_a_pixel_of_the_picture_is_the_colour_of_the_weight() -> None:
    from PIL import Image

    weights = samples.head(4)
    picture = Image.open(io.BytesIO(pictures.render("head", weights, ".png"))).convert("RGB")
    found = {colour for _, colour in picture.getcolors(maxcolors=100_000)}
    assert (0x20, 0x19, 0x4B) in found, "the first token can only look at itself"


def words_of(svg: bytes) -> list[str]:
    return [unescape("".join(each)) for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())]


def test_the_picture_of_a_tree_has_each_node_with_its_nats_and_frames_what_ended() -> None:
    data = samples.beam(3, 5)
    svg = pictures.render("beam", data, ".svg")
    words = words_of(svg)
    for node in data["nodes"]:
        assert f"{node['log_prob']:.2f}".replace("-", "\N{MINUS SIGN}") in words or f"{node['log_prob']:.2f}" in words
    assert sum(word.startswith("␣") for word in words) == len(data["nodes"])
    assert svg.decode().count("stroke: #0072b2") == sum(node["final"] for node in data["nodes"])


def test_the_picture_of_the_arithmetic_has_the_numbers_of_the_last_token() -> None:
    data = samples.arithmetic(5, 16)
    words = words_of(pictures.render("arithmetic", data, ".svg"))
    expected = [*data["queries"][-1][[*range(11), 15]], *data["scores"][-1], *data["output"][-1][[0, 15]]]
    assert {f"{value:.2f}" for value in expected} <= set(words)
    assert {f"{share:.0%}" for share in data["weights"][-1]} <= set(words)
    few = words_of(pictures.render("arithmetic", samples.arithmetic(5, 4), ".svg"))
    assert "… 15" in words and not any(word.startswith("… ") for word in few)


def test_a_masked_score_is_written_as_infinite() -> None:
    data = samples.arithmetic(4, 8)
    data["masked"] = data["masked"].copy()
    data["masked"][-1, 0] = -np.inf
    assert "−∞" in words_of(pictures.render("arithmetic", data, ".svg"))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes the fonts of the machine one that has these characters, drawn as squares."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib import font_manager

    brought = [each for each in font_manager.fontManager.ttflist if "mpl-data" in each.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", brought)

    def install(characters: str) -> None:
        pen = TTGlyphPen(None)
        for x, y in ((0, 0), (0, 800), (800, 800), (800, 0)):
            (pen.lineTo if pen.points else pen.moveTo)((x, y))
        pen.closePath()
        square = pen.glyph()
        names = [".notdef", *(f"u{ord(each):04X}" for each in characters)]
        font = FontBuilder(1000)
        font.setupGlyphOrder(names)
        font.setupCharacterMap({ord(each): f"u{ord(each):04X}" for each in characters})
        font.setupGlyf(dict.fromkeys(names, square))
        font.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
        font.setupHorizontalHeader(ascent=800, descent=-200)
        font.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
        font.setupOS2(usWeightClass=400)
        font.setupPost()
        font.save(tmp_path / "squares.ttf")
        font_manager.fontManager.addfont(tmp_path / "squares.ttf")

    return install


def drawn(words: list[str], ending: str) -> bytes:
    tokens = samples.tokens(words)
    data = {**samples.head(len(words)), "target_tokens": tokens, "source_tokens": tokens}
    return pictures.render("lines", data, ending)


def test_a_font_of_the_machine_draws_what_the_first_one_lacks(only: Callable[[str], None]) -> None:
    only("你好")
    assert ink.find_fonts("a你好") == ([ink.DEFAULT_FONT, "Squares"], set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = drawn(["you", "你好"], ".png")
    assert picture != drawn(["you", "好你好"], ".png")
    assert "'DejaVu Sans', 'Squares', " in drawn(["you", "你好"], ".svg").decode()


def test_what_no_font_has_is_said_and_in_the_picture(only: Callable[[str], None]) -> None:
    from matplotlib.figure import Figure

    only("你")
    figure = Figure()
    figure.text(0, 0, "你好")
    with pytest.warns(PenwrightWarning, match=r"No font .* has U\+597D.*\.svg"):
        ink.choose_fonts(figure, stays_text=False)
    assert figure.get_supxlabel().startswith("No font on this machine has U+597D")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what stays text is drawn with the fonts of its reader
        assert "No font" not in drawn(["你", "好"], ".svg").decode()


def test_a_view_without_a_picture_says_which_have_one() -> None:
    with pytest.raises(UsageError, match=r"'importance' .*\.html.*\.svg files: ablation"):
        pictures.render("importance", {}, ".svg")


def test_pictures_have_the_colours_of_the_modules() -> None:
    colour = (MODULES / "colour.js").read_text("utf-8")
    assert ink.WEIGHTS in colour
    assert ink.SIGNED in colour
    assert all(line in colour for line in ink.LINES)
