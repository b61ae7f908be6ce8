"""`penwright inspect` as a person types it: what it draws has the numbers of the API, for each kind of run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import penwright as door
from penwright.cli.drawing import ShadedToken, heat_map, shaded_text, visible
from penwright.errors import PenwrightError
from penwright.inspection import Inspector, as_record
from penwright.inspection.comparison import compare
from penwright.run.folder import Run

ASKED = {
    "writer": ("It was day 7", ["--top", 2, "--sort", "previous", "--head", "0.1", "--lens", "--rollout"]),
    "translator": (
        "eins zwei",
        [
            "--target",
            "one two",
            "--top",
            2,
            "--alignment",
            "--head",
            "cross.0.1",
            "--attribute",
            "--ablate",
            "0.0,cross.0.1",
        ],
    ),
    "classifier": ("a fine film", ["--target", "good", "--attribute", "--ablate", "each", "--lens"]),
}


@pytest.mark.parametrize("kind", ASKED)
def test_each_kind_of_run_can_be_looked_into(penwright, runs: Path, kind: str) -> None:
    text, options = ASKED[kind]
    for given in ([], options):
        done = penwright("inspect", runs / kind, text, *given)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()


@pytest.mark.parametrize("kind", ASKED)
def test_json_has_the_numbers_of_the_api(penwright, runs: Path, kind: str) -> None:
    text, options = ASKED[kind]
    target = str(options[1]) if options[0] == "--target" else None
    done = penwright("inspect", runs / kind, text, *options, "--arithmetic", "0.1", "--neighbours", "e", "--json")
    found = json.loads(done.stdout)
    look = Inspector(door.load(runs / kind))
    asked = (text, target)
    if kind != "classifier":
        assert found["scores"] == as_record(look.token_scores(*asked, k=2))
    if kind == "writer":
        assert found["heads"] == as_record(look.head_statistics(text))
    if kind == "translator":
        assert found["alignment"] == as_record(look.alignment(*asked))
    assert found["arithmetic"] == as_record(look.arithmetic(text, "0.1", target))
    assert found["neighbours of e"] == as_record(look.neighbours("e"))


def test_the_table_of_the_likeliest_shows_probability_surprise_and_rank(penwright, runs: Path) -> None:
    scores = Inspector(door.load(runs / "writer")).token_scores("It was", k=2)
    lines = penwright("inspect", runs / "writer", "It was", "--top", 2).stdout.split("\n")
    for line, token, log_prob, rank in zip(lines[1:], scores.tokens, scores.log_probs, scores.ranks, strict=False):
        assert line.split()[:4] == [
            visible(token.text).replace(" ", "␣"),
            f"{np.exp(log_prob):.3f}",
            f"{-log_prob:.2f}",
            str(rank),
        ]


@pytest.mark.parametrize(
    "options, said",
    [
        (["text", "--head", "9.9"], "LAYER.HEAD, from 0.0 to"),
        (["text", "--sort", "beauty"], "entropy, confidence"),
        (["text", "--target", "text"], "a writer has no target"),
        (["text", "--alignment"], "no cross"),
        (["text", "--attribute", "--position", "99"], "positions are 0 to"),
        (["--neighbours", ""], "Name a word"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(penwright, runs: Path, options: list[str], said: str) -> None:
    done = penwright("inspect", runs / "writer", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_comes_later_has_no_say_in_the_table_either(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "translator", "eins zwei", "--target", "one two", "--attribute")
    assert done.stdout.count("<s>") == 1 and "two" not in done.stdout


def test_an_empty_text_is_refused_where_there_is_nothing_to_look_at(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "writer", stdin="\n")
    assert (done.returncode, done.stderr) == (2, "penwright: there is nothing to inspect: the text is empty\n")


def test_a_text_can_be_piped_in_whole(penwright, runs: Path) -> None:
    piped = penwright("inspect", runs / "writer", "--top", 1, stdin="It was\nday 7\n")
    assert piped == penwright("inspect", runs / "writer", "It was\nday 7", "--top", 1)
    assert "↵" in piped.stdout


@pytest.mark.parametrize("text", ["", " ", "\n", "\0\x1b[31m", "🦊é\u2028", "日本" * 50, "[bold]x[/]", "it " * 200])
def test_any_text_is_drawn_and_moves_no_cursor(penwright, runs: Path, text: str) -> None:
    done = penwright("inspect", runs / "writer", text, "--top", 1, "--head", "0.0", "--attribute")
    assert done.returncode == 0, done.stderr
    assert not {character for character in done.stdout if not character.isprintable()} - {"\n"}


def test_the_coloured_text_is_the_text_with_a_bar_below_each_cell() -> None:
    lines = [
        line.plain
        for line in shaded_text([ShadedToken("ab", 0.0), ShadedToken("日\n", 0.5), ShadedToken("c", 1.0)], width=4)
    ]
    assert lines == ["ab日", "▁▁▅▅", "↵", "▅", "c", "█"]
    assert [line.plain for line in shaded_text([ShadedToken("abcde", 0.2)], width=3)] == ["abc", "▂▂▂", "de", "▂▂"]


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_a_heat_map_has_a_cell_for_each_weight_in_shade_or_colour(colours: str | None) -> None:
    console = Console(width=40, color_system=colours, force_terminal=colours is not None)
    lines = list(heat_map(np.array([[1.0, 0.0], [0.25, 0.75]]), ["a", "b"], ["x", "yz"], console))
    assert [line.plain.strip() for line in lines[:2]] == ["x y", "z"]
    if colours is None:
        assert [line.plain for line in lines[2:]] == ["a            ██  ", "b            ▒▒██"]
    else:
        shades = [[str(span.style.bgcolor.name) for span in line.spans] for line in lines[2:]]
        assert shades == [["#fde725", "#440154"], ["#1fa187", "#a0da39"]]
    (wide,) = list(heat_map(np.ones((1, 99)) / 99, ["a"], ["x"] * 99, console))[2:]
    assert "more columns" in wide.plain


@pytest.mark.parametrize("kind", ASKED)
def test_what_is_found_can_be_written_as_a_page(penwright, runs: Path, kind: str, tmp_path: Path) -> None:
    text, options = ASKED[kind]
    asked = [option for option in options if option != "each"]
    asked = [option for option in asked if option != "--ablate" or "each" not in options]
    for given in ([], asked):
        done = penwright("inspect", runs / kind, text, *given, "-o", tmp_path / "view.html")
        assert (done.returncode, done.stderr) == (0, "")
        size = (tmp_path / "view.html").stat().st_size
        assert done.stdout == f"{tmp_path / 'view.html'} ({size:,} bytes)\n"


@pytest.mark.parametrize(
    "option",
    [
        ["--head", "cross.0.1"],
        ["--rollout"],
        ["--alignment"],
        ["--sort", "entropy"],
        ["--arithmetic", "cross.0.1"],
        ["--beams", 3],
    ],
)
def test_a_picture_shows_the_one_thing_that_was_asked(penwright, runs: Path, option: list[str], tmp_path: Path) -> None:
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"view{ending}"
        done = penwright("inspect", runs / "translator", "eins zwei", *option, "-o", path)
        assert (done.returncode, done.stderr) == (0, "")
        assert path.read_bytes().startswith(start)


CAUSES = {
    "writer": ("It was day 7", "It was day 8", []),
    "translator": ("eins zwei", "zwei eins", ["--target", "one two"]),
    "classifier": ("a fine film", "a dull film", []),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_the_parts_behind_a_prediction_are_told_in_sentences_and_numbers(
    penwright, runs: Path, kind: str, tmp_path: Path
) -> None:
    text, other, given = CAUSES[kind]
    options = [*given, "--parts", "--paths", "--patch", other, "--patch-kind", "heads", "--whole"]
    done = penwright("inspect", runs / kind, text, *options)
    assert (done.returncode, done.stderr) == (0, "")
    look, target = Inspector(door.load(runs / kind)), given[1] if given else None
    shown = " ".join(done.stdout.split())
    patches = look.patching(text, other, target, kind="heads")
    for result in (look.logit_attribution(text, target), look.paths(text, target), *patches):
        assert " ".join(visible(str(result)).split()) in " ".join(visible(shown).split())
    found = json.loads(penwright("inspect", runs / kind, text, *options, "--json").stdout)
    assert found["parts"] == as_record(look.logit_attribution(text, target))
    assert found["patching"] == as_record(patches)
    assert found["model"] == as_record(look.model_map(text, target))
    done = penwright("inspect", runs / kind, text, *options, "-o", tmp_path / "view.html")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--patch", "It was a long day"], "tokens. Choose texts of the same length"),
        (["--patch", "It wis", "--patch-kind", "nothing"], "no kind of patch 'nothing'"),
        (["-o", "view.gif"], "-o writes .html, .svg or .png"),
        (["-o", "view.svg"], "one picture. Select a single view"),
        (["--lens", "--rollout", "-o", "view.svg"], "one picture. Select a single view"),
        (["--beams", 3, "-o", "view.svg"], "only a translator searches with beams"),
        (["--ablate", "each", "-o", "view.html"], "--ablate each cannot be drawn"),
        (["-o", "nowhere/view.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(
    penwright, runs: Path, options: list[str], said: str, tmp_path: Path
) -> None:
    done = penwright("inspect", runs / "writer", "It was", *options, cwd=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_two_texts_and_two_checkpoints_are_compared(penwright, runs: Path, tmp_path: Path) -> None:
    first, second = "It was day 7", "It was day 12"
    look = Inspector(door.load(runs / "writer"))
    asked = penwright("inspect", runs / "writer", first, "--other-text", second, "--json")
    found = json.loads(asked.stdout)["compared"]
    assert found == as_record(compare(look.surprises(first), look.surprises(second)))
    checkpoint = min((runs / "writer" / "checkpoints").iterdir())
    other = penwright("inspect", runs / "writer", first, "--other-run", checkpoint)
    early = Inspector(door.load(checkpoint))
    assert (other.returncode, other.stderr) == (0, "")
    sums = [float(each.surprises(first).nats.sum()) for each in (look, early)]
    assert f"writer {sums[0]:.3f}, {checkpoint.name} {sums[1]:.3f}" in other.stdout
    page = penwright("inspect", runs / "writer", first, "--other-run", checkpoint, "-o", tmp_path / "two.html")
    assert (page.returncode, page.stderr) == (0, "")


def test_runs_of_two_kinds_are_not_compared(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "writer", "It was", "--other-run", runs / "classifier")
    assert done.returncode == 2 and "cannot be compared" in done.stderr


def test_a_checkpoint_is_loaded_as_itself_and_what_is_no_whole_one_is_not(runs: Path, tmp_path: Path) -> None:
    folder = min((runs / "writer" / "checkpoints").glob("step-*"))
    weights = Run(runs / "writer").checkpoints()[0].weights()
    loaded = dict(door.load(folder).model.named_parameters())
    assert all(bool((weights[name] == loaded[name]).all()) for name in weights if name in loaded)
    broken = tmp_path / "run" / "checkpoints"
    shutil.copytree(runs / "writer", tmp_path / "run")
    (broken / folder.name / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(PenwrightError, match="is damaged"):
        door.load(broken / folder.name)
    with pytest.raises(PenwrightError, match=rf"no checkpoint step-99999999\..*first, {folder.name}"):
        door.load(broken / "step-99999999")


def test_the_tree_of_a_search_is_drawn_with_all_that_was_tried(penwright, runs: Path) -> None:
    found = json.loads(penwright("inspect", runs / "translator", "eins zwei", "--beams", 2, "--json").stdout)["beams"]
    shown = penwright("inspect", runs / "translator", "eins zwei", "--beams", 2).stdout
    assert len(found["nodes"]) == shown.count("\n") - 2
    assert shown.count("ended") == sum(node[-1] for node in found["nodes"])
    best = door.load(runs / "translator").translate(["eins zwei"], beam_size=2)[0].candidates[0]
    assert f"{best.log_prob:.2f}" in shown
