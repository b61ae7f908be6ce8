"""Import of models in the layout of the Hugging Face Hub, by tables that map config.json and tensors to ours."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from penwright.config import ModelSettings, ProblemType, Table, merge, validate
from penwright.errors import PenwrightError
from penwright.formats.architectures import (
    VALUE_NAMES,
    Architecture,
    Config,
    decoding_in,
    required,
    unused_restrictions,
)
from penwright.formats.architectures.encoders import ENCODERS, SAME_ENCODERS, labels_in
from penwright.formats.architectures.rope import with_flat_rope
from penwright.formats.architectures.translators import TRANSLATORS
from penwright.formats.architectures.writers import WRITERS
from penwright.formats.huggingface_files import (
    TOKENIZER_FILES,
    licence_of,
    read_config,
    read_optional,
    read_tensors,
    shards_of,
)
from penwright.formats.huggingface_tokenizer import listed_ids, read_template, read_tokenizer
from penwright.formats.pretrained import (
    Outline,
    Pretrained,
    Tensors,
    fit_vocabulary,
    listed,
    outlined,
    read_chat,
    read_decoding,
    require_all,
)
from penwright.formats.sentence_transformers import CROSS_ENCODER, activation_notes, differences, with_pooling
from penwright.formats.tokenizer_files import special_names
from penwright.languages import Languages, languages_between
from penwright.model import Model
from penwright.model.weights import FITTED

# Suffixes of redundant tensors that some versions of transformers save: computed values, or copies of a parameter.
REDUNDANT = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    ".position_ids",
    ".embed_positions.weight",
    ".embed_positions.weights",
    "coder.embed_tokens.weight",
    "lm_head.weight",
    "model.embed_tokens.weight",
)

NLI_LABELS = {"entailment", "contradiction"}  # labels of classifiers of a premise and a hypothesis
ARCHITECTURES = WRITERS | TRANSLATORS | ENCODERS  # keyed by the class name in transformers


class TensorSource(NamedTuple):
    """A tensor of a checkpoint: one or more of our parameters, concatenated along the first dimension."""

    name: str
    parameters: dict[str, nn.Parameter]  # our parameters, by name
    transposed: bool


def settings_from_huggingface(config: Config) -> Outline:
    """Convert a config.json to our settings. Raises PenwrightError, naming the key, if a value is unsupported."""
    architecture = architecture_of(config)
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise PenwrightError(
            f"config.json: quantization_config (quant_method = {method!r}) is not supported. Import the original, "
            "unquantized model, or a GGUF file of it"
        )
    flags = {key for key, value in architecture.defaults.items() if isinstance(value, bool)}
    given = {key: value for key, value in with_flat_rope(config).items() if value is not None or key not in flags}
    config = {**architecture.defaults, **given}
    if not _has_window(config):
        config = {**config, "use_sliding_window": False}
    for key, values in architecture.supported.items():
        if config.get(key, values[0]) not in values:
            raise PenwrightError(f"config.json: {key} = {config[key]!r} is not supported, only {listed(values)}")
    settings = validate(ModelSettings, _translate(architecture, config), "config.json")
    vocab_size = required(config, "vocab_size")
    if not isinstance(vocab_size, int):
        raise PenwrightError(f"config.json: vocab_size = {vocab_size!r} is not a number")
    if architecture.task != "classify" or not architecture.has_head:
        return Outline(architecture.task, vocab_size, settings)
    labels = labels_in(config)
    reads_pairs = not config.keys().isdisjoint(CROSS_ENCODER) or {*map(str.casefold, labels)} >= NLI_LABELS
    changes = {"problem_type": _problem_type(config, len(labels)), "text_pairs": reads_pairs}
    return Outline(architecture.task, vocab_size, settings.model_copy(update=changes), len(labels))


def _has_window(config: Config) -> bool:
    """Return whether any layer has a sliding window. Some Qwen models set `use_sliding_window` for no layer."""
    layers, size = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(layers, list):
        return "sliding_attention" in layers
    first = config.get("max_window_layers", 28)
    return not (isinstance(first, int) and isinstance(size, int) and first >= size)


def _problem_type(config: Config, n_labels: int) -> ProblemType:
    """Return the kind of a classifier. A single output without `problem_type` means regression, as in transformers."""
    match config.get("problem_type"):
        case None | "regression" if n_labels == 1:
            return "regression"
        case "multi_label_classification":
            return "multi_label_classification"
        case None | "single_label_classification" if n_labels > 1:
            return "single_label_classification"
        case kind:
            raise PenwrightError(
                f"config.json: problem_type = {kind!r} with {n_labels} labels is not supported, only "
                "single_label_classification, multi_label_classification, and regression with one label"
            )


def weights_from_huggingface(config: Config, tensors: Mapping[str, Tensor]) -> tuple[Outline, Tensors]:
    """Return the arguments for building the model that config.json describes, and its renamed weights."""
    architecture, outline = architecture_of(config), settings_from_huggingface(config)
    if not architecture.has_head and not any(name.endswith("pooler.dense.weight") for name in tensors):
        outline = outline._replace(settings=outline.settings.model_copy(update={"pooler": False}))
    theirs = architecture.prepare(dict(tensors))
    if outline.settings.tie_embeddings != "none" and outline.task != "classify":
        outline = _with_own_head(outline, architecture, theirs)
    model = outlined(outline, len(tensors))
    sources = list(tensor_sources(architecture, model))
    known = [name for name in theirs if name.endswith(REDUNDANT) or name.startswith(architecture.ignored)]
    require_all(theirs, [source.name for source in sources], known, "")
    weights = {name: part for source in sources for name, part in _parts(source, theirs[source.name])}
    if outline.settings.problem_type == "multi_label_classification":
        weights["thresholds"] = torch.full((outline.n_labels,), 0.5)
    if outline.settings.problem_type == "regression":
        weights["scale"] = torch.tensor([0.0, 1.0])  # the outputs are already scores on the original scale
    return outline, weights


def _with_own_head(outline: Outline, architecture: Architecture, tensors: Mapping[str, Tensor]) -> Outline:
    """Return the outline without tied embeddings if the output layer differs from the embedding, as in transformers."""
    head, tokens = (tensors.get(f"{name}.weight") for name in ("lm_head", architecture.modules[0].theirs))
    if head is None or tokens is None or torch.equal(head.to(tokens.dtype), tokens):
        return outline
    if outline.task != "generate":
        raise PenwrightError("lm_head.weight differs from the embedding, which is not supported for translators")
    return outline._replace(settings=outline.settings.model_copy(update={"tie_embeddings": "none"}))


def architecture_of(config: Config) -> Architecture:
    """Return the table for a config.json; raise PenwrightError if its architecture is not supported.

    Without `architectures`, `model_type` names the model, which then has no classification head.
    """
    names, kind = config.get("architectures"), config.get("model_type")
    for name in map(str, names if isinstance(names, list | tuple) else (names,)):
        if (known := SAME_ENCODERS.get(name, name)) in ARCHITECTURES:
            return ARCHITECTURES[known]
    same = "roberta" if kind == "xlm-roberta" else kind
    of_kind = [each for each in ARCHITECTURES.values() if each.model_type == same and names is None]
    if of_kind:
        return of_kind[-1]  # the table lists encoders after the classifiers of the same type
    stated = f"architectures = {names!r}" if names else f"model_type = {kind!r} without architectures"
    raise PenwrightError(f"{stated} is not supported, only {listed(ARCHITECTURES)}")


def _translate(architecture: Architecture, config: Config) -> Table:
    """Return our settings as nested tables; if a value in config.json is null, our default is kept."""
    settings: dict[str, tuple[str, object]] = {}  # our keys, mapped to (transformers key, value)
    for theirs, ours in architecture.keys:
        value = required(config, theirs)
        if ours in VALUE_NAMES:
            if value not in [*VALUE_NAMES[ours]]:  # a list, because a value may be unhashable
                raise PenwrightError(
                    f"config.json: {theirs} = {value!r} is not supported, only {listed(VALUE_NAMES[ours])}"
                )
            value = VALUE_NAMES[ours][value]
        if ours == "context_length" and isinstance(value, int):
            value -= architecture.offset
        other, agreed = settings.setdefault(ours, (theirs, value))
        if theirs != other and value != agreed:
            raise PenwrightError(f"config.json: {other} = {agreed!r} and {theirs} = {value!r} must be equal")
    table = architecture.block
    for ours, (_, value) in settings.items():
        if value is not None:
            *outer, key = ours.split(".")
            table = merge(table, {outer[0]: {key: value}} if outer else {key: value})
    return table


def tensor_sources(architecture: Architecture, model: Model) -> Iterator[TensorSource]:
    """Yield the tensors that hold the parameters; a shared parameter is listed under its first name only."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if name not in FITTED}
    n_layers = max(model.settings.n_layers, model.settings.n_decoder_layers or 0)
    for rename in architecture.modules:
        for layer in range(n_layers) if "{i}" in rename.theirs else (0,):
            theirs, ours = rename.theirs.format(i=layer), [name.format(i=layer) for name in rename.ours]
            for kind in ("weight", "bias"):
                if all(f"{name}.{kind}" in parameters for name in ours):
                    held = {f"{name}.{kind}": parameters.pop(f"{name}.{kind}") for name in ours}
                    yield TensorSource(f"{theirs}.{kind}", held, rename.transposed and kind == "weight")
    assert not parameters, f"the conversion tables lack the parameters {listed(parameters)}"


def _parts(source: TensorSource, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Split a tensor into our weights, and yield the name and value of each."""
    tensor = tensor.T if source.transposed else tensor
    held = source.parameters.values()
    rows = [len(parameter) for parameter in held]
    expected = (sum(rows), *next(iter(held)).shape[1:])
    if tensor.shape != expected:
        raise PenwrightError(f"{source.name} has shape {tuple(tensor.shape)}, but config.json implies {expected}")
    for name, part in zip(source.parameters, tensor.split(rows), strict=True):
        yield name, part.contiguous()


def read_huggingface(folder: Path, languages: Languages | None = None, *, pairs: bool = False) -> Pretrained:
    """Read the model in a folder. With `pairs`, a classifier reads pairs of texts.

    Raises PenwrightError, naming the file or key, if the model cannot be used.
    """
    try:
        return _read(folder, languages, pairs=pairs)
    except PenwrightError as error:
        raise PenwrightError(f"{folder}: {error}") from None


def _read(folder: Path, languages: Languages | None, *, pairs: bool) -> Pretrained:
    config = read_config(folder)
    architecture = architecture_of(config)
    settings_from_huggingface(config)  # check the settings before reading large files
    generation = read_optional(folder, "generation_config.json")
    ends = [end for file in (config, generation) for end in listed_ids(file.get("eos_token_id"))]
    with_ends = {**generation, **config, "eos_token_id": ends}
    tokenizer = read_tokenizer(folder, with_ends, architecture.task, languages)
    outline, weights = weights_from_huggingface(config, read_tensors(folder))
    notes = list[str]()
    if architecture.task == "generate" or not architecture.has_head:
        outline = with_pooling(outline, weights, folder)
    if not architecture.has_head:
        notes += differences(outline, tokenizer, folder)
    outline = fit_vocabulary(outline, weights, tokenizer)
    if pairs:
        outline = outline._replace(settings=outline.settings.model_copy(update={"text_pairs": True}))
    names = [name for name in ("config.json", *TOKENIZER_FILES) if (folder / name).is_file()]
    special = special_names(folder) | {"eos": tokenizer.pieces[tokenizer.end_id]}
    if outline.n_labels == 1:
        notes += activation_notes(config)
    if outline.n_labels == 1 and not outline.settings.text_pairs:
        notes.append("the model scores single texts. If it scores pairs of texts, such as a reranker, add --pairs")
    multilingual = {"forced_bos_token_id": None} if architecture.model_type == "m2m_100" else {}  # the language token
    unused = unused_restrictions(generation | multilingual, architecture.task, tokenizer.pad_id)
    if unused:
        notes.append(f"settings of generation_config.json that Penwright does not apply: {listed(unused)}")
    template = read_template(folder) if architecture.task == "generate" else None
    chat, marked = read_chat(template, special, tokenizer, notes)
    return Pretrained(
        outline=outline,
        weights=weights,
        tokenizer=marked,
        files=[*(folder / name for name in names), *shards_of(folder)],
        architecture=_name_of(config),
        licence=licence_of(folder),
        labels=labels_in(config) if outline.n_labels else (),
        languages=languages or _languages_of(folder),
        chat=chat,
        decoding=read_decoding(decoding_in(generation, architecture.task), notes),
        notes=notes,
    )


def _languages_of(folder: Path) -> Languages | None:
    """Return the languages that a Marian model names; None for other models, and for language groups."""
    settings = read_optional(folder, "tokenizer_config.json")
    return languages_between([str(settings.get(key, "")) for key in ("source_lang", "target_lang")])


def _name_of(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0] if isinstance(names, list) and names else names or config["model_type"])
