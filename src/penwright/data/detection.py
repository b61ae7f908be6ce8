"""Detection of the task that files are meant for, from their names and their content."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from penwright.data.class_folders import classes_in
from penwright.data.conversations import conversation_columns
from penwright.data.documents import row_tables
from penwright.data.files import SourceFile, examine_text
from penwright.data.guesses import (
    CLEARLY_LONGER,
    ENOUGH_TO_TELL,
    FEW,
    guess_label,
    likely_labels,
    named_label,
    named_pair,
    named_text,
    overview,
    pair_of_texts,
    setting,
    texts_of,
    undecided_pair,
)
from penwright.data.one_hot import description, one_hot_labels
from penwright.data.parallel import look_like_translations
from penwright.data.paths import TEXT_SUFFIXES, expand_archives, is_collection, is_folder, is_pattern, suffix_of
from penwright.data.profiles import LISTS, Profile, profiles_of
from penwright.data.readers.bilingual import holds_pairs, holds_segments
from penwright.data.readers.delimited import labelled_lines
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.layout import OTHER_NAMES, PROMPT_NAMES
from penwright.data.readers.records import Records
from penwright.data.readers.tables import Table, find_table
from penwright.errors import Option, Undecided
from penwright.languages import are_named_in_pairs, side_names

LOPSIDED = 4  # maximum median ratio between the lengths of a text and its translation
SHOWN = 10  # maximum number of class names in a message
WRITE, TRANSLATE = (
    Option(("task=generate",), "learn to write like these texts"),
    Option(("task=translate",), "learn to translate one side into the other"),
)


def detect_task(paths: Sequence[str | Path], *, encoding: str | None = None) -> tuple[str, str]:
    """Return the task (`generate`, `chat`, `translate` or `classify`) and the reason.

    The first table decides for all files. Raises Undecided if a wrong guess could spoil the model.
    """
    if tables := row_tables(str(paths[0]), encoding):
        return _task_of_file(examine_text(tables[0], encoding), [], encoding)
    first, *others = _single_files([str(path) for path in paths])
    if is_hub(first):
        return task_of_table(open_hub(first))
    if is_collection(first):
        what = "folder" if is_folder(first) else "pattern" if is_pattern(first) else "zip archive"
        _ask_about_sides(first, others, what)
        return "generate", f"{first} is a {what}: its files are read as running text{_about_classes(first)}"
    return _task_of_file(examine_text(first, encoding), others, encoding)


def _single_files(paths: list[str]) -> list[str]:
    """Replace archives with the files in them. Return `paths` unchanged if it would grow to more than two files."""
    files = expand_archives(paths)
    return files if len(files) <= max(2, len(paths)) else paths


def _about_classes(folder: str) -> str:
    """Return a hint on reading subfolders as classes. Raises Undecided if their names look like class names."""
    names, are_named = classes_in(folder)
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    if are_named:
        raise Undecided(
            f"{folder} has subfolders that are named like classes: {shown}",
            [Option(("task=classify",), "learn which folder a text belongs to"), WRITE],
        )
    return f" (if its folders {shown} are classes, add --task classify)" if names else ""


def _ask_about_sides(first: str, others: Sequence[str], what: str) -> None:
    """Raise Undecided for two folders or patterns that are named like the two sides of a translation."""
    if len(others) == 1 and is_collection(others[0]) and side_names(first, others[0]):
        raise Undecided(
            f"{first} and {others[0]} are named like the two sides of a translation, "
            f"but a {what} is read as running text",
            [WRITE],
            "To translate, pass the files in pairs instead: en/a.txt de/a.txt en/b.txt de/b.txt",
        )


def _task_of_file(first: SourceFile, others: Sequence[str], encoding: str | None) -> tuple[str, str]:
    """Return the task that the first file suggests, alone or together with the other files, and the reason."""
    if holds_pairs(first):
        return "translate", f"{first.path} is {FORMATS[first.format].description}"
    table = find_table(first)
    if table:
        task = task_of_table(table)
        if task[0] == "generate" and len(others) == 1 and side_names(first.path, others[0]):
            raise Undecided(
                f"{first.path} and {others[0]} are named like the two sides of a translation, but have columns",
                [WRITE],
                "To translate, keep only the sentences in both files, one per line",
            )
        return task
    labelled = labelled_lines(first)
    if labelled:
        return "classify", f"in {first.path}, {labelled.form}"
    return _task_of_files(first, others, encoding) if others else ("generate", f"{first.path} is running text")


def _task_of_files(first: SourceFile, others: Sequence[str], encoding: str | None) -> tuple[str, str]:
    """Return `translate` or `generate` for several files, and the reason.

    The task is `translate` if the files are named like the two sides of a translation, or have different suffixes and
    the same number of lines.
    Raises Undecided if the lines of two files look like translations, but their names do not.
    """
    running_text = "generate", f"{first.path} and the other files are running text"
    if is_collection(others[0]) or is_hub(others[0]):
        return running_text
    other = next((path for path in others if side_names(first.path, path)), others[0])
    endings = {suffix_of(first.path), suffix_of(other)}
    are_sides = side_names(first.path, other) is not None
    are_unlike = len(endings) == 2 and not endings & {*TEXT_SUFFIXES, ""}
    second = examine_text(other, encoding)
    if holds_segments(first) and holds_segments(second) and len(others) == 1:
        what = FORMATS[first.format].description
        return "translate", f"{first.path} and {second.path} are {what} in two languages"
    same = first.n_lines == second.n_lines
    if are_sides and (same or are_named_in_pairs([first.path, *others])):  # unequal line counts are reported later
        return "translate", f"{first.path} and {second.path} are named like the two sides of a translation"
    if same and are_unlike:
        return "translate", f"{first.path} and {second.path} have the same number of lines, {first.n_lines:,}"
    if same and len(others) == 1 and look_like_translations(first, second):
        raise Undecided(
            f"{first.path} and {second.path} have the same number of lines, {first.n_lines:,}, of similar lengths. "
            "They may be translations, but their names do not say so",
            [TRANSLATE, WRITE],
        )
    return running_text


def task_of_table(table: Table) -> tuple[str, str]:
    """Return the task that the columns of a table suggest, and the reason."""
    if len(table.columns) < 2 and not conversation_columns(table.columns):
        return "generate", f"{table.name} has only one column, which is read as running text"
    profiles = profiles_of(table)
    label, pair = named_label(profiles), named_pair(profiles)
    text = named_text([column for column in profiles if column.has_words])
    if label is not None and pair is not None and not _is_prompt_and_answer(pair):
        raise Undecided(
            f"{table.name} has a label, {label.described()}, but also a source and a target, "
            f"'{pair[0].name}' and '{pair[1].name}'",
            [TRANSLATE, Option(("task=classify",), f"learn the classes in '{label.name}'")],
        )
    conversation = conversation_columns(table.columns)
    # In data such as Dolly, the label is a category of instructions.
    is_chat = conversation and (len(conversation) == 1 or str(conversation[0]).casefold() == "instruction")
    if label is not None and not is_chat:
        return "classify", f"{table.name} has a column '{label.name}'"
    if conversation:
        return "chat", f"{table.name} has prompts and answers, in {' and '.join(map(repr, conversation))}"
    if pair is not None:
        return "translate", f"{table.name} has the columns '{pair[0].name}' and '{pair[1].name}'"
    # named_label() ignores a label column with a single value.
    one_hot = one_hot_labels(profiles, without=[] if text is None else [text.index])
    if one_hot or any(name in ("label", "labels") for name in map(str.lower, table.columns)):
        return "classify", f"{table.name} has {description(one_hot) if one_hot else 'a column of labels'}"
    is_clear = text is not None and _is_main_text(text, profiles)
    return _task_of_named_text(table, profiles, text) if text and is_clear else _task_by_values(table, profiles)


def _write_like(text: Profile) -> Option:
    return Option(("task=generate", setting("text", text)), f"learn to write like the texts in '{text.name}'")


def _or_write(asked: Undecided, texts: Sequence[Profile]) -> Undecided:
    longest = max(texts, key=lambda column: column.n_characters)
    return Undecided(asked.question, [*asked.options, _write_like(longest)])


def _is_prompt_and_answer(pair: tuple[Profile, Profile]) -> bool:
    """Return whether the pair is a prompt and its answer, judging by the name of the first column."""
    return pair[0].key in PROMPT_NAMES


def _is_main_text(text: Profile, profiles: Sequence[Profile]) -> bool:
    """Return whether all text columns except `text` are minor: titles and similar columns, or much shorter texts."""
    others = [column for column in texts_of(profiles) if column is not text]
    return all(
        column.key in OTHER_NAMES or (len(profiles) > 2 and CLEARLY_LONGER * column.n_characters <= text.n_characters)
        for column in others
    )


def _task_of_named_text(table: Table, profiles: Sequence[Profile], text: Profile) -> tuple[str, str]:
    """Return the task of a table in which one column's name suggests text. The others may be labels or metadata.

    Raises Undecided if the other columns could be either.
    """
    likely = [column for column in likely_labels(profiles, without=(text.index,)) if len(column.values) <= FEW]
    if likely and len(profiles) == 2:
        return "classify", f"column {likely[0].name} of {table.name} has only a few different values, all short"
    if not likely or profiles[0].n_rows < ENOUGH_TO_TELL:
        return (
            "generate",
            f"{table.name} has text in column '{text.name}', and no column that is named like labels or translations",
        )
    labels = [
        Option(("task=classify", setting("label", column)), f"learn the classes in {column.described()}")
        for column in likely
    ]
    if len(likely) > 1 and all(len(column.values) == 2 for column in likely):
        meaning = "all: 1 and 0 in a column say whether a text has its label"
        labels.append(Option(("task=classify", setting("label", *likely)), meaning))
    raise Undecided(
        f"{table.name} has one column of text, '{text.name}', and other columns that may or may not be labels",
        [*labels, Option(("task=generate",), f"learn to write like the texts in '{text.name}'")],
    )


def _task_by_values(table: Table, profiles: Sequence[Profile]) -> tuple[str, str]:
    """Return the task that the values in a table suggest, for tables whose column names do not reveal the task."""
    texts = texts_of(profiles)
    likely = likely_labels(profiles)
    if likely and (len(texts) > 1 or any(column not in likely for column in texts)):
        if len(profiles) == 2 and likely[0].are_sentences:
            raise Undecided(
                f"{table.name} has two columns of sentences, but column {likely[0].name} repeats the same few",
                [
                    TRANSLATE,
                    Option(("task=classify", setting("label", likely[0])), "each of these sentences is a label"),
                ],
            )
        try:
            label = guess_label(table.name, profiles)
        except Undecided as error:
            raise _or_write(error, texts) from None
        return "classify", f"{label.reason} in {table.name}"
    if len(texts) == 2:
        _refuse_scored_pairs(table, profiles, texts)
        _require_similar_lengths(table, *texts)
        return "translate", f"{table.name} has two columns of text"
    if len(texts) > 2:
        raise _or_write(undecided_pair(table.name, profiles, texts), texts)
    if len(texts) == 1:
        _refuse_nested_texts(table, profiles, texts[0])
        return "generate", f"{table.name} has one column of text, '{texts[0].name}'"
    raise Undecided(
        f"{table.name}: no column looks like text. Its columns are: {overview(profiles)}",
        [],
        "Choose a task and its columns: --task generate --set data.text=..., --task classify --set data.text=... "
        "--set data.label=..., or --task translate --set data.source=... --set data.target=...",
    )


def _refuse_nested_texts(table: Table, profiles: Sequence[Profile], text: Profile) -> None:
    """Raise Undecided if the objects in a column are much longer than the only text, as in exports of chats."""
    profiles = profiles if isinstance(table, Records) else ()  # in other tables, an object in JSON is metadata
    nested = (column for column in profiles if column.kind == LISTS and column.example.startswith("{"))
    longest = max(nested, key=lambda column: column.n_characters, default=text)
    if longest.n_characters > CLEARLY_LONGER * text.n_characters:
        raise Undecided(
            f"{table.name} has one column of text, '{text.name}', but far more text inside the objects in column "
            f"'{longest.name}', which are not read",
            [_write_like(text)],
            'For conversations, write a file of lines such as {"messages": [{"role": "user", "content": "..."}, ...]}',
        )


def _refuse_scored_pairs(table: Table, profiles: Sequence[Profile], texts: Sequence[Profile]) -> None:
    """Raise Undecided for pairs of texts with a score, since the task may be to predict the score."""
    scale = next((column for column in profiles if column.is_scale), None)
    if pair_of_texts(texts) is not None and scale is not None:
        raise Undecided(
            f"{table.name} has pairs of texts, {overview(texts)}, and numbers on a scale, {scale.described()}. "
            "Which task is this?",
            [TRANSLATE],
            "To predict the numbers, add --task score. To predict classes, replace the numbers with names, "
            "such as low and high",
        )


def _require_similar_lengths(table: Table, first: Profile, second: Profile) -> None:
    """Raise Undecided if the texts in one column are many times longer than those in the other."""
    ratios = [a / b for a, b in zip(first.lengths, second.lengths, strict=True) if a and b]
    if len(ratios) < ENOUGH_TO_TELL:
        return
    ratio = median(ratios)
    if not 1 / LOPSIDED <= ratio <= LOPSIDED:
        longer = first if ratio > 1 else second
        raise Undecided(
            f"{table.name} has two columns of text, {overview([first, second])}, "
            "but one is much longer than the other, which is unusual for translations",
            [_write_like(longer), TRANSLATE],
        )
