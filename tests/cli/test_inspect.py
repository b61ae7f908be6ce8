"""`penwright inspect`: its output has the numbers of the API, for each kind of run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import penwright as penwright_package
from penwright.cli.drawing import ShadedToken, heat_map, shaded_text, visible
from penwright.errors import PenwrightError
from penwright.inspection import Inspector, as_record
from penwright.inspection.comparison import compare
from penwright.run.folder import Run

CASES = {
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


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_of_run_can_be_inspected(penwright, runs: Path, kind: str) -> None:
    text, options = CASES[kind]
    is_mixed = (runs / kind / "ngrams.safetensors").exists()
    for given in ([], options):
        done = penwright("inspect", runs / kind, text, *given)
        assert (done.returncode, "only the Transformer" in done.stderr) == (0, is_mixed)
        assert done.stderr.count("\n") == is_mixed
        assert done.stdout.strip()


@pytest.mark.parametrize("kind", CASES)
def test_json_equals_the_apis_records(penwright, runs: Path, kind: str) -> None:
    text, options = CASES[kind]
    target = str(options[1]) if options[0] == "--target" else None
    done = penwright("inspect", runs / kind, text, *options, "--arithmetic", "0.1", "--neighbours", "e", "--json")
    found = json.loads(done.stdout)
    inspector = Inspector(penwright_package.load(runs / kind))
    arguments = (text, target)
    if kind != "classifier":
        assert found["scores"] == as_record(inspector.token_scores(*arguments, k=2))
    if kind == "writer":
        assert found["heads"] == as_record(inspector.head_statistics(text))
    if kind == "translator":
        assert found["alignment"] == as_record(inspector.alignment(*arguments))
    assert found["arithmetic"] == as_record(inspector.arithmetic(text, "0.1", target))
    assert found["neighbours of e"] == as_record(inspector.neighbours("e"))


def test_top_table_shows_probability_surprisal_and_rank(penwright, runs: Path) -> None:
    scores = Inspector(penwright_package.load(runs / "writer")).token_scores("It was", k=2)
    lines = penwright("inspect", runs / "writer", "It was", "--top", 2).stdout.split("\n")
    assert len(lines) > len(scores.tokens) > 3
    for line, token, log_prob, rank in zip(lines[1:], scores.tokens, scores.log_probs, scores.ranks, strict=False):
        assert line.split()[:4] == [
            visible(token.text).replace(" ", "␣"),
            f"{np.exp(log_prob):.3f}",
            f"{-log_prob:.2f}",
            str(rank),
        ]


@pytest.mark.parametrize(
    "options, message",
    [
        (["text", "--head", "9.9"], "LAYER.HEAD, from 0.0 to"),
        (["text", "--sort", "beauty"], "entropy, confidence"),
        (["text", "--target", "text"], "a language model has no target"),
        (["text", "--alignment"], "no cross"),
        (["text", "--attribute", "--position", "99"], "positions are 0 to"),
        (["--neighbours", ""], "Name a word"),
    ],
)
def test_impossible_views_are_refused_in_one_line(penwright, runs: Path, options: list[str], message: str) -> None:
    done = penwright("inspect", runs / "writer", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_attribution_table_omits_later_tokens(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "translator", "eins zwei", "--target", "one two", "--attribute")
    assert done.stdout.count("<s>") == 1 and "two" not in done.stdout


def test_empty_text_is_refused(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "writer", stdin="\n")
    assert (done.returncode, done.stderr) == (2, "penwright: there is nothing to inspect: the text is empty\n")


def test_whole_text_can_be_piped_in(penwright, runs: Path) -> None:
    piped = penwright("inspect", runs / "writer", "--top", 1, stdin="It was\nday 7\n")
    assert piped == penwright("inspect", runs / "writer", "It was\nday 7", "--top", 1)
    assert "↵" in piped.stdout


@pytest.mark.parametrize("text", ["", " ", "\n", "\0\x1b[31m", "🦊é\u2028", "日本" * 50, "[bold]x[/]", "it " * 200])
def test_output_for_any_text_has_no_control_characters(penwright, runs: Path, text: str) -> None:
    done = penwright("inspect", runs / "writer", text, "--top", 1, "--head", "0.0", "--attribute")
    assert done.returncode == 0, done.stderr
    assert not {character for character in done.stdout if not character.isprintable()} - {"\n"}


def test_shaded_text_has_a_bar_below_each_cell() -> None:
    lines = [
        line.plain
        for line in shaded_text([ShadedToken("ab", 0.0), ShadedToken("日\n", 0.5), ShadedToken("c", 1.0)], width=4)
    ]
    assert lines == ["ab日", "▁▁▅▅", "↵", "▅", "c", "█"]
    assert [line.plain for line in shaded_text([ShadedToken("abcde", 0.2)], width=3)] == ["abc", "▂▂▂", "de", "▂▂"]


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_heat_map_has_a_cell_per_weight_in_shade_or_colour(colours: str | None) -> None:
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


@pytest.mark.parametrize("kind", CASES)
def test_views_can_be_written_as_an_html_page(penwright, runs: Path, kind: str, tmp_path: Path) -> None:
    text, options = CASES[kind]
    arguments = [option for option in options if option != "each"]
    arguments = [option for option in arguments if option != "--ablate" or "each" not in options]
    for given in ([], arguments):
        done = penwright("inspect", runs / kind, text, *given, "-o", tmp_path / "view.html")
        assert (done.returncode, done.stderr.count("\n")) == (0, kind == "classifier")  # it also counts n-grams
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
def test_single_view_is_written_as_svg_or_png(penwright, runs: Path, option: list[str], tmp_path: Path) -> None:
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"view{ending}"
        done = penwright("inspect", runs / "translator", "eins zwei", *option, "-o", path)
        assert (done.returncode, done.stderr) == (0, "")
        assert path.read_bytes().startswith(start)


PATCHING_CASES = {
    "writer": ("It was day 7", "It was day 8", []),
    "translator": ("eins zwei", "zwei eins", ["--target", "one two"]),
    "classifier": ("a fine film", "a dull film", []),
}


@pytest.mark.parametrize("kind", PATCHING_CASES)
def test_parts_paths_and_patching_are_explained_and_exported(penwright, runs: Path, kind: str, tmp_path: Path) -> None:
    text, other, given = PATCHING_CASES[kind]
    options = [*given, "--parts", "--paths", "--patch", other, "--patch-kind", "heads", "--whole"]
    done = penwright("inspect", runs / kind, text, *options)
    assert (done.returncode, done.stderr.count("\n")) == (0, kind == "classifier")  # it also counts n-grams
    inspector, target = Inspector(penwright_package.load(runs / kind)), given[1] if given else None
    shown = " ".join(done.stdout.split())
    patches = inspector.patching(text, other, target, kind="heads")
    for result in (inspector.logit_attribution(text, target), inspector.paths(text, target), *patches):
        assert " ".join(visible(str(result)).split()) in " ".join(visible(shown).split())
    found = json.loads(penwright("inspect", runs / kind, text, *options, "--json").stdout)
    assert found["parts"] == as_record(inspector.logit_attribution(text, target))
    assert found["patching"] == as_record(patches)
    assert found["model"] == as_record(inspector.model_map(text, target))
    assert penwright("inspect", runs / kind, text, *options, "-o", tmp_path / "view.html").returncode == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (["--patch", "It was a long day"], "tokens. Choose texts of the same length"),
        (["--patch", "It wis", "--patch-kind", "nothing"], "no kind of patch 'nothing'"),
        (["-o", "view.gif"], "-o writes .html, .svg or .png"),
        (["-o", "view.svg"], "one picture. Select a single view"),
        (["--lens", "--rollout", "-o", "view.svg"], "one picture. Select a single view"),
        (["--beams", 3, "-o", "view.svg"], "only a translator uses beam search"),
        (["--ablate", "each", "-o", "view.html"], "--ablate each cannot be drawn"),
        (["-o", "nowhere/view.html"], "cannot be written"),
    ],
)
def test_impossible_output_is_refused_in_one_line(
    penwright, runs: Path, options: list[str], message: str, tmp_path: Path
) -> None:
    done = penwright("inspect", runs / "writer", "It was", *options, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_two_texts_or_two_checkpoints_are_compared(penwright, runs: Path, tmp_path: Path) -> None:
    first, second = "It was day 7", "It was day 12"
    inspector = Inspector(penwright_package.load(runs / "writer"))
    arguments = penwright("inspect", runs / "writer", first, "--other-text", second, "--json")
    found = json.loads(arguments.stdout)["compared"]
    assert found == as_record(compare(inspector.token_nlls(first), inspector.token_nlls(second)))
    checkpoint = min((runs / "writer" / "checkpoints").iterdir())
    other = penwright("inspect", runs / "writer", first, "--other-run", checkpoint)
    early = Inspector(penwright_package.load(checkpoint))
    assert (other.returncode, other.stderr) == (0, "")
    sums = [float(each.token_nlls(first).nats.sum()) for each in (inspector, early)]
    assert f"writer {sums[0]:.3f}, {checkpoint.name} {sums[1]:.3f}" in other.stdout
    page = penwright("inspect", runs / "writer", first, "--other-run", checkpoint, "-o", tmp_path / "two.html")
    assert (page.returncode, page.stderr) == (0, "")


def test_cut_text_to_compare_gives_a_warning(penwright, runs: Path) -> None:
    for other in (
        ["--other-text", "It was day. " * 200],
        ["--other-run", runs / "writer", "--other-text", "It. " * 500],
    ):
        done = penwright("inspect", runs / "writer", "It was day", *other)
        assert done.stderr.count("fit the context") == 1, done.stderr


def test_runs_of_different_kinds_are_not_compared(penwright, runs: Path) -> None:
    done = penwright("inspect", runs / "writer", "It was", "--other-run", runs / "classifier")
    assert done.returncode == 2 and "cannot be compared" in done.stderr


def test_checkpoint_folder_loads_unless_damaged_or_missing(runs: Path, tmp_path: Path) -> None:
    folder = min((runs / "writer" / "checkpoints").glob("step-*"))
    weights = Run(runs / "writer").checkpoints.all()[0].weights()
    loaded = dict(penwright_package.load(folder).model.named_parameters())
    assert all(bool((weights[name] == loaded[name]).all()) for name in weights if name in loaded)
    broken = tmp_path / "run" / "checkpoints"
    shutil.copytree(runs / "writer", tmp_path / "run")
    (broken / folder.name / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(PenwrightError, match="is damaged"):
        penwright_package.load(broken / folder.name)
    with pytest.raises(PenwrightError, match=rf"no checkpoint step-99999999\..*first, {folder.name}"):
        penwright_package.load(broken / "step-99999999")


def test_beam_search_tree_shows_every_hypothesis(penwright, runs: Path) -> None:
    found = json.loads(penwright("inspect", runs / "translator", "eins zwei", "--beams", 2, "--json").stdout)["beams"]
    shown = penwright("inspect", runs / "translator", "eins zwei", "--beams", 2).stdout
    assert len(found["nodes"]) == shown.count("\n") - 2
    assert shown.count("ended") == sum(node[-1] for node in found["nodes"])
    best = penwright_package.load(runs / "translator").translate(["eins zwei"], beam_size=2)[0].candidates[0]
    assert f"{best.log_prob:.2f}" in shown
