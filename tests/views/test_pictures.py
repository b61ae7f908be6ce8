import io
from pathlib import Path

import pytest
import samples

from penwright.errors import UsageError
from penwright.views import MODULES, View, pictures


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


def test_a_view_without_a_picture_says_which_have_one() -> None:
    with pytest.raises(UsageError, match=r"'beam' is only for \.html; as \.svg there are: ablation"):
        pictures.picture("beam", {}, ".svg")


def test_pictures_have_the_colours_of_the_modules() -> None:
    colour = (MODULES / "colour.js").read_text("utf-8")
    assert pictures.WEIGHTS in colour
    assert pictures.SIGNED in colour
    assert all(line in colour for line in pictures.LINES)
