"""Translation files (TMX, XLIFF, TBX, PO, WMT XML, subtitles, SGM) as sentence pairs."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data.corpus import Columns, Corpus, Pair, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.parallel import open_evaluation_pairs, open_pairs
from penwright.data.readers import bilingual
from penwright.data.text import open_text
from penwright.errors import PenwrightError

PAIRS = [(f"This is sentence number {number}.", f"Das ist Satz Nummer {number}.") for number in range(40)]


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def all_pairs(corpus: Corpus[Pair]) -> set[tuple[str, str]]:
    return {(pair.source, pair.target) for part in (corpus.training, corpus.held_out) for pair in part}


def tmx(units: list[tuple[str, str]], languages: tuple[str, str] = ("en", "de")) -> str:
    first, second = languages
    body = "\n".join(
        f'<tu><tuv xml:lang="{first}"><seg>{a}</seg></tuv><tuv xml:lang="{second}"><seg>{b}</seg></tuv></tu>'
        for a, b in units
    )
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n{body}\n</body></tmx>\n'


def xliff(units: list[tuple[str, str]]) -> str:
    body = "".join(
        f'<trans-unit id="{n}" x:state="ok"><source>{a}</source><target>{b}</target></trans-unit>'
        for n, (a, b) in enumerate(units)
    )
    head = '<file source-language="en" target-language="de" original="x"><body>'
    return f'<xliff version="1.2" xmlns="urn:x" xmlns:x="urn:y">{head}{body}</body></file></xliff>'


def xliff_2(units: list[tuple[str, str]]) -> str:
    body = "".join(f"<segment><source>{a}</source><target>{b}</target></segment>" for a, b in units)
    return f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="u">{body}</unit></file></xliff>'


def tbx(units: list[tuple[str, str]]) -> str:
    def side(language: str, term: str) -> str:
        return f'<langSet xml:lang="{language}"><tig><term>{term}</term></tig></langSet>'

    body = "".join(f"<termEntry>{side('en', a)}{side('de', b)}</termEntry>" for a, b in units)
    return f'<?xml version="1.0"?><!DOCTYPE martif SYSTEM "x.dtd"><martif><text><body>{body}</body></text></martif>'


def po(units: list[tuple[str, str]]) -> str:
    head = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return head + "".join(f'# a remark\nmsgid "{a}"\nmsgstr "{b}"\n\n' for a, b in units)


def wmt(units: list[tuple[str, str]]) -> str:
    source = "".join(f'<seg id="{n}">{a}</seg>' for n, (a, _) in enumerate(units))
    target = "".join(f'<seg id="{n}">{b}</seg>' for n, (_, b) in enumerate(units))
    document = f'<src lang="en"><p>{source}</p></src><ref lang="de"><p>{target}</p></ref><hyp><p></p></hyp>'
    return f'<?xml version="1.0"?><dataset id="x"><doc id="d">{document}</doc></dataset>'


FORMS = {"a.tmx": tmx, "a.xlf": xliff, "b.xliff": xliff_2, "a.tbx": tbx, "a.po": po, "a.xml": wmt}


@pytest.mark.parametrize("name", FORMS)
def test_every_format_yields_the_same_pairs(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, FORMS[name](PAIRS))
    assert detect_task([path])[0] == "translate"
    assert all_pairs(open_pairs([path])) == set(PAIRS)
    assert len(open_evaluation_pairs([path]).held_out) == len(PAIRS)
    with pytest.raises(PenwrightError, match=r"not running text.*--task translate"):
        open_text([path])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_tmx_is_read_in_any_encoding_and_under_any_file_name(tmp_path: Path, encoding: str) -> None:
    units = [(a, b.replace("Satz", "schöner Satz")) for a, b in PAIRS]
    text = tmx(units).replace('"1.0"?', f'"1.0" encoding="{encoding.removesuffix("-sig")}"?')
    assert all_pairs(open_pairs([write(tmp_path, "memory.txt", text.encode(encoding))])) == set(units)


def test_inline_codes_are_dropped_and_highlighted_text_is_kept(tmp_path: Path) -> None:
    seg = (
        r'<bpt i="1">{\b </bpt>Bold<ept i="1">}</ept> <hi>high</hi><ph>&lt;br <sub>title</sub>/&gt;</ph><it>x</it> end.'
    )
    assert (" ".join(["Bold", "hightitle", "end."]), "x") in all_pairs(
        open_pairs([write(tmp_path, "a.tmx", tmx([*PAIRS, (seg, "x")]))])
    )


@pytest.mark.parametrize(("between", "break_"), [("Save{}file.", " "), ("保存{}文件。", "")])
def test_codes_for_line_breaks_separate_words(tmp_path: Path, between: str, break_: str) -> None:
    codes = ['<x id="1" ctype="lb"/>', "<ph>&lt;br /&gt;</ph>", '<ph subType="xlf:lb"/>']
    units = [(between.format(code), f"{n}") for n, code in enumerate(codes)]
    expected = {(between.format(break_), target) for _, target in units}
    units.append(('Dem<g id="1" xml:lang="br">at</g>d', "Breton"))
    expected.add(("Dematd", "Breton"))
    assert expected <= all_pairs(open_pairs([write(tmp_path, "a.xlf", xliff([*PAIRS, *units]))]))


def test_marked_sentences_of_xliff_are_paired_by_their_numbers(tmp_path: Path) -> None:
    def side(*texts: str) -> str:
        return "".join(f'<g><mrk mtype="seg" mid="{n}">{text}</mrk></g> ' for n, text in enumerate(texts))

    original = f"One. Two.</source><seg-source>{side('One.', 'Two.')}</seg-source><source>"
    units = [(original, side("Eins.", "")), (f"{original} ", "Eins. Zwei."), (f"{original}  ", side("1.", "2."))]
    corpus = open_pairs([write(tmp_path, "a.sdlxliff", xliff([*PAIRS, *units]))])
    pairs = {("One.", "Eins."), ("One. Two.", "Eins. Zwei."), ("One.", "1."), ("Two.", "2.")}
    assert all_pairs(corpus) == {*PAIRS, *pairs}
    assert [each.count for each in corpus.report.dropped] == [1]


@pytest.mark.parametrize(
    ("name", "tag", "state"),
    [("a.xlf", "target", "new"), ("a.xlf", "target", "needs-translation"), ("b.xliff", "segment", "initial")],
)
def test_untranslated_targets_of_xliff_are_dropped_and_counted(tmp_path: Path, name: str, tag: str, state: str) -> None:
    text = FORMS[name]([*PAIRS, ("A copy.", "A copy."), ("No target.", "")]).replace(
        f"<{tag}>", f'<{tag} state="{state}">'
    )
    corpus = open_pairs([write(tmp_path, name, text)])
    assert all_pairs(corpus) == set(PAIRS)  # a translation counts in any state
    assert sum(each.count for each in corpus.report.dropped) == 2


def test_empty_unit_does_not_hide_the_next_one(tmp_path: Path) -> None:
    text = xliff(PAIRS).replace("<trans-unit", """<trans-unit id="e" a=">" b='"'/><trans-unit""")
    assert all_pairs(open_pairs([write(tmp_path, "a.xlf", text)])) == set(PAIRS)


def test_language_that_begins_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bilingual, "SAMPLE", 20)
    late = tmx(PAIRS, ("en", "fr")).partition("<body>")[2]
    path = write(tmp_path, "a.tmx", tmx(PAIRS).partition("</body>")[0] + late)
    assert all_pairs(open_pairs([path], ReadingOptions(Columns(source="EN", target="fr")))) == set(PAIRS)


def test_colon_after_any_character_is_text(tmp_path: Path) -> None:
    units = [(f"{a} m²:area /CO₂:x", b) for a, b in PAIRS]
    assert all_pairs(open_pairs([write(tmp_path, "a.tmx", tmx(units))])) == set(units)


@settings(max_examples=30, deadline=None)
@given(
    damage=st.sampled_from(["&#x1F;", "\x02", "&nbsp;", "<b>", "</seg>", "a & b", "<ph"]),
    where=st.integers(0, len(PAIRS) - 1),
    form=st.sampled_from([tmx, xliff, tbx]),
)
def test_damaged_unit_is_dropped_alone_and_counted(tmp_path_factory, damage: str, where: int, form) -> None:
    units = [(a + damage if n == where else a, b) for n, (a, b) in enumerate(PAIRS)]
    corpus = open_pairs([write(tmp_path_factory.mktemp("damage"), f"a.{form.__name__}", form(units))])
    assert all_pairs(corpus) == {pair for n, pair in enumerate(PAIRS) if n != where}
    assert [each.count for each in corpus.report.dropped] == [1]


def test_entities_are_not_expanded(tmp_path: Path) -> None:
    text = tmx([*PAIRS, ("&boom;", "x")]).replace("<tmx", '<!DOCTYPE tmx [<!ENTITY boom "BOOM">]>\n<tmx', 1)
    assert all_pairs(open_pairs([write(tmp_path, "a.tmx", text)])) == set(PAIRS)


@pytest.mark.parametrize("columns", [Columns(), Columns(source="pt-BR", target="pt-PT"), Columns(source="PT_br")])
def test_two_regional_variants_are_two_languages(tmp_path: Path, columns: Columns) -> None:
    corpus = open_pairs([write(tmp_path, "a.tmx", tmx(PAIRS, ("pt-BR", "pt-PT")))], ReadingOptions(columns))
    assert (all_pairs(corpus), corpus.names) == (set(PAIRS), ("pt-br", "pt-pt"))


def test_later_tmx_files_are_turned_to_the_direction_of_the_first(tmp_path: Path) -> None:
    half = len(PAIRS) // 2
    turned = [(b, a) for a, b in PAIRS[half:]]
    corpus = open_pairs(
        [write(tmp_path, "a.tmx", tmx(PAIRS[:half])), write(tmp_path, "b.tmx", tmx(turned, ("de", "en")))]
    )
    assert (all_pairs(corpus), corpus.names) == (set(PAIRS), ("en", "de"))
    assert any("b.tmx: used in the direction en to de, to match " in note for note in corpus.report.notes)


def test_tmx_with_other_languages_is_noted(tmp_path: Path) -> None:
    others = [(f"{a} oui", f"{b} ja") for a, b in PAIRS]
    corpus = open_pairs([write(tmp_path, "a.tmx", tmx(PAIRS)), write(tmp_path, "b.tmx", tmx(others, ("fr", "de")))])
    assert all_pairs(corpus) == {*PAIRS, *others}
    assert any("b.tmx: its languages differ from those of" in note for note in corpus.report.notes)


def test_region_can_be_omitted_when_the_language_is_unique(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tmx", tmx(PAIRS, ("en-US", "de-AT")))
    assert open_pairs([path]).names == ("en", "de")
    swapped = open_pairs([path], ReadingOptions(Columns(source="de-DE")))
    assert all_pairs(swapped) == {(b, a) for a, b in PAIRS}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tmx", tmx(PAIRS).replace("<seg>", "").replace("</seg>", "")),
        ("a.xlf", xliff(PAIRS).replace("target>", "note>")),
    ],
)
def test_file_without_translations_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(PenwrightError, match=rf"{name} is .* without translations"):
        open_pairs([write(tmp_path, name, text)])


def test_missing_and_fuzzy_po_translations_are_dropped_and_counted(tmp_path: Path) -> None:
    more = '#, fuzzy\nmsgid "a"\nmsgstr "b"\n\nmsgid "c"\nmsgstr ""\n\n#~ msgid "d"\n#~ msgstr "e"\n\n'
    plural = 'msgid "one file"\nmsgid_plural "files"\nmsgstr[0] "eine Datei"\nmsgstr[1] "Dateien"\n'
    corpus = open_pairs([write(tmp_path, "a.po", po(PAIRS) + more + plural)])
    assert all_pairs(corpus) == {*PAIRS, ("one file", "eine Datei"), ("files", "Dateien")}
    assert [each.count for each in corpus.report.dropped] == [2]


SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"


@pytest.mark.parametrize(
    ("rule", "one", "many"),
    [(SLOVENIAN, 1, 0), ("nplurals=2; plural=n != 1;", 0, 1), ("nplurals=1; plural=0;", 0, 0), ("plural=n.n", 0, 3)],
)
def test_plural_forms_follow_the_rule_in_the_header(tmp_path: Path, rule: str, one: int, many: int) -> None:
    text = po(PAIRS).replace('UTF-8\\n"', f'UTF-8\\n"\n"Plural-Forms: {rule}\\n"')
    forms = "".join(f'msgstr[{number}] "form {number}"\n' for number in range(4))
    corpus = open_pairs([write(tmp_path, "a.po", f'{text}msgid "one file"\nmsgid_plural "files"\n{forms}')])
    assert all_pairs(corpus) == {*PAIRS, ("one file", f"form {one}"), ("files", f"form {many}")}


def srt(texts: list[str], delay: int = 0) -> str:
    return "\n".join(
        f"{n}\n00:00:{n + delay:02},000 --> 00:00:{n + delay:02},900\n{text}\n" for n, text in enumerate(texts)
    )


def sgm(texts: list[str], kind: str = "srcset") -> str:
    body = "\n".join(f'<seg id="{n}"> {text} &amp; more </seg>' for n, text in enumerate(texts))
    return f'<{kind} setid="t" srclang="any">\n<DOC docid="1">\n<p>\n{body}\n</DOC>\n</{kind}>\n'


def test_subtitles_with_matching_cues_are_paired(tmp_path: Path) -> None:
    first = write(tmp_path, "film.en.srt", srt([a for a, _ in PAIRS]))
    cues = srt([f"<i>{b}</i>" for _, b in PAIRS]).split("\n\n")
    second = write(tmp_path, "film.de.srt", "\n\n".join(cue for n, cue in enumerate(cues) if n != 7))
    assert detect_task([first, second])[0] == "translate"
    corpus = open_pairs([first, second])
    assert all_pairs(corpus) == {pair for n, pair in enumerate(PAIRS) if n != 7}
    assert ([each.count for each in corpus.report.dropped], corpus.names) == ([1], ("en", "de"))


def test_cues_with_the_same_start_are_all_paired(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, f"film.{language}.srt", srt([text for text, _ in PAIRS]) + srt([text for _, text in PAIRS]))
        for language in ("en", "de")
    ]
    assert all_pairs(open_pairs(paths)) == {(text, text) for pair in PAIRS for text in pair}


def test_subtitles_of_different_films_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{n}.srt", srt([a for a, _ in PAIRS], delay=19 * n)) for n in (0, 1, 2)]
    with pytest.raises(PenwrightError, match=r"0\.srt and .*2\.srt are not translations of each other.*same time"):
        open_pairs([paths[0], paths[2]])


def test_sgm_segments_are_paired_by_id(tmp_path: Path) -> None:
    first = write(tmp_path, "news.src.en.sgm", sgm([a for a, _ in PAIRS]))
    lines = sgm([b for _, b in PAIRS], "refset").split("\n")
    second = write(tmp_path, "news.ref.de.sgm", "\n".join([*lines[:3], *reversed(lines[3:43]), *lines[43:]]))
    assert all_pairs(open_evaluation_pairs([first, second])) == {(f"{a} & more", f"{b} & more") for a, b in PAIRS}
