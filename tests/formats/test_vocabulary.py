"""Changes to the vocabulary of a trained model: trimming unused tokens and adding new ones."""

import json
from pathlib import Path

import pytest
import torch

import penwright
from penwright.errors import PenwrightError, UsageError
from penwright.formats.tokenizer_source import read_tokenizer_source
from penwright.run.folder import Run
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.tokenizers.vocabulary import earlier_pieces, extended, trimmed
from penwright.workflows.finetune import changed_tokenizer
from penwright.workflows.load import open_run
from penwright.workflows.plan import prepare
from penwright.workflows.resume import resume

from .conftest import AWKWARD, TEXTS
from .test_tokenizer_source import QUICK, byte_level, vocab_txt, write_novel

GREEK = "Μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος οὐλομένην, θεὰ θεὰ ἄειδε μῆνιν.\n"
KINDS = [
    "own bpe",
    "own unigram",
    "wordpiece",
    "byte-level",
    "byte-level with merges as strings",
    "spm bpe",
    "spm unigram",
    "spm bpe with bytes",
]


@pytest.fixture(params=KINDS)
def any_tokenizer(request: pytest.FixtureRequest, spm, tmp_path: Path) -> Tokenizer:
    kind = request.param
    if kind.startswith("own"):
        return train_tokenizer(kind.removeprefix("own "), [*TEXTS, *AWKWARD], 400)
    if kind == "wordpiece":
        return read_tokenizer_source(str(vocab_txt(tmp_path)))
    if kind.startswith("byte-level"):
        path = byte_level(tmp_path)
        if kind.endswith("strings"):
            file = json.loads(path.read_text(encoding="utf-8"))
            file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
            path.write_text(json.dumps(file), encoding="utf-8")
        return read_tokenizer_source(str(path))
    options = {"byte_fallback": True, "vocab_size": 400} if kind.endswith("bytes") else {}
    return read_tokenizer_source(str(spm(kind.split()[1], **options)))


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.pieces[token] for token in tokenizer.encode(text)]


def test_trimmed_vocabulary_tokenizes_the_text_as_before(any_tokenizer: Tokenizer) -> None:
    texts = TEXTS[:2]
    any_tokenizer = extended(any_tokenizer, ["mattress", "unaffable"])
    small = trimmed(any_tokenizer, {token for text in texts for token in any_tokenizer.encode(text)})
    assert small.vocab_size < any_tokenizer.vocab_size
    assert [pieces_of(small, text) for text in texts] == [pieces_of(any_tokenizer, text) for text in texts]
    for role in ("pad_id", "start_id", "end_id"):
        assert small.token_text(getattr(small, role)) == any_tokenizer.token_text(getattr(any_tokenizer, role))
    assert not {small.pad_id, small.start_id, small.end_id} & set(small.encode("</s><pad> [SEP]"))
    assert small.decode(small.encode(TEXTS[3])) == any_tokenizer.decode(
        any_tokenizer.encode(TEXTS[3])
    )  # a text with other words
    before = earlier_pieces(small, any_tokenizer)
    assert [[any_tokenizer.pieces[token] for token in row] for row in before] == [[piece] for piece in small.pieces]


def test_added_words_become_single_tokens(any_tokenizer: Tokenizer) -> None:
    words = ["tetrahydrofuran", "furane", "hydro", "zażółcić"]
    large = extended(any_tokenizer, words)
    assert all(len(large.encode(word)) == 1 for word in words)
    assert large.decode(large.encode(f"the {words[0]} sat")) == f"the {words[0]} sat"
    assert large.pieces[: any_tokenizer.vocab_size] == any_tokenizer.pieces  # existing tokens keep their ids
    assert [large.encode(text) for text in TEXTS[:1]] == [any_tokenizer.encode(text) for text in TEXTS[:1]]
    assert not {large.pad_id, large.start_id, large.end_id} & set(large.encode("</s><pad> <s> [SEP]"))
    rows = earlier_pieces(large, any_tokenizer)
    assert rows[: any_tokenizer.vocab_size] == [[token] for token in range(any_tokenizer.vocab_size)]
    (token,) = large.encode(words[2])
    if any_tokenizer.unknown_id not in any_tokenizer.encode(words[2]):
        assert rows[token] == any_tokenizer.encode(words[2])


def test_new_tokens_are_learned_from_a_text(any_tokenizer: Tokenizer) -> None:
    large = extended(any_tokenizer, 30, [GREEK * 20])
    assert any_tokenizer.vocab_size < large.vocab_size <= any_tokenizer.vocab_size + 30
    before, after = any_tokenizer.encode(GREEK), large.encode(GREEK)
    if any_tokenizer.unknown_id in before:
        assert after.count(large.unknown_id) < before.count(any_tokenizer.unknown_id)
    else:
        assert len(after) < 0.8 * len(before)
        assert large.decode(after) == any_tokenizer.decode(before)
    assert [large.encode(text) for text in TEXTS[:2]] == [any_tokenizer.encode(text) for text in TEXTS[:2]]
    assert extended(any_tokenizer, 30, [GREEK * 20]).fingerprint == large.fingerprint


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_character_and_byte_vocabularies_cannot_be_changed(kind, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(kind, TEXTS)
    for change in (lambda: trimmed(tokenizer, {1}), lambda: extended(tokenizer, ["cat"])):
        with pytest.raises(PenwrightError, match=f"a vocabulary of {kind} cannot be changed"):
            change()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer whose output layer is not tied to the embeddings."""
    folder = tmp_path_factory.mktemp("base")
    settings = {**QUICK, "tokenizer": {"type": "bpe", "vocab_size": 400}}
    settings["model"] = {**QUICK["model"], "tie_embeddings": "none"}
    (folder / "old.txt").write_text("".join(f"{text}\n" for text in TEXTS) * 20, encoding="utf-8")
    penwright.train(folder / "old.txt", run=folder / "base", settings=settings, quiet=True)
    return folder / "base"


def fine_tune(folder: Path, base: Path, lora: bool = False, text: str | None = None, **finetuning: object) -> Path:
    novel = write_novel(folder)
    if text:
        novel.write_text(text, encoding="utf-8")
    settings = {"training": {**QUICK["training"], "evaluate_every": 2}, "finetuning": finetuning}
    settings |= {"lora": {"rank": 2}} if lora else {}
    penwright.train(novel, run=folder / "run", base=base, settings=settings, quiet=True)
    return folder / "run"


def weights_at_step_zero(run: Path) -> dict[str, torch.Tensor]:
    found = Run(run)
    return next(
        each for each in [found.checkpoints.first(), *found.checkpoints.all()] if each and each.step == 0
    ).weights()


@pytest.mark.parametrize("lora", [False, True])
def test_trimming_keeps_the_rows_of_kept_tokens(base: Path, lora: bool, tmp_path: Path) -> None:
    run = fine_tune(tmp_path, base, lora=lora, trim_vocabulary=True)
    before, after = penwright.load(base), penwright.load(run)
    assert open_run(run).recipe.finetuning.trim_vocabulary
    assert after.tokenizer.vocab_size < before.tokenizer.vocab_size
    assert open_run(run).recipe.tokenizer.vocab_size == after.tokenizer.vocab_size
    text = "The cats sat on the mat, and 12 dogs sat there."
    kept = [row[0] for row in earlier_pieces(after.tokenizer, before.tokenizer)]
    assert [kept[token] for token in after.tokenizer.encode(text)] == before.tokenizer.encode(text)
    if not lora:
        start = weights_at_step_zero(run)
        for name in ("embedding.tokens.weight", "output.weight"):
            assert torch.equal(start[name], open_run(base).weights()[name][kept])
    again = penwright.load(run)
    penwright.export(run, "huggingface", tmp_path / "exported")
    imported = penwright.import_model(tmp_path / "exported", tmp_path / "imported")
    options = {"temperature": 0, "max_new_tokens": 8}
    assert imported.generate("The cats", **options)[0].text == again.generate("The cats", **options)[0].text


def test_new_tokens_start_as_the_mean_of_their_pieces(base: Path, tmp_path: Path) -> None:
    run = fine_tune(tmp_path, base, text=GREEK * 60, add_tokens=20)
    old, new = open_run(base), open_run(run)
    assert new.recipe.finetuning.add_tokens == 20
    assert new.tokenizer.vocab_size == old.tokenizer.vocab_size + 20
    rows, start = earlier_pieces(new.tokenizer, old.tokenizer), weights_at_step_zero(run)
    for name in ("embedding.tokens.weight", "output.weight"):
        for token in range(old.tokenizer.vocab_size, new.tokenizer.vocab_size):
            assert len(rows[token]) > 1
            torch.testing.assert_close(start[name][token], old.weights()[name][rows[token]].mean(0))
        assert not torch.equal(new.weights()[name][-1], start[name][-1])  # the new tokens are trained
    resume(run, {"training": {"steps": 2}})
    stored = new.recipe.model_dump(mode="json", exclude_none=True)
    assert prepare(stored).plan.recipe.tokenizer == new.recipe.tokenizer
    penwright.export(run, "huggingface", tmp_path / "exported")
    again = penwright.import_model(tmp_path / "exported", tmp_path / "imported").tokenizer
    assert again.encode(GREEK) == new.tokenizer.encode(GREEK)


def test_trimming_and_adding_words_of_a_file_can_be_combined(base: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("mattress\ncats\n", encoding="utf-8")
    run = fine_tune(tmp_path, base, trim_vocabulary=True, add_tokens=str(tmp_path / "words.txt"))
    tokenizer = open_run(run).tokenizer
    assert tokenizer.vocab_size < open_run(base).tokenizer.vocab_size
    assert len(tokenizer.encode(" mattress")) == len(tokenizer.encode("mattress")) == 1


def test_words_of_a_file_that_stay_several_tokens_are_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("mattress\nNew York\n<|user|>\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    said: list[str] = []
    settings = {"base": str(base), "add_tokens": str(tmp_path / "words.txt")}
    prepared = prepare({"data": {"train": [str(tmp_path / "text.txt")]}, "finetuning": settings})
    changed_tokenizer(prepared.plan.recipe, prepared.corpus, said.append)
    (line,) = {line for line in said if "still several tokens" in line}
    assert line.endswith("punctuation: New York, <|user|>")


def test_keep_old_protects_the_tokens_of_the_base_text(base: Path, tmp_path: Path) -> None:
    run = fine_tune(tmp_path, base, trim_vocabulary=True, keep_old=0.5)
    small, large = open_run(run).tokenizer, open_run(base).tokenizer
    assert [pieces_of(small, text) for text in TEXTS] == [pieces_of(large, text) for text in TEXTS]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_tokens": "nowhere.txt"}, "nowhere.txt cannot be read"),
        ({"add_tokens": 5, "lora": True}, "--add-tokens cannot be combined with --lora"),
    ],
)
def test_invalid_vocabulary_changes_are_refused(changes, message: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises((PenwrightError, UsageError), match=message):
        fine_tune(tmp_path, base, **changes)
    assert not (tmp_path / "run").exists()
