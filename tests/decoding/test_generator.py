from collections.abc import Callable, Iterator
from math import log

import pytest
import torch
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.errors import UsageError
from penwright.generation.generator import Completion, Generator
from penwright.model.transformer import DecoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import PLAIN_TEMPLATE, Message
from penwright.tokenizers.training import train_tokenizer

SETTINGS = DecodingSettings(max_new_tokens=20, temperature=1.0)


@pytest.fixture
def generator(generating_model: Callable[..., DecoderOnly], characters: Tokenizer) -> Generator:
    model = generating_model(characters.vocab_size, output_bias=True)
    with torch.no_grad():
        model.output.bias[characters.end_id] = -100.0  # no completion ends early
    return Generator(model, characters, SETTINGS)


@pytest.fixture
def bytes_generator(generating_model: Callable[..., DecoderOnly], raw_bytes: Tokenizer) -> Generator:
    return Generator(generating_model(raw_bytes.vocab_size), raw_bytes, SETTINGS)


def drain(stream: Iterator[str]) -> tuple[list[str], Completion]:
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


def test_prompt_and_seed_fix_the_text_alone_in_a_batch_and_streamed(generator: Generator) -> None:
    prompts = ["abc", "", "ja, a b c d e f g h", "b"]
    together = {completion.prompt: completion for completion in generator.generate(prompts[::-1])}
    for prompt in prompts:
        pieces, streamed = drain(generator.stream(prompt))
        (alone,) = generator.generate(prompt)
        assert together[prompt].text == alone.text == streamed.text == "".join(pieces)
        assert together[prompt].tokens == alone.tokens == streamed.tokens


def test_completions_come_in_the_order_of_the_prompts(generator: Generator) -> None:
    prompts = [letters * n for n in (9, 1, 5) for letters in "abcdefghij, A"]  # more than fit into one batch
    assert [completion.prompt for completion in generator.generate(prompts)] == prompts


@pytest.mark.parametrize("n_kept", [2, 4, 40, 800])
def test_long_conversation_keeps_as_many_messages_as_fit(
    generating_model: Callable[..., DecoderOnly], raw_bytes: Tokenizer, n_kept: int
) -> None:
    """Few attempts are made, because each one tokenizes the conversation."""
    messages = [Message("system", "be brief")]
    messages += [Message(("user", "assistant")[n % 2], f"message {n:03}") for n in range(800)]

    def text(n: int) -> str:
        kept = [*messages[:1], *messages[len(messages) - n :]]
        return "\n".join(f"{each.role.capitalize()}:\n{each.content}" for each in kept) + "\nAssistant:\n"

    context = len(text(n_kept)) + n_kept // 2 + 2  # with the start token, the ends of the answers and a new token
    model, attempts = generating_model(raw_bytes.vocab_size, context_length=context), []
    generator = Generator(model, raw_bytes, template=PLAIN_TEMPLATE)
    tokens = generator.chat_tokens(messages, 1, lambda: attempts.append(1))
    assert raw_bytes.decode(tokens).endswith(text(n_kept))
    assert len(attempts) <= 12


def test_answer_of_unlimited_length_has_half_of_a_short_context(
    generating_model: Callable[..., DecoderOnly], raw_bytes: Tokenizer
) -> None:
    model = generating_model(raw_bytes.vocab_size, context_length=200, output_bias=True)
    with torch.no_grad():
        model.output.bias[raw_bytes.end_id] = 100.0
    generator = Generator(model, raw_bytes, template=PLAIN_TEMPLATE)
    messages = [Message(("user", "assistant")[n % 2], f"message {n:03}") for n in range(7)]
    for options in ({}, {"max_new_tokens": 150}):
        prompt = generator.answer(messages, **options).prompt
        assert "message 002" not in prompt and prompt.endswith("message 006\nAssistant:\n") and len(prompt) < 100


def test_repeated_prompt_gives_different_samples(generator: Generator) -> None:
    again = [completion.text for completion in generator.generate(["ab"] * 4)]
    among = [completion.text for completion in generator.generate(["ab", "c", "ab", "ab", "ab"])]
    assert len(set(again)) == 4
    assert again == [among[0], *among[2:]]


def test_another_seed_gives_another_text(generator: Generator) -> None:
    other = SETTINGS.model_copy(update={"seed": 9})
    assert generator.generate("ab")[0].text != generator.generate("ab", other)[0].text


def test_stop_string_ends_the_text_before_it(generator: Generator) -> None:
    (free,) = generator.generate("abc")
    stop = free.text[6:9]
    (stopped,) = generator.generate("abc", SETTINGS.model_copy(update={"stop": (stop,)}))
    assert stopped.finish == "stop"
    assert stopped.text == free.text[: free.text.index(stop)]
    assert free.tokens[: len(stopped.tokens)] == stopped.tokens
    assert len(stopped.tokens) == len(stopped.log_probs)


def test_partial_stop_string_at_the_end_is_kept(generator: Generator) -> None:
    (free,) = generator.generate("abc")
    assert free.finish == "length"
    (same,) = generator.generate("abc", SETTINGS.model_copy(update={"stop": (free.text[-2:] + "no",)}))
    assert same.text == free.text


def test_stream_yields_whole_characters(bytes_generator: Generator) -> None:
    pieces, completion = drain(bytes_generator.stream("é"))
    assert all(pieces)
    assert completion.text == bytes_generator.tokenizer.decode(completion.tokens) == "".join(pieces)


@pytest.mark.parametrize("n_known", [1, 2, 3])
def test_character_that_begins_in_the_prompt_is_completed(bytes_generator: Generator, n_known: int) -> None:
    tokens, pool = bytes_generator.tokenizer.encode("a\U0001f600")[: 1 + n_known], bytes_generator.pool()
    requests = bytes_generator.requests(tokens, SETTINGS, n=4)
    for request in requests:
        pool.join(request)
    while pool.busy:
        pool.step()
    for draft in (request.draft for request in requests):
        assert bytes_generator.tokenizer.decode([*tokens, *draft.tokens]) == "a" + "".join(draft.pieces)
        assert "\ufffd" not in draft.pieces[0]
    (short,) = bytes_generator.requests(tokens, SETTINGS.model_copy(update={"max_new_tokens": 1}))
    pool.join(short)
    pool.step()
    assert len("".join(short.draft.pieces)) == 1  # with too few tokens for the rest, a new character begins


def test_special_tokens_except_end_are_never_generated(generator: Generator) -> None:
    tokenizer = generator.tokenizer
    written = {token for c in generator.generate(["a"] * 5) for token in c.tokens}
    assert not written & {tokenizer.pad_id, tokenizer.start_id, tokenizer.unknown_id}


def test_end_token_finishes_the_completion_without_text(generator: Generator) -> None:
    with torch.no_grad():
        generator.model.output.bias[generator.tokenizer.end_id] = 4.0
    ended = [c for c in generator.generate(["a", "b", "c", "d"]) if c.finish == "end"]
    assert ended
    assert all(c.tokens[-1] == generator.tokenizer.end_id and len(c.text) == len(c.tokens) - 1 for c in ended)


def test_prompt_longer_than_the_context_is_reported(generator: Generator) -> None:
    (long,), (short,) = generator.generate("abcdefgh" * 3), generator.generate("abc")
    assert long.warnings == ("the prompt has 25 tokens, but the model reads at most 16: only the last 8 are used",)
    assert short.warnings == ()


def test_long_prompt_is_continued_like_its_last_part(generator: Generator) -> None:
    greedy = SETTINGS.model_copy(update={"temperature": 0.0})
    ends = [generator.generate(start + "abcdefgh", greedy)[0].text for start in ("j" * 30, "ab c" * 9)]
    assert ends[0] == ends[1]


def test_unknown_characters_are_named_in_a_warning(generator: Generator) -> None:
    (completion,) = generator.generate("añb\x00Ω")
    assert completion.warnings == ("characters the model does not know: ñ U+0000 Ω",)


@pytest.mark.parametrize("prompt", ["a\ud800b", "\x00", "", "\udfff"])
def test_unusual_prompts_are_continued(generator: Generator, bytes_generator: Generator, prompt: str) -> None:
    assert generator.generate(prompt)[0].tokens
    assert bytes_generator.generate(prompt)[0].tokens


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_of_the_model_is_restored(generator: Generator, training: bool) -> None:
    generator.model.train(training)
    generator.generate("a")
    stream = generator.stream("a")
    next(stream)
    stream.close()
    assert generator.model.training == training


def test_stream_leaves_gradients_enabled_for_its_consumer(generator: Generator) -> None:
    stream = generator.stream("a")
    next(stream)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_empty_list_of_prompts_gives_no_completions(generator: Generator) -> None:
    assert generator.generate([]) == []


def test_utf8_rules_of_a_vocabulary_are_made_once(generating_model: Callable[..., DecoderOnly]) -> None:
    tokenizer = train_tokenizer("characters", ["abc"])
    n_made = Utf8Rules.of.cache_info().misses
    Generator(generating_model(tokenizer.vocab_size), tokenizer, SETTINGS).generate("abc")
    assert Utf8Rules.of.cache_info().misses == n_made + 1


def test_repeated_prompt_is_read_once(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    n_read = []
    hidden = generator.model.hidden

    def counted(tokens: Tensor, **rest: object) -> Tensor:
        n_read.append(tuple(tokens.shape))
        return hidden(tokens, **rest)

    monkeypatch.setattr(generator.model, "hidden", counted)
    generator.generate(["abcdef"] * 5 + ["bcdefg"] * 3)
    assert n_read[0] == (2, 7)
    assert n_read[1] == (8, 1)


def test_continuations_of_a_shared_prompt_equal_those_alone(generator: Generator) -> None:
    generator.model.double()
    shared = generator.generate(["ab", "cd", "ab", "ab"])
    assert shared[1].tokens == generator.generate("cd")[0].tokens
    assert shared[0].tokens == generator.generate("ab")[0].tokens
    assert [c.tokens for c in shared if c.prompt == "ab"] == [c.tokens for c in generator.generate(["ab"] * 3)]


def test_each_agrees_with_generate(generator: Generator) -> None:
    prompts = [letters * n for n in (9, 1, 5) for letters in "abcdefghij, A"] * 9  # more than a window
    short = SETTINGS.model_copy(update={"max_new_tokens": 2})
    assert list(generator.each(prompts, short)) == generator.generate(prompts, short)


def test_logit_bias_makes_a_text_more_or_less_frequent(generator: Generator) -> None:
    def times(text: str, bias: float) -> int:
        biased = SETTINGS.model_copy(update={"logit_bias": {text: bias}})
        return sum(completion.text.count(text) for completion in generator.generate(["a"] * 20, biased))

    usual = generator.generate("a")[0].text[3:5]
    assert times(usual, -60.0) == 0 < times(usual, 0.0) < times(usual, 30.0)


@pytest.mark.parametrize("text", ["", "Ω", "a\ud800"])
def test_bias_for_an_unwritable_text_is_refused(generator: Generator, text: str) -> None:
    with pytest.raises(UsageError, match="bias"):
        generator.generate("a", SETTINGS.model_copy(update={"logit_bias": {text: 1.0}}))


def test_bits_per_byte_excludes_the_end_token(bytes_generator: Generator) -> None:
    end = bytes_generator.tokenizer.end_id
    completion = Completion("", "é", (0xC3, 0xA9, end), (-log(2), -3 * log(2), -9.0), "end")
    assert bytes_generator.bits_per_byte(completion) == pytest.approx(2.0)
    assert bytes_generator.bits_per_byte(Completion("", "", (end,), (-9.0,), "end")) is None
    assert completion.mean_log_prob == pytest.approx((-4 * log(2) - 9) / 3)


@pytest.mark.parametrize("seed", range(3))
def test_characters_of_several_tokens_are_complete(generating_model: Callable[..., DecoderOnly], seed: int) -> None:
    common = "我来了你好吗他说道这是什么"
    rare = "".join(map(chr, range(0x4E00, 0x4F00)))
    pieces = train_tokenizer("bpe", [common * 20 + rare], 330)
    generator = Generator(generating_model(pieces.vocab_size, seed), pieces, SETTINGS)
    texts = [completion.text for completion in generator.generate(["我", "", "你好"] * 4)]
    assert "".join(texts) and not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)


def test_characters_are_complete_in_batches_and_in_the_pool(generating_model: Callable[..., DecoderOnly]) -> None:
    tokenizer = train_tokenizer("bpe", ["ab ba"], 300)
    generator = Generator(generating_model(tokenizer.vocab_size), tokenizer)
    settings = DecodingSettings(temperature=2.0, max_new_tokens=7)
    texts = [completion.text for completion in generator.generate(["ab"] * 20, settings)]
    pool = generator.pool()
    for request in generator.requests("ab", settings, 20):
        pool.join(request)
    updates = [(request.number, each.text) for _ in range(7) for request, each in pool.step()]
    assert ["".join(text for number, text in updates if number == n) for n in range(20)] == texts
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(texts) and max("".join(texts)) > "\x7f"
