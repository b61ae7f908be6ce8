"""penwright classify: a label for each text."""

from dataclasses import asdict

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, print_json, warn

NAME = "classify"


def command(run: RunFolder, texts: Texts = None, device: Device = "cpu", json: Json = False) -> None:
    """Classify texts, or the lines of standard input.

    A line for each: label, probability and text, parted by tabs.
    """
    from penwright.workflows.api import load_classifier

    sources = given_texts(texts)
    for source, found in zip(sources, load_classifier(run, device).classify(sources), strict=True):
        if json:
            print_json({"text": source, **asdict(found)})
            continue
        for warning in found.warnings:
            warn(warning)
        print(f"{found.label}\t{found.scores[found.label]:.3f}\t{source}")
