"""penwright classify: a label for each text."""

from dataclasses import asdict

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, print_json, warn

NAME = "classify"


def command(run: RunFolder, texts: Texts = None, device: Device = "cpu", json: Json = False) -> None:
    """Classify texts, or the lines of standard input.

    Prints a line for each: label, probability and text, separated by tabs. Blank texts get no label.
    """
    from penwright.workflows.api import load_classifier

    sources = given_texts(texts)
    classified = zip(sources, load_classifier(run, device).classify(sources), strict=True)
    for number, (source, found) in enumerate(classified, start=1):
        if json:
            print_json({"text": source, **asdict(found)})
            continue
        for warning in found.warnings:
            warn(f"text {number}: {warning}" if len(sources) > 1 else warning)
        probability = "" if found.label is None else f"{found.scores[found.label]:.3f}"
        print(f"{found.label or ''}\t{probability}\t{source}")
