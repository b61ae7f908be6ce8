"""The commands for translators: `penwright translate` and `penwright align`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penwright.cli.decoding_options import flag_of, given_settings, with_settings
from penwright.cli.options import (
    Device,
    InPrecision,
    Json,
    RunFolder,
    Texts,
    given_texts,
    lines_of,
    print_json,
    read_text,
    refuse_unused,
    warn,
    without_none,
)
from penwright.config import BEAM_SETTINGS, SAMPLING_SETTINGS
from penwright.errors import PenwrightError, UsageError
from penwright.text import count

if TYPE_CHECKING:
    from penwright.translation.constraints.requirements import Constraints
    from penwright.translation.documents import Form
    from penwright.translation.results import Translation
    from penwright.translation.translator import Translator

BEAM_SEARCH = "beam search"
# The options that apply in each mode of translation. --glossary, --protect and --language apply in all modes.
FOLLOWS: Mapping[str, Collection[str]] = {
    BEAM_SEARCH: (*BEAM_SETTINGS, "n_best", "prefix", "align"),
    "--sample": (*SAMPLING_SETTINGS, "n_best", "align"),
    "--diverse": (*BEAM_SETTINGS, "n_best", "align"),
    "--alternatives": (*BEAM_SETTINGS, "prefix"),
    "--document": BEAM_SETTINGS,
}
NBest = Annotated[
    int | None,
    typer.Option(help="Number of translations to print for each text, best first. Default: 1.", metavar="N", min=1),
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option(help="Glossary file. Each line: a term, a tab, its translation (alternative forms separated by |)."),
]
TermBias = Annotated[
    float | None,
    typer.Option(
        help="Make glossary terms more likely, by X nats per token, instead of requiring them.", metavar="X", min=0
    ),
]
ProtectedPatterns = Annotated[
    list[str] | None, typer.Option(help="Regular expression for text to copy unchanged. Repeatable.", metavar="REGEX")
]
TargetPrefix = Annotated[str | None, typer.Option(help="Begin each translation with this text.")]
NAlternatives = Annotated[
    int | None,
    typer.Option(
        help="Number of alternatives to print for the next word after --prefix. Takes a single text.",
        metavar="N",
        min=1,
    ),
]
IsSampled = Annotated[
    bool, typer.Option("--sample", help="Sample the --n-best translations at random instead of using beam search.")
]
Diversity = Annotated[
    float | None,
    typer.Option(
        help="Make the --n-best translations differ: "
        "penalty in nats for each token that an earlier translation has at the same position.",
        metavar="X",
        min=0,
    ),
]
DocumentFile = Annotated[
    Path | None, typer.Option(help="Text, web page or subtitles to translate as a whole, in the same layout.")
]
WithAlignment = Annotated[
    bool, typer.Option("--align", help="Add the word alignment to each translation, as i-j pairs.")
]
SourceLanguage = Annotated[
    str | None,
    typer.Option(help="Source language for sentence splitting, e.g. de. Default: the run's language, if known."),
]


@with_settings(BEAM_SETTINGS, before="n_best", note="Default: the run's setting.")
@with_settings(SAMPLING_SETTINGS, before="diverse", note="For --sample.")
def translate(
    run: RunFolder,
    texts: Texts = None,
    n_best: NBest = None,
    glossary: GlossaryFile = None,
    bias: TermBias = None,
    protect: ProtectedPatterns = None,
    prefix: TargetPrefix = None,
    alternatives: NAlternatives = None,
    sample: IsSampled = False,
    diverse: Diversity = None,
    document: DocumentFile = None,
    align: WithAlignment = False,
    language: SourceLanguage = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    **settings: Any,
) -> None:
    """Translate texts, or the lines of standard input.

    Prints one line for each input line, unless an option asks for more.
    """
    settings = given_settings(settings)
    ways = {"--document": document, "--alternatives": alternatives, "--sample": sample or None, "--diverse": diverse}
    _require_followed(list(without_none({**ways})), {**settings, "n_best": n_best, "prefix": prefix, "align": align})
    constraints = _constraints(glossary, bias, protect or [])
    if document is None:
        sources = given_texts(texts)
    elif texts:
        raise UsageError("--document names the text to translate. Leave out the texts on the command line")
    translator = _translator(run, device, precision, language)
    if document is not None:
        _print_document(translator, document, constraints, settings, json=json)
    elif alternatives is not None:
        _print_alternatives(translator, sources, (prefix or "", alternatives, constraints), settings, json=json)
    else:
        if sample:
            translations = translator.sample(sources, n_best or 1, settings, constraints)
        elif diverse is not None:
            translations = translator.diverse(sources, n_best or 1, diverse, constraints, **settings)
        else:
            best, start = n_best or 1, prefix or ""
            translations = translator.translate(
                sources, n_best=best, constraints=constraints, prefixes=start, **settings
            )
        _print(translations, _links(translations, run, translator) if align else None, json=json)


def _require_followed(ways: Sequence[str], options: Mapping[str, object]) -> None:
    """Raise UsageError for several modes of translation at once, and for options without effect in the chosen mode."""
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} cannot be combined. Choose one of them")
    followed = FOLLOWS[ways[0] if ways else BEAM_SEARCH]
    unused = {flag_of(name): value for name, value in options.items() if name not in followed}
    refuse_unused(unused, f"with {ways[0]}" if ways else "without --sample")


def _constraints(glossary: Path | None, bias: float | None, protect: Sequence[str]) -> "Constraints":
    """Return the constraints on the translations: the terms of the glossary, and the protected spans."""
    from penwright.translation.constraints.glossary import Glossary
    from penwright.translation.constraints.protection import Protection
    from penwright.translation.constraints.requirements import Constraints

    if glossary is None:
        refuse_unused({"--bias": bias}, "without --glossary")
    terms = Glossary.read(glossary) if glossary else Glossary()
    return Constraints(terms, inf if bias is None else bias, Protection(protect))


def _translator(run: Path, device: str, precision: InPrecision, language: str | None) -> "Translator":
    """Load the translator, and set the source language."""
    from penwright.workflows.load import load_translator

    translator = load_translator(run, device, precision)
    translator.source_language = language or translator.source_language
    return translator


def _links(translations: "Sequence[Translation]", run: Path, translator: "Translator") -> list[str]:
    """Return the word alignment of each candidate translation with its source."""
    from penwright.translation.alignment import pharaoh
    from penwright.workflows.optimize import load_aligner

    pairs = [(result.source, candidate.text) for result in translations for candidate in result.candidates]
    return [pharaoh(alignment) for alignment in load_aligner(run, translator=translator).align(pairs)]


def _print(translations: "Sequence[Translation]", links: Sequence[str] | None, *, json: bool) -> None:
    """Print the translations as text or as JSON. `links` holds their word alignments, if these are to be printed."""
    remaining = iter(links or ())
    for translation in translations:
        own_links = ["" if links is None else next(remaining) for _ in translation.candidates]
        if json:
            record = asdict(translation)
            for candidate, link in zip(record["candidates"], own_links, strict=True):
                candidate.update({} if links is None else {"alignment": link})
                candidate["pieces"] = [piece._asdict() for piece in candidate["pieces"]]
                candidate["outcomes"] = [outcome._asdict() for outcome in candidate["outcomes"]]
            print_json(record)
            continue
        for warning in translation.warnings:
            warn(warning)
        for candidate, link in zip(translation.candidates, own_links, strict=True):
            print(candidate.text if links is None else f"{candidate.text}\t{link}")


def _print_document(
    translator: "Translator", path: Path, constraints: "Constraints", settings: Mapping[str, Any], *, json: bool
) -> None:
    """Print the translation of a document in the layout of the original."""
    if translator.source_language is None:
        warn("the source language is unknown, so sentences are split as in English. Specify it, as in: --language de")
    document, form = _read_document(path)
    text = translator.translate_document(document, constraints, form=form, **settings)
    if json:
        print_json({"text": text})
    else:
        print(text, end="")


def _read_document(path: Path) -> "tuple[str, Form]":
    """Return a document and its form. Raise PenwrightError for a format whose layout cannot be kept."""
    from penwright.data.files import format_of, read_markup

    kind = format_of(path, str(path)) if path.is_file() else None
    if kind is None:
        return read_text(str(path)), "text"
    if kind.name == "html":
        return read_markup(path), "html"
    if kind.name in ("srt", "vtt"):
        return read_text(str(path)), "subtitles"
    raise PenwrightError(
        f"{path} is {kind.description}. --document keeps the layout of text, web pages and subtitles (.srt, .vtt). "
        "Save it in one of these formats"
    )


def _print_alternatives(
    translator: "Translator",
    sources: Sequence[str],
    request: "tuple[str, int, Constraints]",
    settings: Mapping[str, Any],
    *,
    json: bool,
) -> None:
    """Print alternatives for the next word: the word, its log-probability and the best translation with it."""
    if len(sources) != 1:
        raise UsageError("--alternatives works on one sentence. Give a single text")
    for alternative in translator.alternatives(sources[0], *request, **settings):
        if json:
            print_json(alternative._asdict())
        else:
            print(f"{alternative.word}\t{alternative.log_prob:.3f}\t{alternative.text}")


def align(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(help="File with one source sentence per line.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="File with the translations, one per line.", metavar="TARGET")],
    device: Device = "cpu",
) -> None:
    """Align the words of two files, line by line.

    Prints the links of each pair of lines as i-j: the positions of the source word and the target word, from 0
    (Pharaoh format).
    In text without spaces, such as Chinese, each character counts as a word.
    """
    from penwright.streams import print_message
    from penwright.translation.alignment import pharaoh
    from penwright.workflows.optimize import load_aligner

    sides = [lines_of(read_text(str(path))) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise PenwrightError(
            f"{source} has {count(len(sides[0]), 'line')}, but {target} has {len(sides[1]):,}. "
            "Give one translation per line"
        )
    pairs = list(zip(*sides, strict=True))
    for links in load_aligner(run, device, pairs, print_message).align(pairs):
        print(pharaoh(links))
