"""`penwright chat`, and runs trained on prompts and answers."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penwright as penwright_package
from penwright.config import Table
from penwright.data.batches import MixedBatches
from penwright.errors import UsageError
from penwright.run.folder import Run
from penwright.tasks import TASKS
from penwright.tokenizers.chat_template import PLAIN, Message
from penwright.workflows.old_text import with_old_text
from penwright.workflows.plan import prepare
from penwright.workflows.train import _begin

from .conftest import QUICK, Command

TALK = [Message("user", "Will there be rain?"), Message("assistant", "Yes, rain."), Message("user", "And snow?")]


@pytest.fixture(scope="module")
def chat_run(penwright: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    words = ["rain", "snow", "wind", "fog"]
    lines = [{"prompt": f"Will there be {w} on day {n}?", "completion": f"Yes, {w}."} for n in range(60) for w in words]
    (folder / "chat.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    options = [*QUICK, "--set", "model.context_length=96", "--set", "training.batch_tokens=1024"]
    made = penwright(
        "train", folder / "chat.jsonl", "--run", folder / "run", "--steps", 40, *options, "--set", "model.d_model=32"
    )
    assert made.returncode == 0, made.stderr
    assert "task: chat" in made.stderr
    assert "penwright chat" in made.stderr
    return folder / "run"


def test_chat_model_learns_to_answer(penwright: Command, chat_run: Path) -> None:
    records = [json.loads(line) for line in (chat_run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["nats per token"] < 0.6 * records[0]["nats per token"]
    done = penwright("evaluate", chat_run, "--json")
    assert done.returncode == 0, done.stderr
    assert "nats per token" in done.stdout
    assert "unigram" in done.stdout


def test_later_answers_see_earlier_messages(penwright: Command, chat_run: Path) -> None:
    options = ["--temperature", 0, "--max-new-tokens", 12]
    both = penwright("chat", chat_run, *options, stdin="Will there be rain?\nAnd snow?\n\nnot read\n")
    assert both.returncode == 0, both.stderr
    first, second = both.stdout.splitlines()
    assert penwright("chat", chat_run, "Will there be rain?", *options).stdout == f"{first}\n"
    model = penwright_package.load(chat_run)
    conversation = [Message("user", "Will there be rain?"), Message("assistant", first), Message("user", "And snow?")]
    assert model.answer(conversation, temperature=0.0, max_new_tokens=12).text == second


def test_oldest_messages_are_dropped_when_the_context_is_full(chat_run: Path) -> None:
    model = penwright_package.load(chat_run)
    conversation = [Message("system", "S")]
    for n in range(40):
        conversation += [Message("user", f"question {n}"), Message("assistant", f"answer {n}")]
    conversation.append(Message("user", "last"))
    tokens = model.chat_tokens(conversation, 20)
    text = model.tokenizer.decode(tokens)
    assert len(tokens) <= model.model.settings.context_length - 20
    assert text.startswith("System:\nS")
    assert text.endswith("User:\nlast\nAssistant:\n")
    assert "question 0" not in text


@pytest.mark.parametrize(
    ("kind", "message"), [("translator", "`chat` needs a language model"), ("writer", "not trained to answer")]
)
def test_chat_with_an_unsuitable_model_is_refused(penwright: Command, runs: Path, kind: str, message: str) -> None:
    refused = penwright("chat", runs / kind, "Hello")
    assert refused.returncode == 2
    assert message in refused.stderr


def test_spaces_around_an_answer_are_stripped(chat_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = penwright_package.load(chat_run)
    shown = replace(model.generate(["a"], max_new_tokens=1)[0], text="  so be it ")

    def stream(_: object) -> Iterator[str]:
        yield from ("  ", " so", " be it ")
        return shown

    monkeypatch.setattr(model, "_stream", stream)
    assert "".join(model.stream_answer([Message("user", "Hello")])) == "so be it "
    assert model.answer([Message("user", "Hello")]).text == "so be it"


def test_exported_chat_model_keeps_the_plain_template(chat_run: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    penwright_package.export(chat_run, "huggingface", tmp_path / "exported")
    ours = penwright_package.load(chat_run).chat_tokens(TALK)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    messages = [message._asdict() for message in TALK]
    assert theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ours
    again = penwright_package.import_model(tmp_path / "exported", tmp_path / "again")
    assert again.chat_tokens(TALK) == ours


def test_adapter_keeps_the_template_until_its_base_is_moved(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(
        "".join(f"{json.dumps({'prompt': f'Is it day {n}?', 'completion': f'Day {n}.'})}\n" for n in range(60)),
        encoding="utf-8",
    )
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(runs / "writer", base)
    options = ["--from", base, "--lora", 2, "--steps", 2, "--set", "training.device=cpu"]
    made = penwright("train", tmp_path / "chat.jsonl", "--run", run, *options)
    assert made.returncode == 0, made.stderr
    penwright_package.export(run, "peft", tmp_path / "adapter")
    penwright_package.export(base, "penwright", tmp_path / "merged", adapter=tmp_path / "adapter")
    ours, merged = penwright_package.load(run), penwright_package.load(tmp_path / "merged")
    assert merged.chat_tokens(TALK) == ours.chat_tokens(TALK)
    with pytest.raises(UsageError, match="Leave out --adapter"):
        penwright_package.export(run, "peft", tmp_path / "other", adapter=tmp_path / "adapter")
    base.rename(tmp_path / "moved")
    refused = penwright("train", "--resume", run, "--steps", 4)
    assert (refused.returncode, "set [finetuning] base in" in refused.stderr) == (1, True)


def test_old_answers_end_as_in_the_template_of_the_base(chat_run: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(
        "".join(f"{json.dumps({'prompt': f'Rain on {n}?', 'completion': f'Yes {n}.'})}\n" for n in range(60)),
        encoding="utf-8",
    )
    other = {"template": PLAIN, "end_of_turn": "<s>"}
    given: Table = {"data": {"train": [str(tmp_path / "chat.jsonl")]}, "training": {"steps": 3}, "chat": other}
    given["finetuning"] = {"base": str(chat_run), "keep_old": 0.25}
    context = _begin(prepare(given), Run.create(tmp_path / "run"), [])
    assert context.training is not None
    mixed = with_old_text(context, TASKS["chat"].batches(context, context.training))
    assert isinstance(mixed, MixedBatches)
    ends = (context.tokenizer.start_id, context.tokenizer.end_id)
    assert (mixed.new.markers.end, mixed.old.markers.end) == ends
