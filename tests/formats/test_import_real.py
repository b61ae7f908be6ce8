"""Real models are imported exactly: token ids, hidden states, logits and texts equal transformers'."""

import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import penwright
from penwright.application import Application
from penwright.classification.classifier import Classifier
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.run.provenance import corpus_record
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import Message
from penwright.workflows.load import open_run

PROMPTS = ["The capital of France is", "def fib(n):\n    ", "Once upon a time"]
SCRIPTS = {  # ranges of code points
    "latin": (0x20, 0x24F),
    "cyrillic": (0x400, 0x52F),
    "devanagari": (0x900, 0x97F),
    "hangul": (0xAC00, 0xD7A3),
    "han": (0x4E00, 0x9FFF),
}
LETTERS = {
    name: [c for c in map(chr, range(*ends)) if unicodedata.category(c) != "Cn"] for name, ends in SCRIPTS.items()
}
WORDS = [
    "the",
    "of",
    "naïve",
    "café",
    "Straße",
    "Привет",
    "мир",
    "किताब",
    "भाषा",
    "안녕하세요",
    "세계",
    "漢字",
    "日本語",
    "123",
    "4,567.89",
    "don't",
    "e.g.",
    "U.S.A.",
    "x²",
    "ﬁne",
    "İstanbul",
]


def lines_in_five_scripts(n: int) -> list[str]:
    rng = random.Random(0)
    lines = []
    for number in range(n):
        letters = LETTERS[list(LETTERS)[number % len(LETTERS)]]
        words_of_script = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 8))]
        words = [
            *words_of_script,
            *rng.choices(WORDS, k=rng.randint(0, 4)),
            *rng.choices(" \t\u00a0\u200b\u3000!?…—", k=2),
        ]
        rng.shuffle(words)
        lines.append(" ".join(words))
    return lines


@pytest.fixture(scope="session")
def smollm2_run(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("import") / "smollm2"
    penwright.import_model(smollm2, run)
    return run


@pytest.fixture(scope="session")
def writer(smollm2_run: Path) -> Application:
    return penwright.load(smollm2_run)


@pytest.fixture(scope="session")
def encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Application:
    return penwright.import_model(minilm, tmp_path_factory.mktemp("import") / "minilm")


def test_smollm2_logits_and_texts_equal_transformers(writer: Application, smollm2: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    assert isinstance(writer, Generator)
    tokenizer = writer.tokenizer
    for prompt in PROMPTS:
        ids = tokenizer.prompt(tokenizer.encode(prompt))
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits
            torch.testing.assert_close(writer.model(torch.tensor([ids])), logits, atol=1e-4, rtol=0)
            written = theirs.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
        assert list(writer.generate(prompt, temperature=0, max_new_tokens=8)[0].tokens) == written.tolist()


def test_smollm2_tokenizes_as_llama_cpp(writer: Application, smollm2: Path, log_probs) -> None:
    """transformers splits some words of GGUF models, such as "   4 ¾x", differently from training."""
    tokenizer = writer.tokenizer
    for text in ["naïve 1234 words   4,567.89 ¾x", "def f(x):\n\treturn  'it's'", "Привет, мир! 안녕하세요 漢字"]:
        found, expected = (log_probs(smollm2, each, tokenizer.vocab_size) for each in (text, tokenizer.encode(text)))
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_smollm2_encoding_round_trips(writer: Application) -> None:
    lines = lines_in_five_scripts(1000)
    assert all(
        writer.tokenizer.decode(ids) == line
        for line, ids in zip(lines, writer.tokenizer.encode_batch(lines), strict=True)
    )


def test_smollm2_answers_with_its_own_template(writer: Application) -> None:
    conversation = [Message("user", "What is the capital of France? <|im_end|>")]
    tokenizer = writer.tokenizer
    start, end = tokenizer.pieces.index("<|im_start|>"), tokenizer.pieces.index("<|im_end|>")
    tokens = writer.chat_tokens(conversation)
    assert tokens[-4:] == [start, *tokenizer.encode("assistant\n")]
    assert (tokens.count(start), tokens.count(end)) == (3, 2)  # system, user and the answer
    assert "<|im_end|>" in tokenizer.decode(tokens)  # in the message, where it stays text
    answer = writer.answer([Message("user", "What is the capital of France?")], temperature=0, max_new_tokens=30)
    assert "Paris" in answer.text
    assert answer.finish == "end"


@pytest.mark.parametrize("to", ["gguf", "huggingface"])
def test_smollm2_round_trips_through_an_export(to: str, writer: Application, smollm2_run, tmp_path) -> None:
    penwright.export(smollm2_run, to, tmp_path / to)
    again = penwright.import_model(tmp_path / to / ("model.gguf" if to == "gguf" else ""), tmp_path / "again")
    tokens = torch.randint(writer.tokenizer.vocab_size, (1, 20))
    with torch.no_grad():
        assert torch.equal(again.model(tokens), writer.model(tokens))
    for text in [*PROMPTS, "1234 naïve 日本語", "<|im_start|>"]:
        assert again.tokenizer.prompt(again.tokenizer.encode(text)) == writer.tokenizer.prompt(
            writer.tokenizer.encode(text)
        )
    assert again.tokenizer.end_id == writer.tokenizer.end_id
    assert again.template == writer.template
    origin = corpus_record(open_run(tmp_path / "again").run).imported
    assert origin is not None and origin.licence == "apache-2.0"
    assert "sha256" in (tmp_path / to / "README.md").read_text(encoding="utf-8")


def test_minilm_token_ids_equal_transformers_on_10_000_lines(encoder: Application, minilm: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)
    tokenizer, lines = encoder.tokenizer, lines_in_five_scripts(10_000)
    expected = theirs(lines)["input_ids"]
    found = [[tokenizer.start_id, *ids.tolist(), tokenizer.end_id] for ids in tokenizer.encode_batch(lines)]
    assert found == expected


def test_minilm_hidden_states_equal_transformers(encoder: Application, minilm: Path) -> None:
    theirs = transformers.AutoModel.from_pretrained(minilm).eval()
    texts = lines_in_five_scripts(50)
    inputs = transformers.AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="pt")
    padding = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state
        found = encoder.model.hidden(inputs["input_ids"], padding)
    torch.testing.assert_close(found[padding], expected[padding], atol=1e-5, rtol=0)
    assert isinstance(encoder, Classifier)
    means = torch.stack([row[kept].mean(0) for row, kept in zip(expected, padding, strict=True)])
    torch.testing.assert_close(encoder.embed(texts), torch.nn.functional.normalize(means), atol=1e-5, rtol=0)


def test_encoder_without_labels_refuses_to_classify(encoder: Application) -> None:
    with pytest.raises(UsageError, match="has no labels"):
        encoder.classify("a text")
    with pytest.raises(UsageError, match="has no labels"):
        penwright.inspect(encoder).lens("a text")
    assert penwright.inspect(encoder).head_statistics("a text")


def test_token_spans_cover_text_changed_by_a_normalizer(encoder: Application) -> None:
    tokenizer: Tokenizer = encoder.tokenizer
    text = "Ünïted 漢字 İs ☃ nice"
    assert sum(tokenizer.sizes(text)) == len(text.encode())
    assert tokenizer.unknown_characters(text) == ["字", "☃"]
    assert tokenizer.decode(tokenizer.encode("Hello worlds")) == "hello worlds"
