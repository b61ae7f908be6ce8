"""Real corpora, read with their published counts."""

import pytest

from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.labelled import open_labelled
from penwright.data.parallel import open_pairs
from penwright.data.text import open_text


def test_tiny_shakespeare_is_split_after_nine_tenths(shared_data):
    corpus = open_text([shared_data / "tinyshakespeare" / "input.txt"])
    assert corpus.training.n_characters + corpus.held_out.n_characters == 1_115_394
    assert 1_003_854 <= corpus.training.n_characters < 1_003_854 + 80


def test_polish_novels_hold_out_at_most_half_a_million_characters(shared_data):
    corpus = open_text([shared_data / "polish-literature"])
    assert (corpus.n_training, len(corpus.held_out)) == (8, 8)
    assert 490_000 < corpus.held_out.n_characters <= 500_000


def test_multi30k_is_paired_with_its_validation_files(shared_data):
    folder = shared_data / "multi30k"
    corpus = open_pairs(
        [folder / "train.en.gz", folder / "train.de.gz"],
        ReadingOptions(validation=[folder / "val.en", folder / "val.de"]),
    )
    assert (corpus.report.n_read, len(corpus.held_out)) == (29_000, 1_014)


def test_tatoeba_sources_are_not_shared_across_the_split(shared_data):
    corpus = open_pairs([shared_data / "spa-eng" / "spa.txt.gz"])
    assert corpus.report.n_read == 118_964
    assert not {pair.source for pair in corpus.training} & {pair.source for pair in corpus.held_out}


def test_next_line_characters_do_not_end_lines_of_newstest(shared_data):
    folder = shared_data / "wmt14-en-de" / "dev"
    assert open_pairs([folder / "newstest2009.en", folder / "newstest2009.de"]).report.n_read == 2_525


@pytest.mark.parametrize(("name", "n"), [("train.sentences.tsv", 6_920), ("dev.tsv", 872), ("test.tsv", 1_821)])
def test_sst2_is_read_whichever_column_comes_first(shared_data, name, n):
    corpus = open_labelled([shared_data / "sst2" / name])
    assert (corpus.report.n_read, corpus.labels) == (n, ("0", "1"))


@pytest.mark.parametrize(
    ("name", "columns", "n", "labels"),
    [
        ("test.csv", Columns(text=(2, 3), label=1), 7_600, ("1", "2", "3", "4")),
        ("test.csv", Columns(), 7_600, ("1", "2", "3", "4")),
        ("train5k.csv", Columns(), 5_000, ("0", "1", "2", "3")),
        ("train10k.tsv", Columns(), 9_991, ("Business", "Sci/Tech", "Sports", "World")),
    ],
)
def test_ag_news_is_read_in_every_layout(shared_data, name, columns, n, labels):
    corpus = open_labelled([shared_data / "ag_news" / name], ReadingOptions(columns))
    assert (corpus.report.n_read, corpus.labels) == (n, labels)
