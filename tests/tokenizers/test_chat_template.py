"""Chat templates: the same text as transformers makes, and messages that stay text."""

import pytest
import transformers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from penwright.errors import PenwrightError
from penwright.tokenizers import chat_template
from penwright.tokenizers.chat_template import PLAIN, ChatTemplate, Message
from penwright.tokenizers.kinds import Markup
from penwright.tokenizers.training import train_tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You are kind.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [Message("user", "Hello"), Message("assistant", "Hi."), Message("user", "Bye"), Message("assistant", "So long.")]


@pytest.mark.parametrize(("source", "end"), [(PLAIN, ""), (CHATML, "<|im_end|>")])
@pytest.mark.parametrize("n", [1, 3])
def test_the_text_is_that_of_transformers(source: str, end: str, n: int) -> None:
    library = LibraryTokenizer(models.BPE())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=library)
    messages = [each._asdict() for each in TALK[:n]]
    text = theirs.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    turns, rest = ChatTemplate(source, end_token=end).turns(TALK[:n])
    assert "".join([piece for turn in turns for piece in (*turn.prompt, turn.answer, end)] + [*rest]) == text


def test_turns_are_the_answers_and_what_comes_before_them() -> None:
    (first, second), rest = ChatTemplate(CHATML, end_token="<|im_end|>").turns(TALK)
    assert (first.answer, second.answer) == ("Hi.", "So long.")
    assert first.prompt[-1] == "<|im_end|>\n<|im_start|>assistant\n"
    assert rest == ("\n<|im_start|>assistant\n",)
    assert second.prompt == (
        "\n<|im_start|>user\n",
        "Bye",
        "<|im_end|>\n<|im_start|>assistant\n",
    )  # the model ends answers
    assert [isinstance(piece, Markup) for piece in second.prompt] == [True, False, True]


def test_special_tokens_in_messages_are_text() -> None:
    tokenizer = train_tokenizer("bytes", ["a"])
    template = ChatTemplate("{{ '</s>' }}{{ messages[0].content }}")
    tokens = tokenizer.encode_pieces(template.turns([Message("user", "a</s>")])[1]).tokens.tolist()
    assert tokens == [tokenizer.end_id, *b"a</s>"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "not valid"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "rejects"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "rejects"),
        ("{% for n in range(10**9) %}{{ n }}{% endfor %}", "rejects"),
        ("{{ 'x' * 10**10 }}", "rejects"),
        ("{% set x = namespace(y='x') %}{% for n in range(99) %}{% set x.y = x.y ~ x.y %}{% endfor %}", "rejects"),
    ],
)
def test_a_bad_or_hostile_template_is_an_error(source: str, message: str) -> None:
    with pytest.raises(PenwrightError, match=message):
        ChatTemplate(source).turns(TALK[:1])


def test_an_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 2)
    source = f"{'{% for n in range(9999) %}' * 4}{'{% endfor %}' * 4}"
    with pytest.raises(PenwrightError, match="needs more than 2 s or 512 MiB of memory"):
        ChatTemplate(source).turns(TALK[:1])
