import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.constraints.expressions import Automaton, Expression, Expressions
from penwright.decoding.constraints.patterns import LONGEST_PATTERN, parse_pattern
from penwright.errors import PenwrightError, UsageError

PATTERNS = [
    "",
    "abc",
    "a*b+c?",
    "(ab|a)(c|bcd)?",
    "[a-c]{2,4}",
    "[^ab]+",
    "a.c",
    "(?s:a.c)",
    r"\w+ \d+\.",
    r"(?a:\w)*",
    "(?i)ab[c-d]é",
    "(?i:ß|k)+",
    "^ab|ba$",
    "^(ab)*$",
    "a{3}b{0,2}",
    "(a?){3}b",
    "(a|ab)(bc|c)",
    "x*?y",
    "((a|b)*c){2}",
    "(.*a.{2})|b",
    r"\s\S",
    r"[^\d\W]{2}",
    r"[\D\S]1",
    r"(?i)[^k]+",
    r"(?ai:[\wß])+",
    r"[]^-]*",
    r"[^a]",
    r"(?i)\u212a",
    "[é-ł]{1,2}",
]
texts = st.text("abcABCdxyé1 .\nłßKk]^-\u212a", max_size=7)
quick = settings(max_examples=100)


def accepts(automaton: Automaton, text: str, start: int | None = None) -> bool:
    state = automaton.starts[0] if start is None else start
    for character_class in automaton.classes.of(text):
        state = int(automaton.table[state, character_class])
    return bool(automaton.accepts[state])


def build(pattern: str) -> Automaton:
    expressions = Expressions(limit=100_000)
    return Automaton(expressions, [parse_pattern(expressions, pattern)])


AUTOMATA = {pattern: build(pattern) for pattern in PATTERNS}


@given(st.sampled_from(PATTERNS), texts)
@settings(max_examples=600)
def test_pattern_means_what_it_means_in_python(pattern: str, text: str) -> None:
    assert accepts(AUTOMATA[pattern], text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_matches_some_text(pattern: str) -> None:
    tried = [
        "",
        "abc",
        "b",
        "acbcd",
        "ccc",
        "a c",
        "éł",
        "ab",
        "aaabb",
        "ABcé",
        " a",
        "é 12.",
        "y",
        "bcac",
        "kß",
        "axbb",
        "k1",
        "^]",
        "k",
    ]
    assert any(accepts(AUTOMATA[pattern], text) for text in tried)


EXPRESSIONS = Expressions()
A, B = parse_pattern(EXPRESSIONS, "a.*"), parse_pattern(EXPRESSIONS, ".*[bé]")
COMBINATIONS: list[Expression] = [
    A,
    B,
    EXPRESSIONS.both(A, B),
    EXPRESSIONS.either(A, B),
    EXPRESSIONS.unlike(A),
    EXPRESSIONS.both(A, EXPRESSIONS.unlike(B)),
]
COMBINED = Automaton(EXPRESSIONS, COMBINATIONS)


@given(texts)
@quick
def test_intersection_union_and_complement_are_boolean(text: str) -> None:
    is_a, is_b, both, either, no_a, only_a = (accepts(COMBINED, text, start) for start in COMBINED.starts)
    assert (both, either, no_a, only_a) == (is_a and is_b, is_a or is_b, not is_a, is_a and not is_b)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "missing \\)"),
        ("a{2,1}", "min repeat greater"),
        ("[b-a]", "bad character range"),
        (r"(a)\1", "backreferences"),
        ("a(?=b)b", "lookahead"),
        (r"\ba", "inside the pattern"),
        ("a$b", "inside the pattern"),
        ("a++", "possessive"),
        ("a" * (LONGEST_PATTERN + 1), "at most 1,000"),
        ("(" * 400 + ")" * 400, "nested too deeply"),
    ],
)
def test_unsupported_pattern_is_refused_with_its_reason(pattern: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build(pattern)


@pytest.mark.parametrize("pattern", [".*a.{40}", "((a{1,99}){1,99}){1,99}", "a{1,99999}", "(.*a|.*b.{9}){30}"])
def test_pattern_with_too_many_states_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="too complex"):
        build(pattern)


def test_backtracking_pattern_is_matched_in_linear_time() -> None:
    automaton = build("(x+x+)+y")
    assert not accepts(automaton, "x" * 5000)
    assert accepts(automaton, "x" * 5000 + "y")


def test_missing_python_regex_parser_is_reported_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(re, "_parser")
    monkeypatch.setitem(sys.modules, "re._parser", None)
    with pytest.raises(PenwrightError, match=r"under Python 3\.\d+"):
        build("a|b")
