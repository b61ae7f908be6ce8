import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.constraints.expressions import Automaton, Expression, Expressions
from penwright.decoding.constraints.patterns import LONGEST, parse_pattern
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
    for of_class in automaton.classes.of(text):
        state = int(automaton.table[state, of_class])
    return bool(automaton.accepts[state])


def built(pattern: str) -> Automaton:
    expressions = Expressions(limit=100_000)
    return Automaton(expressions, [parse_pattern(expressions, pattern)])


AUTOMATA = {pattern: built(pattern) for pattern in PATTERNS}


@given(st.sampled_from(PATTERNS), texts)
@settings(max_examples=600)
def test_a_pattern_means_what_python_means_by_it(pattern: str, text: str) -> None:
    assert accepts(AUTOMATA[pattern], text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_some_of_what_they_are_made_for(pattern: str) -> None:
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


MAKE = Expressions()
A, B = parse_pattern(MAKE, "a.*"), parse_pattern(MAKE, ".*[bé]")
LOGIC: list[Expression] = [A, B, MAKE.both(A, B), MAKE.either(A, B), MAKE.unlike(A), MAKE.both(A, MAKE.unlike(B))]
COMBINED = Automaton(MAKE, LOGIC)


@given(texts)
@quick
def test_and_or_not_are_those_of_logic(text: str) -> None:
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
        ("a" * (LONGEST + 1), "at most 1,000"),
        ("(" * 400 + ")" * 400, "nested too deeply"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(pattern: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        built(pattern)


@pytest.mark.parametrize("pattern", [".*a.{40}", "((a{1,99}){1,99}){1,99}", "a{1,99999}", "(.*a|.*b.{9}){30}"])
def test_patterns_that_explode_are_refused_soon(pattern: str) -> None:
    with pytest.raises(UsageError, match="too complex"):
        built(pattern)


def test_evil_patterns_are_read_in_a_step_a_character() -> None:
    automaton = built("(x+x+)+y")
    assert not accepts(automaton, "x" * 5000)
    assert accepts(automaton, "x" * 5000 + "y")


def test_under_a_python_with_another_parser_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(re, "_parser")
    monkeypatch.setitem(sys.modules, "re._parser", None)
    with pytest.raises(PenwrightError, match=r"under Python 3\.\d+"):
        built("a|b")
