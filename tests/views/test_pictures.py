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
def test_view_is_saved_as_svg_and_png(name: str, tmp_path: Path) -> None:
    view = View(name, samples.data_of_each_view()[name])
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        view.save(tmp_path / f"view{ending}")
        assert (tmp_path / f"view{ending}").read_bytes().startswith(start)


def test_picture_of_a_long_text_is_coarser_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS_ALONG", 3000)  # a shorter text for the test

    def text(n: int) -> dict[str, object]:
        return {"tokens": samples.text(1) * n, "log_probs": -np.ones(n)}

    from PIL import Image

    picture = Image.open(io.BytesIO(pictures.render("text", text(100), ".png")))
    assert max(picture.size) == 3000
    with pytest.raises(UsageError, match=r"too large for a \.png"):
        pictures.render("text", text(300), ".png")


def test_rendering_is_deterministic() -> None:
    assert len({pictures.render("head", samples.head(), ".svg") for _ in range(2)}) == 1


def test_svg_keeps_any_text_as_text() -> None:
    n = len(samples.HOSTILE)
    tokens = samples.tokens(samples.HOSTILE)
    svg = pictures.render("lines", {**samples.head(n), "target_tokens": tokens, "source_tokens": tokens}, ".svg")
    text = svg.decode()
    for word in ("שלום", "مرحبا", "&lt;/script&gt;", "$x", "‹202E›", "⏎"):
        assert word in text, word


def test_picture_of_a_long_lens_says_what_it_shows() -> None:
    short, long = (pictures.render("lens", samples.lens(1, n), ".svg").decode() for n in (24, 25))
    assert "the first 24 of 25 positions" in long and "positions" not in short


def test_picture_contains_the_colour_of_weight_one() -> None:
    from PIL import Image

    weights = samples.head(4)
    picture = Image.open(io.BytesIO(pictures.render("head", weights, ".png"))).convert("RGB")
    found = {colour for _, colour in picture.getcolors(maxcolors=100_000)}
    assert (0x20, 0x19, 0x4B) in found, "the first token attends only to itself"


def svg_words(svg: bytes) -> list[str]:
    return [unescape("".join(each)) for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())]


def test_beam_picture_shows_every_node_and_marks_final_ones() -> None:
    data = samples.beam(3, 5)
    svg = pictures.render("beam", data, ".svg")
    words = svg_words(svg)
    for node in data["nodes"]:
        assert f"{node['log_prob']:.2f}".replace("-", "\N{MINUS SIGN}") in words or f"{node['log_prob']:.2f}" in words
    assert sum(word.startswith("␣") for word in words) == len(data["nodes"])
    assert svg.decode().count("stroke: #0072b2") == sum(node["final"] for node in data["nodes"])


def test_arithmetic_picture_shows_the_numbers_of_the_last_token() -> None:
    data = samples.arithmetic(5, 16)
    words = svg_words(pictures.render("arithmetic", data, ".svg"))
    expected = [*data["queries"][-1][[*range(11), 15]], *data["scores"][-1], *data["output"][-1][[0, 15]]]
    assert {f"{value:.2f}" for value in expected} <= set(words)
    assert {f"{share:.0%}" for share in data["weights"][-1]} <= set(words)
    few = svg_words(pictures.render("arithmetic", samples.arithmetic(5, 4), ".svg"))
    assert "… 15" in words and not any(word.startswith("… ") for word in few)


def test_masked_score_is_shown_as_minus_infinity() -> None:
    data = samples.arithmetic(4, 8)
    data["masked"] = data["masked"].copy()
    data["masked"][-1, 0] = -np.inf
    assert "−∞" in svg_words(pictures.render("arithmetic", data, ".svg"))


@pytest.fixture
def install_only_font(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A function that leaves one extra system font, which has these characters as squares."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib import font_manager

    bundled = [each for each in font_manager.fontManager.ttflist if "mpl-data" in each.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", bundled)

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


def render_lines(words: list[str], ending: str) -> bytes:
    tokens = samples.tokens(words)
    data = {**samples.head(len(words)), "target_tokens": tokens, "source_tokens": tokens}
    return pictures.render("lines", data, ending)


def test_system_font_draws_characters_the_default_lacks(install_only_font: Callable[[str], None]) -> None:
    install_only_font("你好")
    assert ink.find_fonts("a你好") == ([ink.DEFAULT_FONT, "Squares"], set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = render_lines(["you", "你好"], ".png")
    assert picture != render_lines(["you", "好你好"], ".png")
    assert "'DejaVu Sans', 'Squares', " in render_lines(["you", "你好"], ".svg").decode()


def test_characters_without_a_font_give_a_warning_and_a_note(install_only_font: Callable[[str], None]) -> None:
    from matplotlib.figure import Figure

    install_only_font("你")
    figure = Figure()
    figure.text(0, 0, "你好")
    with pytest.warns(PenwrightWarning, match=r"No font .* has U\+597D.*\.svg"):
        ink.choose_fonts(figure, stays_text=False)
    assert figure.get_supxlabel().startswith("No font on this machine has U+597D")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # text in an SVG is drawn with the reader's fonts
        assert "No font" not in render_lines(["你", "好"], ".svg").decode()


def test_view_without_a_picture_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(UsageError, match=r"'importance' .*\.html.*\.svg files: ablation"):
        pictures.render("importance", {}, ".svg")


def test_pictures_and_modules_share_their_colours() -> None:
    colour = (MODULES / "colour.js").read_text("utf-8")
    assert ink.WEIGHTS in colour
    assert ink.SIGNED in colour
    assert all(line in colour for line in ink.LINES)
