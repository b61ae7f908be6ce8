"""Export a run for another engine, as an adapter, or as a new run."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Literal

import torch

from penwright.classification.mixture import ENCODER_ALONE, fit_mixture, fit_mixture_of_sets
from penwright.config import Precision
from penwright.errors import PenwrightError, Say, UsageError, say_nothing
from penwright.formats.ctranslate2 import save_ctranslate2, usage_of
from penwright.formats.export import NO_METADATA, ModelMetadata, new_folder, write_card
from penwright.formats.gguf import save_gguf
from penwright.formats.huggingface_export import architecture_for, save_huggingface
from penwright.formats.huggingface_files import licence_of, without_prefix
from penwright.formats.huggingface_tokenizer import read_template
from penwright.formats.onnx import save_onnx
from penwright.formats.peft import ADAPTER, Adapter, load_adapter, save_adapter
from penwright.formats.pretrained import read_chat
from penwright.model import EncoderOnly, Model
from penwright.model.lora import merged
from penwright.model.weights import load_weights, weights_of
from penwright.run.checkpoints import Tensors
from penwright.run.folder import CORPUS, LINEAR_FILE, Run
from penwright.run.provenance import MergedAdapter, Origin, corpus_record, made_with
from penwright.run.records import METRICS, finite_or_none, read_records
from penwright.storage import sha256_of
from penwright.tasks import RunContext, scoring_of
from penwright.tasks.labelled import classifier_model, predictions
from penwright.tasks.multi_label import fit_thresholds
from penwright.text import count
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import plain_settings, template_of
from penwright.workflows.evaluate import evaluation_context, open_corpus_of
from penwright.workflows.load import OpenedRun, open_base, open_run

Format = Literal["ctranslate2", "gguf", "huggingface", "onnx"]
SEVERAL = "multi_label_classification"
# keys of metrics.jsonl that are not scores, and the maximum number of labels to list in README.md
COUNTERS, SHOWN = {"step", "seconds", "epoch", "targets", "skipped"}, 50
LEAST_SCALE = 0.01  # minimum factor of calibrated logits; with 0, all labels would be equally likely
SAVERS: dict[Format, Callable[[Model, Tokenizer, Path, Precision, ModelMetadata], None]] = {
    "ctranslate2": save_ctranslate2,
    "gguf": save_gguf,
    "huggingface": save_huggingface,
    "onnx": save_onnx,
}
AnyFormat = Literal[Format, "peft", "penwright"]


def export(
    folder: Path,
    to: AnyFormat,
    output: Path,
    precision: Precision = "float32",
    adapter: Path | None = None,
    say: Say = say_nothing,
) -> None:
    """Write a run's best model to a new folder. The modules of `formats` describe the formats of other engines.

    "peft" writes the adapter of a LoRA run. "penwright" makes a new run, with adapters merged into the weights.
    README.md states the origin and the licence of an imported model. An `adapter` in PEFT's format is first merged into
    the model. transformers and PEFT cannot run the n-grams of a classifier. The encoder is then calibrated and exported
    alone. Its scores are reported, and written to README.md. Raises UsageError if the run has no adapter to write.
    """
    run = open_run(folder)
    if to == "peft" and adapter is not None:
        raise UsageError("--to peft writes the run's own adapter and cannot merge another one. Leave out --adapter")
    if to == "peft":
        _save_adapter(run, output, say)
        return
    model, origin = run.model(), corpus_record(run.run).imported
    if adapter is not None:
        run = _with_chat_of(adapter, run, say)
        labels, source = run.card.labels, origin.source if origin else None
        adapter_weights = load_adapter(adapter, model, run.tokenizer, run.best.weights_sha256, labels, source)
        load_weights(model, merged(run.weights(), adapter_weights.tensors, adapter_weights.settings), str(adapter))
        origin = origin and _with_adapter(origin, adapter)
    if to == "penwright":
        with new_folder(output) as unfinished:
            weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
            _save_run(run, weights, origin, unfinished)
            if run.recipe.finetuning and run.recipe.finetuning.keep_old:
                base = run.recipe.finetuning.base
                say(f"--keep-old with the new run mixes in its own text, but no longer that of {base}")
        return
    metadata = _metadata(run, origin)
    if to == "huggingface" and run.recipe.model.ngrams and architecture_for(model, run.tokenizer, metadata.labels):
        metadata = metadata._replace(card=metadata.card + _scores_without_ngrams(run, model, say))
    elif metadata.labels:
        metadata = metadata._replace(card=metadata.card + _classifier_card(run, to, with_scores=adapter is None))
    if to == "huggingface":
        metadata = metadata._replace(card=metadata.card + _thresholds(model, metadata.labels))
    if to == "ctranslate2":
        end = template_of(metadata.chat).end_of_answer(run.tokenizer)
        metadata = metadata._replace(card=metadata.card + usage_of(model, run.tokenizer, end))
    save_as(to, model, run.tokenizer, output, precision, metadata)


def save_as(
    to: Format,
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Export a model to a new folder in the format of an engine. The folder is created only if the export succeeds."""
    with new_folder(folder) as unfinished:
        SAVERS[to](model, tokenizer, unfinished, precision, metadata)
        write_card(metadata, unfinished)


def _classifier_card(run: OpenedRun, to: AnyFormat, *, with_scores: bool) -> str:
    """Return Markdown for README.md: the labels, the held-out scores of the checkpoint, and how to use the files."""
    labels, step = run.card.labels, run.best.step
    records = [each for each in read_records(run.run.folder / METRICS).lines if each["step"] == step]
    found = {name: finite_or_none(value) for each in records for name, value in each.items() if name not in COUNTERS}
    scores = [f"{name} {value:.4g}" for name, value in found.items() if value is not None]
    lines = [
        f"A classifier with {count(len(labels), 'label')}: {', '.join(labels[:SHOWN])}{', ...' * (len(labels) > SHOWN)}"
    ]
    if scores and with_scores:
        lines.append(f"Held-out scores: {', '.join(scores)}")
    if to == "onnx":
        lines.append('To label texts: `pip install numpy onnxruntime tokenizers`, then `python classify.py "a text"`')
    return "".join(f"\n{line}\n" for line in lines)


def _thresholds(model: Model, labels: Sequence[str]) -> str:
    """Return Markdown with the thresholds of a classifier with several labels for each text; "" for other models."""
    if not isinstance(model, EncoderOnly) or model.settings.problem_type != SEVERAL:
        return ""
    thresholds = zip(labels, model.thresholds.tolist(), strict=True)
    each = ", ".join(f"{label} {threshold:.4g}" for label, threshold in thresholds)
    return f"\nMinimum probability at which a text gets a label: {each}\n"


def _scores_without_ngrams(run: OpenedRun, model: Model, say: Say) -> str:
    """Report what a mixed classifier and its encoder alone score on the held-out texts. Return Markdown for README.md.

    If the texts are missing, report that the scores are unknown.
    """
    say("transformers cannot run n-grams, so the encoder is exported without them. The onnx format keeps them")
    try:
        context = evaluation_context(run, open_corpus_of(run), model)
    except PenwrightError as error:
        say(f"the scores without n-grams are unknown: {error}")
        return "\nThis is the encoder of a classifier with n-grams. Its scores without the n-grams were not measured.\n"
    settings = run.recipe.model.model_copy(update={"ngrams": False})
    without = replace(context, recipe=run.recipe.model_copy(update={"model": settings}))
    mixed = scoring_of(run.recipe).evaluate(context)
    if settings.problem_type != "regression":
        _calibrate(without)
    alone = scoring_of(run.recipe).evaluate(without)
    rows = [(score.name, f"{score.value:.4g}", f"{other.value:.4g}") for score, other in zip(alone, mixed, strict=True)]
    for name, score, other in rows:
        say(f"{name} on {len(context.held_out):,} held-out texts: {score} without n-grams, {other} with them")
    head = ("score", "this model", "with n-grams"), ("---", "---", "---")
    table = "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))
    what = "This is the encoder of a classifier with n-grams, which transformers cannot run."
    return f"\n{what} Scores on {len(context.held_out):,} held-out texts:\n\n{table}\n"


@torch.no_grad()
def _calibrate(context: RunContext) -> None:
    """Scale the logits of the model, so that its probabilities fit the held-out texts.

    The most likely label does not change. If a text may have several labels, their thresholds are tuned again.
    """
    model, parts = classifier_model(context), list(predictions(context))
    outputs, truth = (torch.cat(each) for each in ([part.outputs for part in parts], [part.truth for part in parts]))
    balanced = model.settings.balanced
    fit = fit_mixture_of_sets if model.settings.problem_type == SEVERAL else partial(fit_mixture, balanced=balanced)
    weight, _ = fit(outputs, torch.zeros_like(outputs), truth, ENCODER_ALONE)
    scale = weight.clamp(min=LEAST_SCALE)
    for parameter in (*model.output.parameters(), *([model.log_prior] if balanced else [])):
        parameter.mul_(scale)
    if model.settings.problem_type == SEVERAL:
        model.thresholds.copy_(fit_thresholds(scale * outputs, truth))


def _with_adapter(origin: Origin, adapter: Path) -> Origin:
    """Return the origin of an imported model into which this adapter was merged."""
    digest, licence = sha256_of(adapter / ADAPTER), licence_of(adapter)
    added = MergedAdapter(path=adapter.as_posix(), sha256=digest, licence=licence)
    return origin.model_copy(update={"adapters": [*origin.adapters, added]})


def _with_chat_of(adapter: Path, run: OpenedRun, say: Say) -> OpenedRun:
    """Return the run with the chat template of an adapter, unless the run is a chat model itself."""
    if run.recipe.task != "generate" or run.recipe.chat is not None:
        return run
    start, end = (run.tokenizer.pieces[token] for token in (run.tokenizer.start_id, run.tokenizer.end_id))
    notes = list[str]()
    chat, tokenizer = read_chat(read_template(adapter), {"bos": start, "eos": end}, run.tokenizer, notes)
    for note in notes:
        say(note)
    return run._replace(recipe=run.recipe.model_copy(update={"chat": chat}), tokenizer=tokenizer)


def _metadata(run: OpenedRun, origin: Origin | None) -> ModelMetadata:
    """Return the labels of a run and, if the run or its base was imported, the model's origin and licence."""
    record, card = corpus_record(run.run), ""
    if origin is not None:
        front = f"---\nlicense: {origin.licences}\n---\n" if origin.licences else ""
        made_of = [*origin.files, *origin.adapters]
        files = "".join(f"- {Path(file.path).name}, sha256 {file.sha256}\n" for file in made_of)
        what = f"was {origin}" if record.is_untrained else f"was fine-tuned from a model that was {origin}"
        card = f"{front}This model {what}. Imported files:\n\n{files}"
    chat = plain_settings(run.tokenizer) if run.recipe.task == "chat" and not run.recipe.chat else run.recipe.chat
    if chat is not None and "enable_thinking" in chat.template and not record.is_untrained:
        # The run was trained on answers without reasoning. Other programs would ask for reasoning by default.
        chat = chat.model_copy(update={"template": f"{{% set enable_thinking = false %}}{chat.template}"})
    linear = run.linear(whole=True) if run.recipe.model.ngrams else None
    licence = origin.licences if origin else None
    return ModelMetadata(run.card.labels, licence, card, chat, run.recipe.decoding, linear)


def _save_adapter(run: OpenedRun, output: Path, say: Say) -> None:
    recipe = run.recipe
    if recipe.lora is None or recipe.finetuning is None:
        raise UsageError(f"{run.run.folder} has no adapter: it was not trained with --lora")
    metadata = _metadata(run, corpus_record(run.run).imported)
    model, weights = run.model(), run.best.weights()
    if recipe.task == "classify" and recipe.model.ngrams:
        metadata = metadata._replace(card=metadata.card + _scores_without_ngrams(run, model, say))
        calibrated = weights_of(model)  # LoRA is merged, so only the head has the same name
        weights = {name: calibrated.get(name, tensor) for name, tensor in weights.items() if name != "mixture"}
    metadata = metadata._replace(card=metadata.card + _thresholds(model, metadata.labels))
    origin = corpus_record(open_base(recipe, run.run).run)
    base = without_prefix(origin.imported.source) if origin.imported and origin.is_as_imported else None
    adapter = Adapter(recipe.lora, weights, recipe.finetuning.base_sha256)
    with new_folder(output) as unfinished:
        name = base or recipe.finetuning.base
        save_adapter(adapter, name, recipe.task, model, run.tokenizer, unfinished, metadata)
        write_card(metadata, unfinished)


def _save_run(run: OpenedRun, weights: Tensors, origin: Origin | None, folder: Path) -> None:
    """Write the weights as a finished run that does not depend on a base model."""
    made = Run.create(folder)
    recipe = run.recipe.model_copy(update={"lora": None, "finetuning": None})
    run.tokenizer.save(made.tokenizer_path)
    made.save_recipe(recipe)
    record = run.run.read_json(CORPUS)
    if isinstance(record.get("trained_from"), str):
        record["trained_from"] = Path(os.path.relpath(run.run.real_folder / record["trained_from"], folder)).as_posix()
    made.write_json(CORPUS, record | ({"imported": origin.model_dump()} if origin else {}))
    if run.linear() is not None:
        copyfile(run.run.folder / LINEAR_FILE, made.folder / LINEAR_FILE)
    made.checkpoints.made_with = made_with(made, recipe)
    step = run.best.step
    made.checkpoints.save(step, weights, {}, {"step": step, "total_steps": step, "best_step": step})
