"""Corpora of sentence pairs."""

import gzip
import json
import zipfile

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penwright.data.cleaning import Cleaning
from penwright.data.corpus import Columns, Pair, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.parallel import open_pairs
from penwright.errors import PenwrightError

PAIRS = [(f"The dog number {i} barks.", f"Der Hund Nummer {i} bellt.") for i in range(60)]


def write(folder, name: str, text: str):
    (folder / name).write_bytes(text.encode())
    return folder / name


def write_aligned(folder, pairs, stem: str = "train"):
    sides = zip(*pairs, strict=True)
    return [
        write(folder, f"{stem}.{name}", "\n".join(side) + "\n") for name, side in zip(("en", "de"), sides, strict=True)
    ]


def all_pairs(corpus) -> set:
    return {*corpus.training, *corpus.held_out}


def dropped(corpus) -> dict[str, int]:
    return {each.reason: each.count for each in corpus.report.dropped}


def test_two_files_are_paired_line_by_line(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, PAIRS))
    assert all_pairs(corpus) == set(map(Pair._make, PAIRS))
    assert (corpus.n_training, len(corpus.held_out)) == (54, 6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_several_files_are_paired_in_either_order(tmp_path, order):
    files = write_aligned(tmp_path, PAIRS[:30], "a") + write_aligned(tmp_path, PAIRS[30:], "b")
    assert all_pairs(open_pairs([files[i] for i in order])) == set(map(Pair._make, PAIRS))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_files_with_the_language_before_the_suffix_are_paired_in_either_order(tmp_path, order):
    files = []
    for stem, pairs in (("a", PAIRS[:30]), ("b", PAIRS[30:])):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            files.append(write(tmp_path, f"{stem}.{language}.txt", "\n".join(lines) + "\n"))
    files = [files[i] for i in order]
    assert all_pairs(open_pairs(files)) == set(map(Pair._make, PAIRS))
    assert detect_task(files)[0] == "translate"


@pytest.mark.parametrize("others", [["README", "LICENSE", "T.de-en.xml"], ["T.de-en.ids", "T.de-en.scores"]])
def test_archive_of_opus_is_read(tmp_path, others):
    with zipfile.ZipFile(tmp_path / "de-en.txt.zip", "w") as archive:
        for file in write_aligned(tmp_path, PAIRS, "T.de-en"):
            archive.write(file, file.name)
        for name in others:
            archive.writestr(name, "1 2\n" * len(PAIRS))
    path = str(tmp_path / "de-en.txt.zip")
    assert detect_task([path])[0] == "translate"
    assert {pair[::-1] for pair in all_pairs(open_pairs([path]))} == set(PAIRS)


def test_files_in_one_language_are_not_paired(tmp_path):
    files = [write(tmp_path, f"{name}.en", "one\ntwo\n") for name in "abcd"]
    with pytest.raises(PenwrightError, match=r"both named 'en'.*List the files in pairs"):
        open_pairs(files)


@pytest.mark.parametrize("columns", [Columns(source="fr"), Columns(source="en", target="fr")])
def test_language_that_neither_file_has_is_refused(tmp_path, columns):
    with pytest.raises(PenwrightError, match=r"are named en and de, but the settings name 'fr'"):
        open_pairs(write_aligned(tmp_path, PAIRS), ReadingOptions(columns))


def test_source_column_can_be_named_by_its_language(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, PAIRS), ReadingOptions(Columns(source="de")))
    assert next(iter(corpus.training)).source.startswith("Der Hund")


def as_json(pairs) -> str:
    return "\n".join(json.dumps({"translation": {"en": en, "de": de}}) for en, de in pairs)


def as_tmx(pairs) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="EN-us"><seg>{en}</seg></tuv><tuv lang="de"><seg><b>{de}</b></seg></tuv></tu>'
        for en, de in pairs
    )
    return f'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "\n".join("\t".join(pair) for pair in PAIRS)),
        ("a.txt", "\r\n".join("\t".join(pair) for pair in PAIRS)),
        ("a.csv", "en,de\n" + "\n".join(",".join(pair) for pair in PAIRS)),
        ("a.jsonl", as_json(PAIRS)),
        ("a.tmx", as_tmx(PAIRS)),
    ],
)
def test_every_format_yields_the_same_pairs(tmp_path, name, text):
    assert all_pairs(open_pairs([write(tmp_path, name, text)])) == set(map(Pair._make, PAIRS))
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert all_pairs(open_pairs([packed])) == set(map(Pair._make, PAIRS))


@pytest.mark.parametrize(
    "columns", [Columns(source="de", target="en"), Columns(source=3, target=2), Columns(source="3")]
)
def test_columns_can_be_named_by_name_or_number(tmp_path, columns):
    text = "id,en,de\n" + "\n".join(f"{i},{en},{de}" for i, (en, de) in enumerate(PAIRS))
    corpus = open_pairs([write(tmp_path, "a.csv", text)], ReadingOptions(columns))
    assert next(iter(corpus.training)).source.startswith("Der")


def test_unknown_column_suggests_the_nearest_name(tmp_path):
    path = write(tmp_path, "a.csv", "english,german\n" + "\n".join(",".join(pair) for pair in PAIRS))
    with pytest.raises(PenwrightError, match="no column 'germann'; did you mean 'german'"):
        open_pairs([path], ReadingOptions(Columns(target="germann")))


def test_column_number_out_of_range_lists_the_columns(tmp_path):
    with pytest.raises(PenwrightError, match="no column '7'; its columns are: 1, 2"):
        open_pairs([write(tmp_path, "a.tsv", "a\tb\nc\td\n")], ReadingOptions(Columns(target=7)))


def test_unequal_line_counts_are_refused_with_the_first_difference(tmp_path):
    sides = [[f"{'ab ' * (i * 7919 % 40 + 1)}{i}" for i in range(10_003)] for _ in range(2)]
    del sides[0][4116:4119]
    files = [write(tmp_path, f"{name}.txt", "\n".join(side)) for name, side in zip(("en", "fr"), sides, strict=True)]
    with pytest.raises(PenwrightError) as error:
        open_pairs(files)
    assert str(error.value) == (
        f"3 lines of {files[1]} have no counterpart in {files[0]} (10 003 and 10 000 lines; "
        "first difference near line 4 117). Add or remove lines until they correspond one to one."
    )


def test_unequal_line_counts_are_given_by_language(tmp_path):
    files = [write(tmp_path, "a.en", "one\ntwo\nthree\n"), write(tmp_path, "a.fr", "un\ndeux\n")]
    with pytest.raises(PenwrightError, match=r"1 line of .* has no counterpart in .* \(en 3, fr 2\)\. Add"):
        open_pairs(files)


def test_unclean_pairs_are_dropped_and_counted(tmp_path):
    unclean = [
        ("", "leer"),
        ("blank", " \u00a0"),
        PAIRS[0],
        ("x" * 6000, "y" * 6000),
        ("word", "y" * 40),
        ("a", "b" * 9),
    ]
    corpus = open_pairs(write_aligned(tmp_path, PAIRS + unclean))
    assert dropped(corpus) == {
        "one side is blank": 2,
        "exact duplicates": 1,
        "longer than 5,000 characters": 1,
        "one side more than 9 times as long as the other": 1,
    }
    assert all_pairs(corpus) == set(map(Pair._make, [*PAIRS, unclean[-1]]))


def test_cleaning_can_be_turned_off(tmp_path):
    corpus = open_pairs(
        write_aligned(tmp_path, [*PAIRS, ("word", "y" * 40), PAIRS[0]]),
        ReadingOptions(cleaning=Cleaning(5000, None, False)),
    )
    assert dropped(corpus).keys() <= {"source or target is also held out"}
    assert corpus.report.n_read == 62


def test_broken_row_is_reported_with_its_line(tmp_path):
    lines = ["\t".join(pair) for pair in PAIRS]
    corpus = open_pairs([write(tmp_path, "a.tsv", "\n".join([*lines[:40], "no tab", *lines[40:]]))])
    assert corpus.report.dropped[0].first.endswith("a.tsv line 41")


def test_pairs_with_identical_sides_are_kept_and_noted(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, [*PAIRS, ("Berlin", "Berlin")]))
    assert "1 pair with identical source and target" in corpus.report.notes


small = st.text("abc", min_size=1, max_size=2)


@settings(max_examples=50)
@given(st.lists(st.tuples(small, small), min_size=2, max_size=40), st.integers(0, 3), st.floats(0.05, 0.6))
def test_held_out_sentences_are_not_trained_on_and_all_rows_are_counted(tmp_path_factory, pairs, seed, fraction):
    files = write_aligned(tmp_path_factory.mktemp("pairs"), pairs)
    try:
        corpus = open_pairs(files, ReadingOptions(seed=seed, held_out=fraction))
    except PenwrightError:  # too few pairs are left after cleaning
        reject()
    training, held_out = list(corpus.training), list(corpus.held_out)
    assert not {pair.source for pair in training} & {pair.source for pair in held_out}
    assert not {pair.target for pair in training} & {pair.target for pair in held_out}
    assert len(training) + len(held_out) == corpus.report.n_kept
    assert (
        corpus.report.n_kept + sum(each.count for each in corpus.report.dropped) == corpus.report.n_read == len(pairs)
    )


def test_reading_twice_gives_the_same_pairs(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, PAIRS))
    assert list(corpus.training) == list(corpus.training)
    assert list(corpus.held_out) == list(corpus.held_out)


def test_held_out_pairs_do_not_depend_on_line_order(tmp_path):
    first = open_pairs(write_aligned(tmp_path, PAIRS, "a"))
    again = open_pairs(write_aligned(tmp_path, PAIRS[::-1], "b"))
    assert set(first.held_out) == set(again.held_out)


def test_validation_pairs_stay_whole_and_are_left_out_of_training(tmp_path):
    valid = [PAIRS[3], ("Something new.", PAIRS[5][1]), ("Other", "Anderes")]
    corpus = open_pairs(
        write_aligned(tmp_path, PAIRS), ReadingOptions(validation=write_aligned(tmp_path, valid, "valid"))
    )
    assert list(corpus.held_out) == list(map(Pair._make, valid))
    assert set(corpus.training) == set(map(Pair._make, PAIRS)) - {PAIRS[3], PAIRS[5]}
    assert dropped(corpus) == {"source or target is also held out": 2}


@pytest.mark.parametrize("is_table", [False, True])
def test_validation_files_in_the_other_direction_are_swapped(tmp_path, is_table):
    valid = [PAIRS[3], ("Something new.", "Etwas Neues.")]
    paths = write_aligned(tmp_path, valid, "valid")[::-1]
    if is_table:
        paths = [write(tmp_path, "valid.tsv", "de\ten\n" + "".join(f"{de}\t{en}\n" for en, de in valid))]
    corpus = open_pairs(write_aligned(tmp_path, PAIRS), ReadingOptions(validation=paths))
    assert list(corpus.held_out) == list(map(Pair._make, valid))
    assert f"{paths[0]}: used in the direction en to de, like the training data" in corpus.report.notes
    assert PAIRS[3] not in set(corpus.training)


def test_corpus_sizes_count_the_targets(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, [(en, f"{de} ż") for en, de in PAIRS]))
    targets = [pair.target for pair in corpus.held_out]
    assert corpus.held_out_bytes == sum(len(target.encode()) for target in targets)
    assert corpus.held_out.n_characters == sum(map(len, targets))


def test_only_newlines_end_lines(tmp_path):
    odd = [("one\u2028two", "eins\u0085zwei"), ("three\x0bfour", "drei\x0cvier")]
    assert set(map(Pair._make, odd)) <= all_pairs(open_pairs(write_aligned(tmp_path, PAIRS + odd)))


def test_five_pairs_are_enough(tmp_path):
    corpus = open_pairs(write_aligned(tmp_path, PAIRS[:5]))
    assert (corpus.n_training, len(corpus.held_out)) == (4, 1)


@pytest.mark.parametrize("pairs", [PAIRS[:1], [("same", "eins"), ("same", "zwei")]])
def test_single_source_sentence_is_refused(tmp_path, pairs):
    with pytest.raises(PenwrightError, match="all source sentences are the same"):
        open_pairs(write_aligned(tmp_path, pairs))


def test_corpus_with_no_rows_left_gives_the_reasons(tmp_path):
    with pytest.raises(PenwrightError, match=r"no rows are left \(3 before cleaning\): 3 dropped: one side is blank"):
        open_pairs([write(tmp_path, "a.tsv", "a\t\nb\t\nc\t\n")])


def test_single_file_without_columns_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match="has no columns"):
        open_pairs([write(tmp_path, "a.en", "one\ntwo\n")])


def test_fingerprint_depends_on_content_columns_and_settings(tmp_path):
    files = write_aligned(tmp_path, PAIRS)
    variants = [{}, {"seed": 1}, {"cleaning": Cleaning(100)}, {"columns": Columns(source="de")}]
    fingerprints = [open_pairs(files, ReadingOptions(**variant)).fingerprint for variant in variants]
    assert len(set(fingerprints)) == 4
    assert open_pairs(files).fingerprint == fingerprints[0]


def test_fingerprint_does_not_depend_on_the_folder(tmp_path):
    (tmp_path / "moved").mkdir()
    folders = tmp_path, tmp_path / "moved"
    assert len({open_pairs(write_aligned(folder, PAIRS)).fingerprint for folder in folders}) == 1


def test_unknown_tmx_language_lists_the_available_ones(tmp_path):
    with pytest.raises(PenwrightError, match=r"no language 'fr'.*: en, de"):
        open_pairs([write(tmp_path, "a.tmx", as_tmx(PAIRS))], ReadingOptions(Columns(target="fr")))


def test_truncated_tmx_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match=r"a\.tmx is truncated"):
        open_pairs([write(tmp_path, "a.tmx", as_tmx(PAIRS)[:-20])])


def test_instruction_and_input_are_joined_into_the_source(tmp_path):
    rows = [
        {"instruction": f"Name thing {n} on the list", "input": f"list {n} of things" * (n % 2), "output": f"it is {n}"}
        for n in range(60)
    ]
    path = write(tmp_path, "alpaca.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    corpus = open_pairs([path])
    assert all_pairs(corpus) == {(f"{row['instruction']} {row['input']}".strip(), row["output"]) for row in rows}
    again = open_pairs([path], ReadingOptions(Columns(as_trained=corpus.roles)))
    assert all_pairs(again) == all_pairs(corpus)
    assert all_pairs(open_pairs([path], ReadingOptions(Columns(source="instruction")))) == {
        (row["instruction"], row["output"]) for row in rows
    }


@pytest.mark.parametrize("longest", [30, 200])
@pytest.mark.parametrize("repeats", [1, 25])
def test_repeated_first_pair_is_not_taken_for_a_header(tmp_path, longest, repeats):
    different = [
        (f"line {n} of a long list of lines{'!' * longest}", f"Zeile {n}, {'?' * longest}") for n in range(200)
    ]
    different = [(a[:longest], b[:longest]) for a, b in different]
    rows = [different[0], *different[1:] * 25] if repeats == 1 else different * repeats
    path = write(tmp_path, "memory.tsv", "".join(f"{a}\t{b}\n" for a, b in rows))
    assert all_pairs(open_pairs([path])) == set(different)
