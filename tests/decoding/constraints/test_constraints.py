import re
from collections.abc import Callable, Sequence

import pytest
import torch

from penwright.config import DecodingSettings
from penwright.decoding.constraints.constraints import CompletionConstraint, _decode
from penwright.errors import UsageError
from penwright.generation.generator import Completion, Generator
from penwright.model.transformer import DecoderOnly
from penwright.text import is_in_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

SETTINGS = DecodingSettings(max_new_tokens=24, temperature=1.3)
TEXT = ["the dragon sat in the heart of a café, and art is long; ab. ", "naïve draga the heartland\n"] * 20


@pytest.fixture(scope="module", params=["characters", "bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, TEXT, 300 if request.param == "bpe" else None)


@pytest.fixture
def generator(generating_model: Callable[..., DecoderOnly], tokenizer: Tokenizer) -> Generator:
    return Generator(generating_model(tokenizer.vocab_size), tokenizer, SETTINGS)


def write(generator: Generator, prompts: Sequence[str] = ("the ",) * 8, **changes: object) -> list[Completion]:
    return generator.generate(prompts, DecodingSettings(**{**SETTINGS.model_dump(), **changes}))


def words(text: str) -> list[str]:
    return "".join(letter if is_in_word(letter) else " " for letter in text.lower()).split()


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a-e ]{3,12}\.",
        r"(the|a) \w+\.",
        r"(café|naïve)+",
        r"(?s:.*)é",
        r"[^é]*",
        r"\w{5}\s\w{3,}",
        r"((a|b)(c|d)?)*",
        r"x?",
    ],
)
def test_every_completion_matches_the_pattern(generator: Generator, pattern: str) -> None:
    for completion in write(generator, pattern=pattern):
        assert re.fullmatch(pattern, completion.text), completion
        assert completion.finish in ("end", "length")


def test_pattern_holds_with_all_samplers_combined(generator: Generator) -> None:
    mixture = {"top_k": 3, "top_p": 0.7, "typical_p": 0.8, "no_repeat_ngram": 2, "min_new_tokens": 20}
    more = {"xtc_probability": 0.5, "dry_multiplier": 2.0, "repetition_penalty": 1.5, "top_n_sigma": 1.0}
    for completion in write(generator, pattern="(abc|de)+f", **mixture, **more):
        assert re.fullmatch("(abc|de)+f", completion.text), completion


def test_shortest_sufficient_token_limit_is_enough(generator: Generator) -> None:
    for completion in write(generator, pattern="[a-c]{9}e", max_new_tokens=10):
        assert re.fullmatch("[a-c]{9}e", completion.text), completion


def test_too_small_token_limit_is_refused_with_the_minimum(generator: Generator) -> None:
    with pytest.raises(UsageError, match="at least 10 "):
        write(generator, pattern="[a-c]{9}e", max_new_tokens=9)


@pytest.mark.parametrize("rules", [{"pattern": "[^\\s\\S]"}, {"pattern": "art", "banned_words": ("art",)}])
def test_contradictory_constraints_are_refused(generator: Generator, rules: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="contradict each other"):
        write(generator, **rules)


def test_pattern_branch_with_an_unknown_character_is_avoided(generating_model: Callable[..., DecoderOnly]) -> None:
    tokenizer = train_tokenizer("characters", ["abc"])
    generator = Generator(generating_model(tokenizer.vocab_size), tokenizer, SETTINGS)
    assert {completion.text for completion in write(generator, pattern="a{1,9}é|b")} == {"b"}
    with pytest.raises(UsageError, match="does not know"):
        write(generator, pattern="[ab]+é")


def test_banned_words_do_not_occur_in_any_case(generator: Generator) -> None:
    free = " ".join(completion.text for completion in write(generator, max_new_tokens=60))
    common = sorted(set(words(free)), key=words(free).count)[-3:]
    assert common
    for completion in write(generator, max_new_tokens=60, banned_words=tuple(word.upper() for word in common)):
        assert not set(common) & set(words(completion.text)), completion


def test_banned_word_is_a_whole_word_unless_it_has_a_star(generator: Generator) -> None:
    text = {"pattern": "heartland|art|arty|heart"}
    for banned, left in [("art", {"heartland", "arty", "heart"}), ("art*", {"heartland", "heart"})]:
        written = {
            completion.text
            for completion in write(generator, ["a "] * 30, **text, banned_words=(banned,), temperature=20.0)
        }
        assert written <= left and len(written) > 1
    with pytest.raises(UsageError):
        write(generator, **text, banned_words=("*art*",))


def test_banned_word_is_not_completed_across_the_prompt_boundary(generator: Generator) -> None:
    pattern = {"pattern": "rt|rts| art|a", "banned_words": ("heart",)}
    assert "rt" not in {completion.text for completion in write(generator, ["the Hea"] * 30, **pattern)}
    assert "rt" in {completion.text for completion in write(generator, ["the sHea"] * 30, **pattern)}


def test_banned_word_in_the_prompt_bans_nothing_else(generator: Generator) -> None:
    rules = {"pattern": " is|s", "banned_words": ("art",), "temperature": 50.0}
    assert {completion.text for completion in write(generator, ["an art"] * 30, **rules)} == {" is", "s"}


def test_required_words_occur_in_every_completion(generator: Generator) -> None:
    for completion in write(generator, ["the", "the "] * 4, required_words=("dragon", "Caf*")):
        found = words(completion.text)
        assert "dragon" in found and any(word.startswith("caf") for word in found), completion


def test_required_word_cannot_extend_the_last_word_of_the_prompt(generator: Generator) -> None:
    assert {c.text for c in write(generator, ["he"] * 9, pattern="art|s art", required_words=("art",))} == {"s art"}


def test_word_begins_after_a_special_token(generator: Generator) -> None:
    """Some chat templates end with a special token."""
    one = SETTINGS.model_copy(update={"max_new_tokens": 1, "required_words": ("a",)})
    prompt = generator.tokenizer.encode("he")
    (request,) = generator.requests([*prompt, generator.tokenizer.end_id], one)
    pool = generator.pool()
    pool.join(request)
    ((_, update),) = pool.step()
    assert update.text.lower() == "a"
    with pytest.raises(UsageError, match="too low"):
        generator.requests(prompt, one)


def test_completion_cut_at_a_stop_string_matches_the_pattern(generator: Generator) -> None:
    stops = ("d", "cd", "bb")
    seen = set()
    for completion in write(generator, ["a "] * 40, pattern="[abc]{2,5}", stop=stops):
        assert re.fullmatch("[abc]{2,5}", completion.text), completion
        assert not any(stop in completion.text for stop in stops)
        seen.add(completion.finish)
    assert "stop" in seen


def test_constrained_row_is_generated_alone_as_in_a_batch(generator: Generator) -> None:
    generator.model.double()
    prompts = ["the ", "a dra", "café", "the heart"]
    rules = {"pattern": r"[\w ]{4,12}(\.|!|é)", "banned_words": ("dragon",)}
    together = {completion.prompt: completion.tokens for completion in write(generator, prompts, **rules)}
    for prompt in prompts:
        assert write(generator, [prompt], **rules)[0].tokens == together[prompt]


@pytest.mark.parametrize("pattern", ["(ab|é)*c", r"[^a]b\w?", "(?i)thé ?"])
def test_allowed_tokens_are_those_that_can_lead_to_a_match(tokenizer: Tokenizer, pattern: str) -> None:
    """Compare with brute force: a token is allowed if some short text completes a match after it."""
    guide = CompletionConstraint(DecodingSettings(pattern=pattern), tokenizer, ["x"], 50, tokenizer.end_ids)
    tails = [
        "",
        *"abcehtxé ",
        "bc",
        "éc",
        "b",
        "hé",
        "abc",
        "é ",
        "\u00fe",
        "\u0436",
        "\u4e00",
        "\U0001f600",
        "\u4e00b",
        "\U0001f600b",
    ]
    finished = [(before + tail).encode() for before in ("", "a", "ab", "é", "x", "T", "th") for tail in tails]
    matching = [text for text in finished if re.fullmatch(pattern, text.decode())]
    allowed = guide.reach(guide.starts["x"], b"") <= 40
    for token in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes(token)
        if token in (tokenizer.end_id, tokenizer.unknown_id) or not spelled:
            continue
        if any(text.startswith(spelled) and _writable(tokenizer, text) for text in matching):
            assert allowed[token], spelled
        elif spelled.decode("utf-8", errors="ignore") and not _begins(pattern, spelled):
            assert not allowed[token], spelled
    assert allowed[tokenizer.end_id] == bool(re.fullmatch(pattern, ""))


def _writable(tokenizer: Tokenizer, text: bytes) -> bool:
    return not tokenizer.unknown_characters(text.decode())


def _begins(pattern: str, spelled: bytes) -> bool:
    """Whether these bytes begin a match: try all endings of up to three letters."""
    text = spelled.decode("utf-8", errors="replace")
    letters = ["", *"abcéht \ufffd"]
    return any(re.fullmatch(pattern, text + a + b + c) for a in letters for b in letters for c in letters)


def test_partial_utf8_characters_are_distinguished_from_invalid_bytes() -> None:
    every = [chr(point).encode() for point in range(0x80, 0x110000) if not 0xD800 <= point < 0xE000]
    begun = {spelled[:length] for spelled in every for length in range(1, len(spelled))}
    ones = [bytes([byte]) for byte in range(0x80, 0x100)]
    twos = [one + bytes([byte]) for one in ones for byte in range(0x80, 0xC0)]
    threes = [two + b"\x80" for two in twos]
    for tried in ones + twos + threes:
        assert (_decode(tried) == ("", tried)) == (tried in begun), tried


@pytest.mark.parametrize("word", ["", "*", "**"])
def test_required_word_without_letters_is_refused(generator: Generator, word: str) -> None:
    with pytest.raises(UsageError, match="write some letters"):
        write(generator, required_words=(word,))


@pytest.mark.parametrize("word", ["\x00", "\u2028", "\ud800", "🎉", "a b", "...", "ß"])
def test_unusual_words_can_be_banned(generator: Generator, word: str) -> None:
    assert all(word not in completion.text for completion in write(generator, banned_words=(word,)))


def test_min_new_tokens_delays_the_end_token(generator: Generator) -> None:
    with torch.no_grad():
        generator.model.output.weight[generator.tokenizer.end_id] = generator.model.output.weight.mean(0) * 5
    for completion in write(generator, ["a "] * 20, min_new_tokens=7, max_new_tokens=30):
        assert len(completion.tokens) > 7


@pytest.mark.parametrize("limits", [{"min_new_tokens": 20, "max_new_tokens": 5}, {"min_new_tokens": 500}])
def test_min_new_tokens_above_the_maximum_is_refused(generator: Generator, limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="min_new_tokens is"):
        generator.generate("a ", **limits)


def test_pattern_with_a_lone_surrogate_is_refused_or_its_branch_avoided(generator: Generator) -> None:
    with pytest.raises(UsageError):
        write(generator, pattern="\ud800")
    assert {each.text for each in write(generator, pattern="(\ud800|dragon)", max_new_tokens=6)} == {"dragon"}


def test_distances_of_a_pattern_with_many_states_are_exact() -> None:
    tokenizer = train_tokenizer("bytes", TEXT, None)
    guide = CompletionConstraint(DecodingSettings(pattern="a{9000}(b|é)"), tokenizer, [""], 9500, tokenizer.end_ids)
    assert guide.distances[guide.starts[""]] == 9001


@pytest.mark.parametrize(
    ("word", "text", "is_in"),
    [
        ("北京", "我爱北京天安门。", True),
        ("AI", "使用AI技术", True),
        ("AI", "使用AID技术", False),
        ("แมว", "ฉันรักแมวมาก", True),
        ("कम", "यह कम है", True),
        ("कम", "यह कमी है", False),
        ("cafe", "the cafe\u0301", False),
    ],
)
def test_words_are_whole_in_all_scripts(word: str, text: str, is_in: bool) -> None:
    tokenizer = train_tokenizer("characters", [text])

    def accepts(rules: DecodingSettings) -> bool:
        guide = CompletionConstraint(rules, tokenizer, [" "], 99, tokenizer.end_ids)
        state = guide.starts[" "], b""
        for token in tokenizer.encode(text):
            state = guide.follow(*state, token)
        return bool(guide.automaton.accepts[state[0]])

    assert accepts(DecodingSettings(required_words=(word,))) is is_in
    assert accepts(DecodingSettings(banned_words=(word,))) is not is_in


def test_long_token_needs_no_room_for_the_others() -> None:
    tokenizer = train_tokenizer("bpe", ["abcdefgh" * 30] * 9, 300)
    settings = DecodingSettings(banned_words=("x",))
    texts = CompletionConstraint(settings, tokenizer, ["a"], 50, tokenizer.end_ids)._token_texts(b"")
    sizes = [len(column) for column in texts.columns]
    assert len(sizes) > 100
    assert sum(sizes) == sum(
        len(tokenizer.token_bytes(token).decode("utf-8", "ignore")) for token in texts.tokens.tolist()
    )
