"""The `penwright classify` command: a label for each text."""

from dataclasses import asdict

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, print_json, warn


def command(run: RunFolder, texts: Texts = None, device: Device = "cpu", json: Json = False) -> None:
    """Classify texts, or the lines of standard input.

    Prints one line per text: label, probability and text, separated by tabs. Blank texts get no label.
    """
    from penwright.workflows.load import load_classifier

    sources = given_texts(texts)
    results = zip(sources, load_classifier(run, device).classify(sources), strict=True)
    for number, (source, result) in enumerate(results, start=1):
        if json:
            print_json({"text": source, **asdict(result)})
            continue
        for warning in result.warnings:
            warn(f"text {number}: {warning}" if len(sources) > 1 else warning)
        probability = "" if result.label is None else f"{result.scores[result.label]:.3f}"
        print(f"{result.label or ''}\t{probability}\t{source}")
