"""Guess which columns of a table are the text, label, source and target; a doubtful guess is left to the person."""

import json
import re
import tomllib
from collections.abc import Collection, Sequence
from itertools import permutations
from shlex import quote
from typing import NamedTuple

from penwright.data.headers import (
    ANSWER_NAMES,
    DETAIL_NAMES,
    LABEL_NAMES,
    LANGUAGE_NAMES,
    PAIRS_OF_TEXTS,
    PROMPT_NAMES,
    RATING_NAMES,
    SOURCE_NAMES,
    TARGET_NAMES,
    TEXT_NAMES,
)
from penwright.data.profiles import IDENTIFIERS, LISTS, NUMBERS, TEXT, Profile
from penwright.errors import Option, PenwrightError, Undecided

FEW = 20  # classes that identifiers, such as class1, may name
CLEARLY_FEWER = 5  # times fewer values make one of two columns the label
CLEARLY_LONGER = 2  # times as many characters make one of two columns the text
ENOUGH_TO_TELL = 20  # rows
MOST_OPTIONS = 8
Profiles = Sequence[Profile]


class Guess(NamedTuple):
    """The columns for a role, and why."""

    columns: tuple[int, ...]
    reason: str


def setting(key: str, *columns: Profile) -> str:
    """Return the setting that chooses these columns, such as `data.text=headline`."""
    return f"data.{key}={_toml([each.name for each in columns] if len(columns) > 1 else columns[0].name)}"


def _toml(value: str | list[str]) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    try:
        is_text = isinstance(tomllib.loads(f"value = {value}")["value"], str | int) and not value.startswith(("'", '"'))
    except tomllib.TOMLDecodeError:
        is_text = True
    return value if is_text and value not in ("true", "false") else json.dumps(value, ensure_ascii=False)


def overview(profiles: Profiles) -> str:
    """List the columns of a table, each with an example."""
    return ", ".join(each.described() for each in profiles)


# --- labels ---


def named_label(profiles: Profiles) -> Profile | None:
    """Return the column that is called as labels are and has several values, if there is one."""
    by_name = {name: each for each, name in zip(reversed(profiles), reversed(names_of(profiles)), strict=True)}
    exact = [by_name[name] for name in LABEL_NAMES if name in by_name]
    return next((each for each in exact if len(each.values) > 1), None) or _partly_named_label(profiles)


def _partly_named_label(profiles: Profiles) -> Profile | None:
    """Return the column with a name such as is_joke, airline_sentiment or stars, if its values are labels."""
    for each, name in zip(profiles, names_of(profiles), strict=True):
        first, *others = re.split(r"[\W_]+", name)
        like_label = others and (others[-1] in LABEL_NAMES or first in LABEL_NAMES)
        yes_or_no = others and first in ("is", "has") and len(each.values) == 2
        if (like_label or yes_or_no or name in RATING_NAMES) and each.are_labels and not each.is_scale:
            return each
    return None


def likely_labels(profiles: Profiles, without: Collection[int] = ()) -> list[Profile]:
    """Return the columns whose values look like labels, those with the fewest different values first."""
    found = [
        each
        for each, name in zip(profiles, names_of(profiles), strict=True)
        if each.place not in without and _may_be_label(each) and name not in DETAIL_NAMES
    ]
    return sorted(found, key=lambda each: len(each.values))


def _may_be_label(profile: Profile) -> bool:
    few = profile.kind in (TEXT, NUMBERS) or (profile.kind == IDENTIFIERS and len(profile.values) <= FEW)
    return few and profile.are_labels and not profile.is_scale


def guess_label(table: str, profiles: Profiles, without: Sequence[int] = ()) -> Guess:
    """Choose the column of the labels; raise Undecided where several could be, or none."""
    named = named_label([each for each in profiles if each.place not in without])
    if named is not None:
        _refuse_scale(table, named)
        return Guess((named.place,), f"'{named.name}' is a name of labels")
    likely = likely_labels(profiles, without)
    if likely and (len(likely) == 1 or len(likely[1].values) >= CLEARLY_FEWER * len(likely[0].values)):
        best = likely[0]
        what = "is the only column with few" if len(likely) == 1 else "has by far the fewest"
        return Guess((best.place,), f"column {best.name} {what} different short values ({len(best.values):,})")
    if likely:
        raise _undecided(table, "column is the label", "label", likely)
    left = [each for each in profiles if each.place not in without]
    called = [each for each, name in zip(left, names_of(left), strict=True) if name in LABEL_NAMES]
    called = called or [each for each in left if each.is_constant and len(profiles) == 2]
    if called:  # whose single value is named where the labels are counted
        return Guess((called[0].place,), f"column {called[0].name} is the only one that can hold labels")
    others = [each for each in left if not each.is_constant and each.values]
    n_rows = f" in {profiles[0].n_rows:,} rows" if profiles and profiles[0].n_rows < ENOUGH_TO_TELL else ""
    raise Undecided(
        f"{table}: no column looks like labels (few different short values){n_rows}; "
        f"its columns are: {', '.join(each.name for each in profiles)}",
        _options("label", others),
    )


def _refuse_scale(table: str, label: Profile) -> None:
    if label.is_scale:
        raise PenwrightError(
            f"{table}: column '{label.name}' holds numbers on a scale, such as {label.example} "
            f"({len(label.values):,} different values in {label.n_rows:,} rows). Penwright learns classes, not "
            f"numbers. Replace them by classes, such as low and high, or name another column: --set data.label=..."
        )


# --- texts ---


def guess_texts(table: str, profiles: Profiles, without: Collection[int] = ()) -> Guess:
    """Choose the column of the text, or both of a pair such as sentence1 and sentence2."""
    left = [each for each in profiles if each.place not in without]
    if not left:
        raise PenwrightError(f"{table} has only one column; it needs a text and a label")
    readable = [each for each in left if each.is_text]
    pair = pair_of_texts(readable)
    if pair is not None:
        first, second = pair
        return Guess((first.place, second.place), f"'{first.name}' and '{second.name}' are a pair of texts")
    named = named_text([each for each in left if each.has_words])
    if named is not None:
        return Guess((named.place,), f"'{named.name}' is a name of texts")
    telling = [each for each in readable if not each.is_boilerplate and not each.is_constant]
    telling = [each for each in telling if not each.are_labels or each.n_rows < ENOUGH_TO_TELL] or telling
    ranked = sorted(telling or readable, key=lambda each: each.n_characters, reverse=True)
    lists = next((each for each in left if each.kind == LISTS), None)
    if not ranked and lists is not None:
        raise PenwrightError(
            f"{table}: column '{lists.name}' holds lists, such as {lists.example}, and no column holds text. "
            "Penwright reads one text for each column: write a conversation as one column of text, or as two such as "
            f"prompt and response. The columns are: {overview(profiles)}"
        )
    if not ranked:
        raise _undecided(table, "column is the text? None looks like text", "text", left)
    if len(ranked) == 1:
        return Guess((ranked[0].place,), f"column {ranked[0].name} is the only one of text")
    if ranked[0].n_characters < CLEARLY_LONGER * ranked[1].n_characters:
        raise _undecided(table, "column is the text", "text", ranked)
    return Guess((ranked[0].place,), f"column {ranked[0].name} has by far the longest text")


def named_text(profiles: Profiles) -> Profile | None:
    """Return the longest of the columns with a name of texts, such as review, or else headline_text."""
    names = names_of(profiles)
    exact = [each for each, name in zip(profiles, names, strict=True) if name in TEXT_NAMES]
    parts = [{*re.split(r"[\W_]+", name)} for name in names]
    partly = [each for each, part in zip(profiles, parts, strict=True) if part & {*TEXT_NAMES}]
    return max(exact or partly, key=lambda each: each.n_characters, default=None)


def pair_of_texts(profiles: Profiles) -> tuple[Profile, Profile] | None:
    """Return the columns of two texts that belong together: sentence1 and sentence2, premise and hypothesis."""
    by_name = dict(zip(names_of(profiles), profiles, strict=True))
    for name, first in by_name.items():
        numbered = re.fullmatch(r"(.*[^\W\d].*)(?:(1)|(?<=[_-])(a))", name)
        second = by_name.get(numbered[1] + ("2" if numbered[2] else "b")) if numbered else None
        if second is not None:
            return first, second
    return next(((by_name[a], by_name[b]) for a, b in PAIRS_OF_TEXTS if a in by_name and b in by_name), None)


# --- pairs ---


def named_pair(profiles: Profiles) -> tuple[Profile, Profile] | None:
    """Return the columns of text that are called as a source and a target, a prompt and an answer, or two languages."""
    by_name = {name: each for name, each in zip(names_of(profiles), profiles, strict=True) if each.has_words}
    by_name = {name: each for name, each in by_name.items() if not (each.is_constant and each.n_rows > 2)}
    for sources, targets in ((SOURCE_NAMES, TARGET_NAMES), (PROMPT_NAMES, ANSWER_NAMES)):
        source = next((by_name[name] for name in sources if name in by_name), None)
        target = next((by_name[name] for name in targets if name in by_name), None)
        if source is not None and target is not None:
            return source, target
    languages = _languages(by_name)
    return (languages[0], languages[1]) if len(languages) == 2 else None


def _languages(by_name: dict[str, Profile]) -> list[Profile]:
    return [each for name, each in by_name.items() if re.split("[-_]", name)[0] in LANGUAGE_NAMES]


def guess_pair(table: str, profiles: Profiles, without: Collection[int] = ()) -> Guess:
    """Choose the source and the target; raise Undecided unless their names or all other columns' values tell."""
    left = [each for each in profiles if each.place not in without]
    pair = named_pair(left)
    if pair is not None:
        return Guess((pair[0].place, pair[1].place), f"'{pair[0].name}' and '{pair[1].name}' are names of a pair")
    texts = texts_of(left)
    if len(left) == 2 and any(not each.values for each in left):  # that nothing is left is said with its reasons
        texts = list(left)
    if len(texts) == 2:
        why = f"columns {texts[0].name} and {texts[1].name} are the only ones of text" if len(left) > 2 else ""
        return Guess((texts[0].place, texts[1].place), why)
    raise undecided_pair(table, profiles, texts if len(texts) > 2 else [each for each in profiles if each.values])


def undecided_pair(table: str, profiles: Profiles, candidates: Profiles) -> Undecided:
    """Return the question which columns are source and target."""
    options = [
        Option((setting("source", first), setting("target", second)), f"{first.described()} to {second.described()}")
        for first, second in permutations(candidates, 2)
    ]
    found = f"{len(candidates)} columns hold text" if len(texts_of(profiles)) > 2 else "fewer than two hold text"
    question = f"{table}: which columns are the source and the target? Of its columns {found}: {overview(profiles)}"
    return Undecided(question, options[:MOST_OPTIONS])


def texts_of(profiles: Profiles) -> list[Profile]:
    """Return the columns of text, without those that say the same, or nearly the same, in each row."""
    texts = [
        each
        for each in profiles
        if each.is_text
        and (each.n_rows < ENOUGH_TO_TELL or not (each.is_constant or (each.are_labels and len(each.values) <= FEW)))
    ]
    telling = [each for each in texts if not each.is_boilerplate]
    return telling if len(texts) > 2 and len(telling) >= 2 else texts


# --- words for all ---


def unused(profiles: Profiles, used: Collection[int]) -> str:
    """Say which columns are not read, and how to read a text among them; "" where there are none."""
    left = [each for each in profiles if each.place not in used]
    more = [f"{len(left) - MOST_OPTIONS} more"] if len(left) > MOST_OPTIONS else []
    return f"not used: {', '.join([*(each.described() for each in left[:MOST_OPTIONS]), *more])}" if left else ""


def advice_for_more_texts(profiles: Profiles, texts: Collection[int], used: Collection[int]) -> str:
    """Say how to read further columns of text, joined; "" where there are none."""
    more = [each for each in texts_of(profiles) if each.place not in used]
    every = [each for each in profiles if each.place in texts or each in more]
    return f"to read them joined by a space: --set {quote(setting('text', *every))}" if more else ""


def names_of(profiles: Profiles) -> list[str]:
    """Return the names of the columns as they are looked up: in lower case, with underscores."""
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.name).strip().casefold().replace(" ", "_") for each in profiles]


def _options(key: str, columns: Profiles) -> list[Option]:
    return [Option((setting(key, each),), each.described()) for each in columns[:MOST_OPTIONS]]


def _undecided(table: str, what: str, key: str, columns: Profiles) -> Undecided:
    others = [each for each in columns if each.kind != LISTS]
    return Undecided(f"{table}: which {what.rstrip('?')}?", _options(key, others or columns))
