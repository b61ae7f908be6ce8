"""Warnings about faulty translations, and none for good ones."""

import pytest

from penwright.translation.results import repeated, symptoms


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("a b c d", ""),
        ("no no no", ""),
        ("no no no no", "no"),
        ("x the cat the cat the cat y", "the cat"),
        ("the cat the cat", ""),
        ("a b c a b c a b c", "a b c"),
        ("", ""),
    ],
)
def test_repeated_finds_loops(text: str, loop: str) -> None:
    assert repeated(text.split()) == loop


@pytest.mark.parametrize(
    ("source", "target", "n_source", "n_target", "warning"),
    [
        ("a dog runs home", "ein Hund läuft heim", 4, 4, ""),
        ("a dog runs home", "a a a a a", 4, 5, 'the translation repeats itself: "a"'),
        ("A MAN IS RUNNING", "Ein CSIIIIIIIIII.", 4, 9, 'the translation repeats itself: "I"'),
        ("😀", "Ein Poberberberberberber.", 2, 9, 'the translation repeats itself: "ber"'),
        ("Neeeeeein", "Noooooooo", 2, 2, ""),
        ("a million", "1000000000 ------ ......", 2, 9, ""),
        ("Hahaha", "hahahaha", 2, 2, ""),
        ("ha ha ha ha", "ha ha ha ha", 4, 4, "the translation copies the source"),
        ("A dog runs home", "a dog runs home", 4, 4, "the translation copies the source"),
        ("Tom", "Tom", 1, 1, ""),
        ("one two three four five six seven eight nine", "eins", 9, 1, "very short: 1 against 9 tokens"),
        ("one two three four five six seven eight nine", "eins zwei", 9, 40, "very long: 40 against 9 tokens"),
    ],
)
def test_symptoms_gives_the_expected_warning(
    source: str, target: str, n_source: int, n_target: int, warning: str
) -> None:
    found = symptoms(source, target, n_source, n_target)
    assert len(found) == bool(warning) and all(warning in each for each in found)


def test_loop_is_found_in_text_without_spaces() -> None:
    assert symptoms("I am very glad.", "我很高兴我很高兴我很高兴。", 5, 13) == [
        'the translation repeats itself: "我很高兴"'
    ]
