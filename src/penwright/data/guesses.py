"""Guesses at the text, label, source and target columns of a table. In doubtful cases, the user decides."""

import json
import re
import tomllib
from collections.abc import Collection, Sequence
from itertools import permutations
from shlex import quote
from typing import NamedTuple

from penwright.data.profiles import IDENTIFIERS, LISTS, NUMBERS, TEXT, Profile
from penwright.data.readers.layout import (
    ANSWER_NAMES,
    DETAIL_NAMES,
    INPUT_NAMES,
    INSTRUCTION_NAMES,
    LABEL_NAMES,
    PAIRS_OF_TEXTS,
    PROMPT_NAMES,
    RATING_NAMES,
    SOURCE_NAMES,
    TARGET_NAMES,
    TEXT_NAMES,
)
from penwright.errors import Option, PenwrightError, Undecided
from penwright.languages import LANGUAGE_NAMES

FEW = 20  # maximum number of different labels in a column of identifiers such as class1
CLEARLY_FEWER = 5  # choose a label column if all others have at least this many times as many distinct values
CLEARLY_LONGER = 2  # choose a text column if it has at least this many times as many characters as any other
ENOUGH_TO_TELL = 20  # minimum number of rows needed to judge the values of a column
MOST_OPTIONS = 8  # maximum number of columns or choices in a message
Profiles = Sequence[Profile]


class Guess(NamedTuple):
    """The columns guessed for a role, and the reason."""

    columns: tuple[int, ...]
    reason: str


def setting(key: str, *columns: Profile) -> str:
    """Return the setting that chooses these columns, such as `data.text=headline`."""
    return f"data.{key}={_toml([column.name for column in columns] if len(columns) > 1 else columns[0].name)}"


def _toml(value: str | list[str]) -> str:
    """Return a value in TOML. Quote a string only if TOML would otherwise read it as another type."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    try:
        is_text = isinstance(tomllib.loads(f"value = {value}")["value"], str | int) and not value.startswith(("'", '"'))
    except tomllib.TOMLDecodeError:
        is_text = True
    return value if is_text and value not in ("true", "false") else json.dumps(value, ensure_ascii=False)


def overview(profiles: Profiles) -> str:
    """Describe the first columns in one line, each with an example."""
    more = [f"{len(profiles) - MOST_OPTIONS:,} more"] if len(profiles) > MOST_OPTIONS else []
    return ", ".join([*(column.described() for column in profiles[:MOST_OPTIONS]), *more])


# --- labels ---


def named_label(profiles: Profiles) -> Profile | None:
    """Return the column whose name suggests labels and that has several values, or None."""
    by_name = {column.key: column for column in reversed(profiles)}
    exact = [by_name[name] for name in LABEL_NAMES if name in by_name]
    return next((column for column in exact if len(column.values) > 1), None) or _partly_named_label(profiles)


def _partly_named_label(profiles: Profiles) -> Profile | None:
    """Return the column with a name such as is_joke, airline_sentiment or stars, if its values could be labels."""
    for column in profiles:
        first, *others = re.split(r"[\W_]+", column.key)
        like_label = others and (others[-1] in LABEL_NAMES or first in LABEL_NAMES)
        yes_or_no = others and first in ("is", "has") and len(column.values) == 2
        if (like_label or yes_or_no or column.key in RATING_NAMES) and column.are_labels and not column.is_scale:
            return column
    return None


def likely_labels(profiles: Profiles, without: Collection[int] = ()) -> list[Profile]:
    """Return the columns whose values look like labels, fewest different values first."""
    candidates = [
        column
        for column in profiles
        if column.index not in without and _may_be_label(column) and column.key not in DETAIL_NAMES
    ]
    return sorted(candidates, key=lambda column: len(column.values))


def _may_be_label(profile: Profile) -> bool:
    """Return whether a column could hold labels: few different values, all short, and no measurements."""
    few = profile.kind in (TEXT, NUMBERS) or (profile.kind == IDENTIFIERS and len(profile.values) <= FEW)
    return few and profile.are_labels and not profile.is_scale


def guess_label(table: str, profiles: Profiles, without: Sequence[int] = ()) -> Guess:
    """Choose the label column. Raises Undecided if several columns, or none, could hold the labels."""
    named = named_label([column for column in profiles if column.index not in without])
    if named is not None:
        _refuse_scale(table, named)
        return Guess((named.index,), f"'{named.name}' is a common name for labels")
    likely = likely_labels(profiles, without)
    if likely and (len(likely) == 1 or len(likely[1].values) >= CLEARLY_FEWER * len(likely[0].values)):
        best = likely[0]
        what = "is the only one with few values" if len(likely) == 1 else "has by far the fewest values"
        check = "; guessed from the values alone: to choose another, --set data.label=NAME" if len(profiles) > 2 else ""
        return Guess((best.index,), f"column {best.name} {what} ({len(best.values):,} distinct), all short{check}")
    if likely:
        raise _undecided(table, "which column is the label?", "label", likely)
    left = [column for column in profiles if column.index not in without]
    called = [column for column in left if column.key in LABEL_NAMES]
    called = called or [column for column in left if column.is_constant and len(profiles) == 2]
    if called:  # if there is only one label, count_labels() raises an error
        return Guess((called[0].index,), f"column {called[0].name} is the only one that can hold labels")
    others = [column for column in left if not column.is_constant and column.values]
    n_rows = f" in {profiles[0].n_rows:,} rows" if profiles and profiles[0].n_rows < ENOUGH_TO_TELL else ""
    raise Undecided(
        f"{table}: no column looks like labels (few different short values){n_rows}; "
        f"its columns are: {', '.join(column.name for column in profiles)}",
        _options("label", others),
    )


def _refuse_scale(table: str, label: Profile) -> None:
    """Raise PenwrightError if the labels are measurements rather than class names."""
    if label.is_scale:
        raise PenwrightError(
            f"{table}: column '{label.name}' holds numbers on a scale, such as {label.example} "
            f"({len(label.values):,} different values in {label.n_rows:,} rows). To predict numbers, add --task score. "
            "To predict classes, replace the numbers with names such as low and high, or choose a different column: "
            "--set data.label=..."
        )


# --- texts ---


def guess_texts(table: str, profiles: Profiles, without: Collection[int] = ()) -> Guess:
    """Choose the text column, or both columns of a pair such as sentence1 and sentence2.

    Raises Undecided if several columns, or none, could be the text.
    """
    left = [column for column in profiles if column.index not in without]
    if not left:
        raise PenwrightError(f"{table} has only one column; it needs a text and a label")
    readable = [column for column in left if column.is_text]
    pair = pair_of_texts(readable)
    if pair is not None:
        return Guess((pair[0].index, pair[1].index), f"'{pair[0].name}' and '{pair[1].name}' are a pair of texts")
    named = named_text([column for column in left if column.has_words])
    if named is not None:
        return Guess((named.index,), f"'{named.name}' is a common name for texts")
    telling = [column for column in readable if not column.is_boilerplate and not column.is_constant]
    telling = [column for column in telling if not column.are_labels or column.n_rows < ENOUGH_TO_TELL] or telling
    ranked = sorted(telling or readable, key=lambda column: column.n_characters, reverse=True)
    lists = next((column for column in left if column.kind == LISTS), None)
    if not ranked and lists is not None:
        raise PenwrightError(
            f"{table}: column '{lists.name}' holds lists, such as {lists.example}, and no column holds text. "
            "Penwright reads one text from each cell: write a conversation as one column of text, or as two, such as "
            f"prompt and response. The columns are: {overview(profiles)}"
        )
    if not ranked:
        raise _undecided(table, "which column is the text (none looks like text)?", "text", left)
    if len(ranked) == 1:
        return Guess((ranked[0].index,), f"column {ranked[0].name} is the only text column")
    if ranked[0].n_characters < CLEARLY_LONGER * ranked[1].n_characters:
        raise _undecided(table, "which column is the text?", "text", ranked)
    return Guess((ranked[0].index,), f"column {ranked[0].name} has by far the longest text")


def named_text(profiles: Profiles) -> Profile | None:
    """Return the column whose name is a word for text (`review`) or else contains one (`headline_text`), or None.

    If several columns have such a name, return the one with the most characters.
    """
    exact = [column for column in profiles if column.key in TEXT_NAMES]
    partly = [column for column in profiles if not {*TEXT_NAMES}.isdisjoint(re.split(r"[\W_]+", column.key))]
    return max(exact or partly, key=lambda column: column.n_characters, default=None)


def pair_of_texts(profiles: Profiles) -> tuple[Profile, Profile] | None:
    """Return two columns that form a pair of texts, such as sentence1 and sentence2, or None."""
    by_name = {column.key: column for column in profiles}
    for name, first in by_name.items():
        numbered = re.fullmatch(r"(.*[^\W\d].*)(?:(1)|(?<=[_-])(a))", name)
        second = by_name.get(numbered[1] + ("2" if numbered[2] else "b")) if numbered else None
        if second is not None:
            return first, second
    return next(((by_name[a], by_name[b]) for a, b in PAIRS_OF_TEXTS if a in by_name and b in by_name), None)


# --- pairs ---


def named_pair(profiles: Profiles) -> tuple[Profile, Profile] | None:
    """Return two text columns whose names form a pair (source and target, prompt and answer, languages), or None."""
    by_name = {column.key: column for column in profiles if column.has_words}
    by_name = {name: column for name, column in by_name.items() if not (column.is_constant and column.n_rows > 2)}
    kinds = [(SOURCE_NAMES, TARGET_NAMES), (PROMPT_NAMES, ANSWER_NAMES)]
    if any(name in by_name for name in INSTRUCTION_NAMES):  # if there are instructions, `input` is part of the prompt
        kinds.reverse()
    for sources, targets in kinds:
        source = next((by_name[name] for name in sources if name in by_name), None)
        target = next((by_name[name] for name in targets if name in by_name), None)
        if source is not None and target is not None:
            return source, target
    languages = [column for name, column in by_name.items() if re.split("[-_]", name)[0] in LANGUAGE_NAMES]
    return (languages[0], languages[1]) if len(languages) == 2 else None


def rest_of_prompt(profiles: Profiles, pair: Sequence[int]) -> tuple[int, ...]:
    """Return the column that continues an instruction, such as Alpaca's `input`.

    Return () if the source is not an instruction. The column may be blank in most rows.
    """
    if profiles[pair[0]].key not in INSTRUCTION_NAMES:
        return ()
    rest = (column for column in profiles if column.key in INPUT_NAMES and column.index not in pair)
    return tuple(column.index for column in rest if column.values)


def guess_pair(table: str, profiles: Profiles) -> Guess:
    """Choose the source and the target column. Raises Undecided if neither names nor values identify them."""
    pair = named_pair(profiles)
    if pair is not None:
        first, second = pair
        return Guess((first.index, second.index), f"'{first.name}' and '{second.name}' are common names for a pair")
    texts = texts_of(profiles)
    # Accept empty columns here: cleaning reports later why no rows are left.
    if len(profiles) == 2 and any(not column.values for column in profiles):
        texts = list(profiles)
    if len(texts) == 2:
        why = f"columns {texts[0].name} and {texts[1].name} are the only text columns" if len(profiles) > 2 else ""
        return Guess((texts[0].index, texts[1].index), why)
    raise undecided_pair(table, profiles, texts if len(texts) > 2 else [column for column in profiles if column.values])


def undecided_pair(table: str, profiles: Profiles, candidates: Profiles) -> Undecided:
    """Return an error that asks which columns are the source and the target."""
    options = [
        Option((setting("source", first), setting("target", second)), f"{first.described()} to {second.described()}")
        for first, second in permutations(candidates, 2)
    ]
    number = f"{len(candidates)} contain text" if len(texts_of(profiles)) > 2 else "fewer than two contain text"
    question = f"{table}: which columns are the source and the target? Of its columns, {number}: {overview(profiles)}"
    return Undecided(question, options[:MOST_OPTIONS])


def texts_of(profiles: Profiles) -> list[Profile]:
    """Return the text columns, without columns that repeat the same few values or the same boilerplate."""
    texts = [
        column
        for column in profiles
        if column.is_text
        and (
            column.n_rows < ENOUGH_TO_TELL
            or not (column.is_constant or (column.are_labels and len(column.values) <= FEW))
        )
    ]
    telling = [column for column in texts if not column.is_boilerplate]
    return telling if len(texts) > 2 and len(telling) >= 2 else texts


# --- shared messages ---


def unused(profiles: Profiles, used: Collection[int]) -> str:
    """Describe the columns that are not used; return "" if there are none."""
    left = [column for column in profiles if column.index not in used]
    return f"not used: {overview(left)}" if left else ""


def advice_for_more_texts(profiles: Profiles, texts: Collection[int], used: Collection[int]) -> str:
    """Describe how to read the unused text columns as well; return "" if there are none."""
    more = [column for column in texts_of(profiles) if column.index not in used]
    every = [column for column in profiles if column.index in texts or column in more]
    how = "both text columns, as a pair" if len(every) == 2 else "all text columns, joined by a space"
    return f"to read {how}: --set {quote(setting('text', *every))}" if more else ""


def _options(key: str, columns: Profiles) -> list[Option]:
    return [Option((setting(key, column),), column.described()) for column in columns[:MOST_OPTIONS]]


def _undecided(table: str, what: str, key: str, columns: Profiles) -> Undecided:
    others = [column for column in columns if column.kind != LISTS]
    options = _options(key, others or columns)
    if key == "text" and len(others) == 2:
        options.append(Option((setting(key, *others),), "both, as a pair of texts"))
    if key == "label" and len(columns) > 1 and all(len(column.values) == 2 for column in columns):
        options.append(Option((setting(key, *columns),), "all: 1 and 0 in a column say whether a text has its label"))
    return Undecided(f"{table}: {what.rstrip('?')}?", options)
