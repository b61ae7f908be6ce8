"""Chat templates: the same text as in transformers, and messages that stay plain text."""

import json
from datetime import date
from types import SimpleNamespace

import pytest
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from penwright.config import ChatSettings
from penwright.errors import PenwrightError
from penwright.tokenizers import chat_template
from penwright.tokenizers.chat_template import (
    PLAIN,
    ChatTemplate,
    Message,
    RejectedMessages,
    encode_pieces,
    template_of,
)
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.markup import Markup
from penwright.tokenizers.training import train_tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You are kind.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{% for m in messages %}{{ bos_token if loop.first }}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
ANSWERS_ALONE = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
QWEN_3 = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
DEEPSEEK_R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% else %}"
    "{% set content = m.content %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
    "{% endif %}{{ '<|Assistant|>' + content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
QWEN_3_HISTORY = (
    "{% for m in messages %}{% set content = m.content %}{% if m.role == 'assistant' %}"
    "{% set content = m.content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
)
REASONING_FIRST = (
    "{% for m in messages %}{% set parts = m.content.split('</think>') %}{% if parts | length == 2 %}"
    "{{ '[' + parts[0] + ']' }}{% endif %}{{ parts[-1] }}{% endfor %}"
)
WITHOUT_TOOLS = (
    "{% if tools is not none or documents is not none %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
DATED = "{{ strftime_now('%Y') }}{{ messages[0].content }}"
ENDS = {  # the text that each template calls eos_token
    PLAIN: "",
    CHATML: "<|im_end|>",
    LLAMA_2: "</s>",
    LLAMA_3: "<|eot_id|>",
    MISTRAL: "</s>",
    GEMMA: "<end_of_turn>",
    ZEPHYR: "</s>",
}
MESSAGES = [
    Message("user", "Hello"),
    Message("assistant", "Hi."),
    Message("user", "Bye"),
    Message("assistant", "So long."),
]


@pytest.mark.parametrize("source", ENDS)
@pytest.mark.parametrize("n", [1, 3])
def test_rendered_template_equals_that_of_transformers(source: str, n: int) -> None:
    library, end = LibraryTokenizer(models.BPE()), ENDS[source]
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token=end or None)
    messages = [each._asdict() for each in MESSAGES[:n]]
    text = reference.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    turns, rest = ChatTemplate(source, "<s>", end).turns(MESSAGES[:n])
    assert "".join([piece for turn in turns for piece in (*turn.prompt, turn.answer, end)] + [*rest]) == text


@pytest.mark.parametrize("given", [{}, {"unk_token": "<unk>", "pad_token": "<pad>"}])
def test_templates_read_the_unknown_and_the_padding_token(given: dict[str, str]) -> None:
    source = f"{{{{ unk_token }}}}{{% if pad_token is defined %}}{{{{ pad_token }}}}{{% endif %}}{CHATML}"
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=LibraryTokenizer(models.BPE()), **given)
    messages = [each._asdict() for each in MESSAGES[:1]]
    text = reference.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    template = template_of(ChatSettings(template=source, **given))
    assert "".join(template.turns(MESSAGES[:1])[1]) == text


@pytest.mark.parametrize("source", [LLAMA_2, LLAMA_3, GEMMA, MISTRAL, DATED, WITHOUT_TOOLS])
def test_contents_are_trimmed_where_the_template_trims_them(source: str) -> None:
    library = LibraryTokenizer(models.BPE())
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    message = Message("user", " \n Hello </s> \n")
    wanted = reference.apply_chat_template(
        [message._asdict()], chat_template=source, tokenize=False, add_generation_prompt=True
    )
    template = ChatTemplate(source, "<s>", "</s>")
    template.check()
    assert "".join(template.turns([message])[1]) == wanted


@pytest.mark.parametrize("source", [DEEPSEEK_R1, QWEN_3_HISTORY, LLAMA_3, CHATML])
@pytest.mark.parametrize(
    "answer", ["<think>\nIt greets.\n</think>\n\n Hi. ", "No.</think>So.</think>Hi.", "</think>\n"]
)
def test_reasoning_in_earlier_answers_is_left_out_as_in_transformers(source: str, answer: str) -> None:
    library = LibraryTokenizer(models.BPE())
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    messages = [Message("user", "Why </think> so?"), Message("assistant", answer), Message("user", "Bye")]
    wanted = reference.apply_chat_template(
        [each._asdict() for each in messages], chat_template=source, tokenize=False, add_generation_prompt=True
    )
    (turn,), rest = ChatTemplate(source, "<s>", end := "</s>" if source == DEEPSEEK_R1 else "").turns(messages)
    assert "".join([*turn.prompt, turn.answer, end, *rest]) == wanted


def test_last_answer_keeps_its_reasoning() -> None:
    answer = "<think>\nIt greets.\n</think>\n\nHi."
    for source in (DEEPSEEK_R1, QWEN_3_HISTORY, REASONING_FIRST):
        (turn,), _ = ChatTemplate(source, end_token="</s>").turns(
            [Message("user", "Hello"), Message("assistant", answer)]
        )
        assert turn.answer == answer


def test_reasoning_that_a_template_moves_stays_in_the_answer() -> None:
    messages = [Message("user", "Hello"), Message("assistant", "It greets.</think>Hi."), Message("user", "Bye")]
    (turn,), rest = ChatTemplate(REASONING_FIRST).turns(messages)
    assert (turn.answer, rest) == (messages[1].content, ("Bye",))


def test_prompt_for_an_answer_is_the_prompt_of_training() -> None:
    template = ChatTemplate(QWEN_3, end_token="<|im_end|>")
    ((turn,), _), (_, asked) = template.turns(MESSAGES[:2]), template.turns(MESSAGES[:1])
    assert turn.prompt == asked
    assert asked[-1].endswith("</think>\n\n")


@pytest.mark.parametrize("written", ["m.content | tojson", "m.content | upper", "m.content | e", "m.role"])
def test_template_that_changes_messages_is_refused(written: str) -> None:
    with pytest.raises(PenwrightError, match="leaves out messages or changes their characters"):
        ChatTemplate(f"{{% for m in messages %}}{{{{ {written} }}}}{{% endfor %}}").check()


@pytest.mark.parametrize("number", ["9", "99999"])
def test_template_that_writes_reserved_characters_is_refused(number: str) -> None:
    with pytest.raises(PenwrightError, match="reserved for messages"):
        ChatTemplate(f"{{% for m in messages %}}{{{{ m.content }}}}\ue000{number}\ue001{{% endfor %}}").check()


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize("source", [LLAMA_2, MISTRAL, ZEPHYR, ANSWERS_ALONE])
def test_metaspace_tokens_of_a_template_equal_those_of_transformers(source: str, scheme: str) -> None:
    library = LibraryTokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(prepend_scheme=scheme), decoders.Metaspace()
    specials = [AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")]
    text = "[INST] Hello [/INST] Hi. [INST] Bye [/INST] So long. <|user|>\n<|assistant|>\n"
    library.train_from_iterator([text] * 3, trainers.BpeTrainer(special_tokens=specials, show_progress=False))
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    tokenizer = ForeignTokenizer(json.loads(library.to_str()) | {"penwright": {"pad": 2, "start": 1, "end": 2}})
    wanted = reference.apply_chat_template(
        [each._asdict() for each in MESSAGES], chat_template=source, add_generation_prompt=True
    )["input_ids"]
    turns, rest = ChatTemplate(source, "<s>", "</s>").turns(MESSAGES)
    pieces = [piece for turn in turns for piece in (turn.prompt, [turn.answer], [Markup("</s>")])]
    found = [token for each in [*pieces, rest] for token in encode_pieces(tokenizer, each)]
    assert reference.convert_ids_to_tokens(found) == reference.convert_ids_to_tokens(wanted)


def test_turns_split_the_text_into_prompts_and_answers() -> None:
    (first, second), rest = ChatTemplate(CHATML, end_token="<|im_end|>").turns(MESSAGES)
    assert (first.answer, second.answer) == ("Hi.", "So long.")
    assert first.prompt[-1] == "<|im_end|>\n<|im_start|>assistant\n"
    assert rest == ("\n<|im_start|>assistant\n",)
    assert second.prompt == (
        "\n<|im_start|>user\n",
        "Bye",
        "<|im_end|>\n<|im_start|>assistant\n",
    )  # without the end of the first answer, which the model writes
    assert [isinstance(piece, Markup) for piece in second.prompt] == [True, False, True]


def test_special_tokens_in_messages_are_encoded_as_text() -> None:
    tokenizer = train_tokenizer("bytes", ["a"])
    template = ChatTemplate("{{ '</s>' }}{{ messages[0].content }}")
    tokens = encode_pieces(tokenizer, template.turns([Message("user", "a</s>")])[1])
    assert tokens == [tokenizer.end_id, *b"a</s>"]


@pytest.mark.parametrize("role", ["user</s>", "user\n", "", "[INST]"])
def test_special_tokens_in_roles_are_refused(role: str) -> None:
    with pytest.raises(RejectedMessages, match="cannot be the role"):
        ChatTemplate().turns([Message(role, "a")])
    assert not ChatTemplate().rejects([Message("Dr. O'Neil-2", "a")])


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
def test_invalid_or_hostile_template_is_refused(source: str, message: str) -> None:
    with pytest.raises(PenwrightError, match=message):
        ChatTemplate(source).turns(MESSAGES[:1])


def test_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 2)
    source = f"{'{% for n in range(9999) %}' * 4}{'{% endfor %}' * 4}"
    with pytest.raises(PenwrightError, match="needs more than 2 s or 512 MiB of memory"):
        ChatTemplate(source).turns(MESSAGES[:1])


def test_date_in_a_template_is_that_of_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    for day in (date(2031, 5, 1), date(2032, 5, 1)):
        done = SimpleNamespace(stdout=json.dumps({"text": str(day.year)}))
        monkeypatch.setattr(chat_template, "date", SimpleNamespace(today=lambda day=day: day))
        monkeypatch.setattr(chat_template, "run_limited", lambda *_, done=done, **__: done)
        assert ChatTemplate(DATED).turns(MESSAGES[:1])[1] == (str(day.year),)
