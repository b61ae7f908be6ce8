"""Corpora of running text."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data.cleaning import Cleaning
from penwright.data.corpus import Corpus, Document, ReadingOptions
from penwright.data.text import open_evaluation_text, open_text
from penwright.errors import PenwrightError


def texts(part) -> list[str]:
    return ["".join(document.chunks) for document in part]


def write(folder, name: str, text: str):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def numbered_files(folder, n: int) -> None:
    for i in range(n):
        write(folder, f"{i:03}.txt", f"This is document {i}.\n" * (1 + i % 7))


def open_lines(tmp_path, n: int, **settings) -> Corpus[Document]:
    return open_text(
        [write(tmp_path, "lines.txt", "".join(f"line {i:04}\n" for i in range(n)))], ReadingOptions(**settings)
    )


def test_end_of_a_single_text_is_held_out_from_a_line_start(tmp_path):
    corpus = open_lines(tmp_path, 100)
    assert texts(corpus.held_out) == ["".join(f"line {i:04}\n" for i in range(90, 100))]


def test_split_inside_a_line_moves_to_the_next_line_start(tmp_path):
    corpus = open_lines(tmp_path, 100, held_out=0.155)
    assert texts(corpus.held_out)[0].startswith("line 0085\n")


@settings(max_examples=50)
@given(st.text("ab \n", min_size=2, max_size=300).filter(str.strip), st.floats(0.01, 0.9))
def test_training_and_held_out_parts_join_to_the_text(tmp_path_factory, text, fraction):
    path = write(tmp_path_factory.mktemp("text"), "t.txt", text)
    corpus = open_text([path], ReadingOptions(held_out=fraction))
    training, held_out = texts(corpus.training), texts(corpus.held_out)
    assert training + held_out == [training[0], held_out[0]]
    assert training[0] + held_out[0] == text
    assert (corpus.training_bytes, corpus.held_out_bytes) == (len(training[0]), len(held_out[0]))
    assert min(len(training[0]), len(held_out[0])) > 0


LICENCE = (
    "*** END OF THE PROJECT GUTENBERG EBOOK 1 ***\n" + "You may copy it – give it away.\n" * 600 + "www.gutenberg.org\n"
)
HEADER = "The Project Gutenberg eBook\n\n*** START OF THE PROJECT GUTENBERG EBOOK A LONG\nTITLE ***\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", LICENCE),
        (HEADER, LICENCE),
        (HEADER, f"End of the Project Gutenberg EBook\n\n{LICENCE.replace('THE', 'THIS')}"),
        (HEADER, LICENCE.replace("*** ", "***")),
    ],
)
def test_header_and_licence_of_project_gutenberg_are_left_out(tmp_path, before, after):
    book = "".join(f"Chapter {i}: é.\n" for i in range(5000))
    path = write(tmp_path, "book.txt", before + book + after)
    corpus = open_text([path])
    assert "".join(texts(corpus.training) + texts(corpus.held_out)) == book
    assert corpus.training_bytes + corpus.held_out_bytes == len(book.encode())
    assert any(f"{len(before + after):,} characters" in note for note in corpus.report.notes)
    assert texts(open_evaluation_text([path]).held_out) == [book]


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "word\n" * 100,
        f"word {LICENCE}",
        f"word\n{LICENCE}{LICENCE[100:]}{'word ' * 5000}",
        f"word\n{LICENCE}{'My own story. ' * 80}",
    ],
)
def test_text_that_does_not_end_with_the_licence_is_kept(tmp_path, text):
    corpus = open_text([write(tmp_path, "book.txt", text)])
    assert "".join(texts(corpus.training) + texts(corpus.held_out)) == text


def test_text_before_the_header_of_project_gutenberg_is_kept(tmp_path):
    text = "My own story.\n" * 80 + HEADER + "word\n" * 900
    corpus = open_text([write(tmp_path, "book.txt", text + LICENCE)])
    assert "".join(texts(corpus.training) + texts(corpus.held_out)) == text


def test_books_of_project_gutenberg_are_counted_among_other_texts(tmp_path):
    for i in range(3):
        write(tmp_path, f"{i}.txt", f"Text {i}.\n" * 200 + (LICENCE if i else ""))
    corpus = open_text([tmp_path])
    assert corpus.report.notes[0].endswith(f"({2 * len(LICENCE):,} characters in 2 of 3 files)")
    assert "copy" not in "".join(texts(corpus.training) + texts(corpus.held_out))


def test_text_without_newlines_is_split_at_the_exact_share(tmp_path):
    corpus = open_text([write(tmp_path, "long.txt", "x" * 100_000)])
    assert (corpus.training.n_characters, corpus.held_out.n_characters) == (90_000, 10_000)


def test_sizes_count_bytes_and_characters_of_the_held_out_part(tmp_path):
    corpus = open_text([write(tmp_path, "pl.txt", "żółw\n" * 50)])
    held_out = texts(corpus.held_out)[0]
    assert (corpus.held_out.n_characters, corpus.held_out_bytes) == (len(held_out), len(held_out.encode()))


def test_each_of_few_documents_holds_out_its_end(tmp_path):
    numbered_files(tmp_path, 7)
    corpus = open_text([tmp_path], ReadingOptions(held_out=0.5))
    assert (corpus.n_training, len(corpus.held_out)) == (7, 7)


def test_whole_documents_are_held_out_of_many(tmp_path):
    numbered_files(tmp_path, 60)
    corpus = open_text([tmp_path])
    training, held_out = texts(corpus.training), texts(corpus.held_out)
    everything = [(tmp_path / f"{i:03}.txt").read_text(encoding="utf-8") for i in range(60)]
    assert sorted(training + held_out) == sorted(everything)
    assert 1 <= len(held_out) <= 12


def test_short_document_among_long_ones_is_not_the_whole_held_out_part(tmp_path):
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_text(f"Line of novel {number}.\n" * 40_000, encoding="utf-8")
    (tmp_path / "readme.txt").write_text("Twenty-five novels.\n", encoding="utf-8")
    corpus = open_text([tmp_path])
    assert 400_000 < corpus.held_out.n_characters < 600_000 and corpus.n_training == 26
    assert "the end of each of 26 documents" in corpus.report.split


def test_seed_selects_the_held_out_documents(tmp_path):
    numbered_files(tmp_path, 60)
    chosen = [texts(open_text([tmp_path], ReadingOptions(seed=seed)).held_out) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_reading_twice_gives_the_same_texts(tmp_path):
    numbered_files(tmp_path, 30)
    corpus = open_text([tmp_path])
    assert texts(corpus.training) == texts(corpus.training)


def test_chunks_of_a_document_can_be_read_twice(tmp_path):
    document = next(iter(open_lines(tmp_path, 50).training))
    assert list(document.chunks) == list(document.chunks)


def test_duplicate_and_blank_files_are_dropped_and_counted(tmp_path):
    numbered_files(tmp_path, 3)
    write(tmp_path, "again.txt", "This is document 1.\n" * 2)
    write(tmp_path, "blank.txt", "\n \n")
    write(tmp_path, "empty.txt", "")
    report = open_text([tmp_path]).report
    assert (report.n_read, report.n_kept) == (6, 3)
    assert {each.reason: each.count for each in report.dropped} == {"blank": 2, "exact duplicates": 1}


def test_duplicates_are_kept_on_request(tmp_path):
    numbered_files(tmp_path, 3)
    write(tmp_path, "again.txt", "This is document 1.\n" * 2)
    assert open_text([tmp_path], ReadingOptions(cleaning=Cleaning(deduplicate=False))).n_training == 4


def test_validation_files_leave_the_training_files_whole(tmp_path):
    train, valid = write(tmp_path, "a.txt", "one\ntwo\n"), write(tmp_path, "b.txt", "three\n")
    corpus = open_text([train], ReadingOptions(validation=[valid]))
    assert (texts(corpus.training), texts(corpus.held_out)) == (["one\ntwo\n"], ["three\n"])


def test_validation_documents_are_left_out_of_training(tmp_path):
    numbered_files(tmp_path, 3)
    valid = write(tmp_path, "valid.text", "This is document 0.\n")
    corpus = open_text([tmp_path / f"{i:03}.txt" for i in range(3)], ReadingOptions(validation=[valid]))
    assert corpus.n_training == 2


def test_json_lines_rows_are_documents(tmp_path):
    rows = [json.dumps({"id": i, "text": f"Dokument {i}\nżółw"}) for i in range(25)]
    path = write(tmp_path, "rows.jsonl", "\n".join([*rows, "{bad", '{"id": 3}', '{"text": " "}']))
    corpus = open_text([path])
    assert sorted(texts(corpus.training) + texts(corpus.held_out)) == sorted(f"Dokument {i}\nżółw" for i in range(25))
    assert [(each.count, each.first[-7:]) for each in corpus.report.dropped] == [
        (1, "line 26"),
        (2, "line 27"),
    ]


def test_json_files_without_rows_are_texts(tmp_path):
    for n in range(3):
        (tmp_path / f"{n}.json").write_text(json.dumps({"name": f"n{n}", "settings": {"a": n}}), encoding="utf-8")
    corpus = open_text([f"{tmp_path}/*.json"])
    assert len(corpus.files) == 3


def test_lone_surrogate_in_json_becomes_a_replacement_character(tmp_path):
    path = write(tmp_path, "rows.jsonl", '{"text": "bad \\ud800 half, a longer text"}\n')
    corpus = open_text([path])
    assert "".join(texts(corpus.training) + texts(corpus.held_out)) == "bad \ufffd half, a longer text"


@pytest.mark.parametrize("has_validation", [False, True])
def test_rows_that_differ_in_final_spaces_from_held_out_rows_are_not_trained_on(tmp_path, has_validation):
    rows = [f"This is document number {i}, with some words.{' ' * extra}" for i in range(200) for extra in (0, 1)]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps({"text": row}) + "\n" for row in rows))
    own = write(tmp_path, "own.jsonl", json.dumps({"text": rows[0] + "\n"}))
    corpus = open_text([path], ReadingOptions(validation=(str(own),) if has_validation else ()))
    held_out, training = texts(corpus.held_out), {text.strip() for text in texts(corpus.training)}
    assert held_out and not training & {text.strip() for text in held_out}
    assert len(texts(corpus.training)) == len(corpus.training)
    assert "white space" in corpus.report.notes[-1]


def test_training_rows_equal_to_all_held_out_rows_are_refused(tmp_path):
    path, own = (
        write(tmp_path, name, json.dumps({"text": f"a row{end}"})) for name, end in (("a.jsonl", " "), ("b.jsonl", ""))
    )
    with pytest.raises(PenwrightError, match="the same as the held-out ones"):
        open_text([path], ReadingOptions(validation=(str(own),)))


def test_single_character_is_too_short_to_split(tmp_path):
    with pytest.raises(PenwrightError, match="too few to hold any out"):
        open_text([write(tmp_path, "x.txt", "x")])


def test_blank_file_given_by_name_is_refused(tmp_path):
    numbered_files(tmp_path, 2)
    with pytest.raises(PenwrightError, match="only whitespace"):
        open_text([tmp_path / "000.txt", write(tmp_path, "blank.txt", "\n")])


def test_empty_list_of_files_is_refused():
    with pytest.raises(PenwrightError, match="no files"):
        open_text([])


def test_fingerprint_depends_on_content_and_settings(tmp_path):
    path = write(tmp_path, "a.txt", "one\ntwo\nthree\n")
    first, other_seed = open_text([path]).fingerprint, open_text([path], ReadingOptions(held_out=0.5)).fingerprint
    assert open_text([path]).fingerprint == first != other_seed
    write(tmp_path, "a.txt", "one\ntwo\nthree!\n")
    assert open_text([path]).fingerprint not in (first, other_seed)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("posts.csv", 'id,text,date\n1,"one, two",x\n2,three,y\n'),
        ("posts.tsv", "id\ttext\tdate\n1\tone, two\tx\n2\tthree\ty\n"),
        ("posts.json", '[{"id": 1, "text": "one, two"}, {"id": 2, "text": "three"}]'),
        ("posts.txt", "id\ttext\tdate\n1\tone, two\tx\n2\tthree\ty\n"),
    ],
)
def test_text_column_of_a_table_yields_documents_without_other_columns(tmp_path, name, content):
    corpus = open_text([write(tmp_path, name, content)], ReadingOptions(held_out=0.5))
    pairs = zip(texts(corpus.training), texts(corpus.held_out), strict=True)
    assert [head + tail for head, tail in pairs] == ["one, two", "three"]


def test_tab_indented_lines_without_a_header_are_running_text(tmp_path):
    text = "\tif x:\n" * 50
    corpus = open_text([write(tmp_path, "code.txt", text)])
    assert texts(corpus.training)[0] + texts(corpus.held_out)[0] == text


def test_duplicates_are_found_across_compression_and_encoding(tmp_path):
    text = "".join(f"the line number {i}\n" for i in range(50))
    write(tmp_path, "a.txt", text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    write(tmp_path, "c.txt", text.replace("\n", "\r\n"))
    (tmp_path / "d.txt").write_bytes(text.encode("utf-16"))
    other = write(tmp_path, "other.txt", "something else\n" * 50)
    assert open_text([tmp_path]).n_training == 2
    corpus = open_text([tmp_path / "a.txt", other], ReadingOptions(validation=[tmp_path / "c.txt"]))
    assert texts(corpus.training) == ["something else\n" * 50]


def test_kept_duplicates_are_held_out_together(tmp_path):
    numbered_files(tmp_path, 40)
    for i in range(40):
        write(tmp_path, f"copy-{i:03}.txt", (tmp_path / f"{i:03}.txt").read_text())
    corpus = open_text([tmp_path], ReadingOptions(held_out=0.2, cleaning=Cleaning(deduplicate=False)))
    assert len(corpus.held_out) > 2 and not {*texts(corpus.training)} & {*texts(corpus.held_out)}


def test_set_of_validation_files_changes_the_fingerprint(tmp_path):
    (tmp_path / "more").mkdir()
    a, b, c = (
        write(tmp_path / folder, f"{n}.txt", f"text {n}\n" * 9)
        for folder, n in (("", "a"), ("more", "b"), ("more", "c"))
    )
    one = open_text([a, b], ReadingOptions(validation=[c]))
    assert open_text([a], ReadingOptions(validation=[tmp_path / "more"])).fingerprint != one.fingerprint


def test_non_text_file_in_a_folder_is_skipped_and_noted(tmp_path):
    numbered_files(tmp_path, 3)
    (tmp_path / "picture.txt").write_bytes(bytes(1000))
    corpus = open_text([tmp_path])
    assert corpus.n_training == 3 and any("picture.txt is not text" in note for note in corpus.report.notes)
    with pytest.raises(PenwrightError, match=r"picture\.txt is not text"):
        open_text([tmp_path / "picture.txt"])


def test_too_little_text_error_counts_it_and_names_skipped_files(tmp_path):
    write(tmp_path, "README.md", "x")
    write(tmp_path, "code.py", "print()\n" * 99)
    with pytest.raises(PenwrightError, match=r"1 character in total.*1 of other types"):
        open_text([tmp_path])
