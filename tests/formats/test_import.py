"""Hub folders are imported as runs, with tokenizers of every kind. Invalid ones are refused and leave no files."""

import json
import shutil
import string
import struct
import unicodedata
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import penwright
from penwright import devices
from penwright.cli.generate import chat
from penwright.config import DecodingSettings, ModelSettings, Table, merge
from penwright.errors import PenwrightError, UsageError
from penwright.formats import pretrained
from penwright.formats.architectures import decoding_in, generation_of
from penwright.formats.gguf_import import GGUFFile, read_gguf
from penwright.formats.gguf_tokenizer import is_guessed, words_in
from penwright.formats.gguf_tokenizer import read_tokenizer as read_gguf_tokenizer
from penwright.formats.huggingface import read_huggingface
from penwright.formats.huggingface_files import licence_of
from penwright.formats.huggingface_tokenizer import read_tokenizer
from penwright.formats.pretrained import Outline
from penwright.formats.sentence_transformers import differences
from penwright.formats.tokenizer_files import wordpiece
from penwright.generation.generator import Generator
from penwright.languages import Languages
from penwright.losses import summed_loss
from penwright.run.folder import Run
from penwright.run.provenance import corpus_record
from penwright.tasks import TASKS, RunContext, generation, make_card
from penwright.tasks.encoding import mask_of
from penwright.tasks.generation import FEW_TOKENS, SAMPLE_TOKENS  # before tests make them smaller
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import ChatTemplate, Message, encode_pieces
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.markup import Markup, encode_text, text_in_pieces
from penwright.tokenizers.sentencepiece import as_tokenizer_json, parse_sentencepiece
from penwright.tokenizers.training import train_tokenizer
from penwright.tokenizers.vocabulary import trimmed
from penwright.training.auto.machine import choose_machine
from penwright.workflows.evaluate import evaluate
from penwright.workflows.import_model import import_model, with_imported_base
from penwright.workflows.load import load, open_run
from penwright.workflows.make_trainer import make_context, make_trainer, skipped_text
from penwright.workflows.plan import prepare

from ..tokenizers.test_chat_template import LLAMA_2, ZEPHYR
from .conftest import TEXTS
from .huggingface_models import model_from_huggingface

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LLAMA = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64}
TRANSLATOR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.enable_progress_bar()


def save_model(model: torch.nn.Module, folder: Path) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    model.eval().save_pretrained(folder)


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and a byte-level BPE. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library.train_from_iterator(TEXTS, trainer)
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    config = transformers.LlamaConfig(**LLAMA, vocab_size=library.get_vocab_size(), bos_token_id=0, eos_token_id=1)
    torch.manual_seed(0)
    save_model(transformers.LlamaForCausalLM(config), folder)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n", encoding="utf-8")
    return folder


@pytest.fixture
def llama(saved_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def edit(path: Path, **changes: object) -> None:
    write(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def test_imported_writer_equals_transformers(llama: Path, tmp_path: Path) -> None:
    ours = penwright.import_model(llama, tmp_path / "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(llama)
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    ids = tokenizer("The cat", return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == ours.tokenizer.prompt(ours.tokenizer.encode("The cat"))
    with torch.no_grad():
        torch.testing.assert_close(ours.model(ids), theirs(ids).logits, atol=1e-4, rtol=1e-4)
    assert ours.generate("The cat", max_new_tokens=20)[0].text
    origin = corpus_record(open_run(tmp_path / "run").run).imported
    assert origin is not None and (origin.licence, origin.architecture) == ("mit", "LlamaForCausalLM")
    assert origin.source == str(llama)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("README.md", "---\nlicense: mit\nlanguage: en\n---\nlicense: none", "mit"),
        ("README.md", "---\r\nlanguage: en\r\nlicense: mit\r\n---\r\n", "mit"),
        ("README.md", "---\nlicense:\n- mit\n- apache-2.0\ntags:\n- chat\n---\n", "mit, apache-2.0"),
        ("README.md", "---\nlicense: [mit, 'apache-2.0']\n---\n", "mit, apache-2.0"),
        ("README.md", "---\nlicense: other\nlicense_name: qwen-research\n---\n", "other (qwen-research)"),
        ("LICENSE.md", "", "see LICENSE.md"),
        ("README.md", "# license: mit", None),
    ],
)
def test_licence_is_read_from_the_readme_or_a_file(name, content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert licence_of(tmp_path) == expected


def test_imported_run_refuses_evaluation_without_text_and_resuming(llama: Path, tmp_path: Path) -> None:
    penwright.import_model(llama, tmp_path / "run")
    with pytest.raises(UsageError, match="was imported, so it has no held-out text"):
        penwright.evaluate(tmp_path / "run")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    assert penwright.evaluate(tmp_path / "run", tmp_path / "text.txt", quiet=True)[0].value > 0
    with pytest.raises(PenwrightError, match="imported"):
        penwright.resume(tmp_path / "run", steps=2, quiet=True)


def test_unused_embeddings_are_removed(llama: Path, tmp_path: Path) -> None:
    path = llama / "model.safetensors"
    tensors = load_file(path)
    n = len(tensors["lm_head.weight"])
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.cat([tensors[name], torch.ones(10, 32)])
    save_file(tensors, path, metadata={"format": "pt"})
    edit(llama / "config.json", vocab_size=n + 10)
    ours = penwright.import_model(llama, tmp_path / "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(llama)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.model(tokens), theirs(tokens).logits[..., :n], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            -2,
            r"298 embeddings, and the tokenizer has 300 tokens: \S+, \S+ have none\. .*resize_token_embeddings\(300\)",
        ),
        (200, r"the tokenizer has 300 tokens, and the model has 500 embeddings"),
    ],
)
def test_tokenizer_of_another_model_is_refused(extra: int, message: str, llama: Path, tmp_path: Path) -> None:
    path = llama / "model.safetensors"
    tensors = load_file(path)
    n = len(tensors["lm_head.weight"]) + extra
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.cat([tensors[name], torch.ones(200, 32)])[:n].contiguous()
    save_file(tensors, path)
    edit(llama / "config.json", vocab_size=n)
    assert_import_is_refused(llama, tmp_path, message)


def assert_import_is_refused(source: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(PenwrightError, match=message):
        penwright.import_model(source, tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_pickled_weights_are_refused_unopened(llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    message = r"no model\.safetensors\. The folder has only pytorch_model\.bin\..*save_pretrained.*NAME@refs/pr/NUMBER"
    assert_import_is_refused(llama, tmp_path, message)
    assert not Path("executed").exists()


def shard(folder: Path) -> list[Path]:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for part, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / part)
    weight_map = {name: part for part, held in parts.items() for name in held}
    write(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return [folder / part for part in parts]


def test_shards_are_read(llama: Path, tmp_path: Path) -> None:
    whole = load_file(llama / "model.safetensors")
    shard(llama)
    ours = penwright.import_model(llama, tmp_path / "run")
    assert torch.equal(ours.model.embedding.tokens.weight, whole["model.embed_tokens.weight"])


def test_missing_shard_is_named(llama: Path, tmp_path: Path) -> None:
    shard(llama)[1].unlink()
    assert_import_is_refused(llama, tmp_path, r"lists model-2\.safetensors")


def test_truncated_shard_is_named(llama: Path, tmp_path: Path) -> None:
    path = shard(llama)[0]
    path.write_bytes(path.read_bytes()[:-100])
    assert_import_is_refused(llama, tmp_path, r"model-1\.safetensors.*Download the file again")


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"lm_head.weight": 3}}])
def test_index_without_the_names_of_files_is_refused(index: Table, llama: Path, tmp_path: Path) -> None:
    write(llama / "model.safetensors.index.json", index)
    assert_import_is_refused(llama, tmp_path, "has no weight_map")


def test_unsupported_type_of_a_tensor_is_named(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    save_file({name: tensor.double() for name, tensor in tensors.items()}, llama / "model.safetensors")
    assert_import_is_refused(llama, tmp_path, r"is of type torch\.float64, which is not supported")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd"])
def test_shards_outside_the_folder_are_refused(name: str, llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").rename(tmp_path / "outside.safetensors")
    write(llama / "model.safetensors.index.json", {"weight_map": {"lm_head.weight": name}})
    assert_import_is_refused(llama, tmp_path, "points outside the folder")


def test_symlinks_out_of_the_folder_are_refused(llama: Path, tmp_path: Path) -> None:
    (llama / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (llama / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    assert_import_is_refused(llama, tmp_path, "points outside the folder")


def test_tensor_of_the_wrong_shape_is_named(llama: Path, tmp_path: Path) -> None:
    edit(llama / "config.json", intermediate_size=64)
    assert_import_is_refused(llama, tmp_path, r"mlp\.\w+_proj\.weight has shape")


def test_model_larger_than_the_memory_of_the_container_is_not_read(llama: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "memory.max").write_text("10000\n")
    monkeypatch.setattr(devices, "CGROUPS", tmp_path)
    monkeypatch.setattr(
        "penwright.formats.huggingface_files.load_file", lambda path: pytest.fail("the weights were read")
    )
    assert_import_is_refused(llama, tmp_path, r"needs .* GiB of memory")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "1,000,000,000 layers"),
        ({"hidden_size": 2**40}, "config.json|cannot be built|memory"),
        ({"hidden_size": 10**30}, r"impossible size$"),
        ({"max_position_embeddings": 10**12}, "a context of 1,000,000,000,000 tokens"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "rope_parameters": None}, "rope_type = 'dynamic'"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config .*'awq'"),
    ],
)
def test_invalid_model_settings_are_refused(changes, message, llama: Path, tmp_path: Path) -> None:
    edit(llama / "config.json", **changes)
    assert_import_is_refused(llama, tmp_path, message)


def test_imported_weights_are_freed_before_the_run_is_loaded(llama: Path, tmp_path: Path, monkeypatch) -> None:
    imported, held = [], []
    monkeypatch.setattr(
        "penwright.workflows.import_model.read_huggingface",
        lambda *options, **more: imported.append(read_huggingface(*options, **more)) or imported[0],
    )
    monkeypatch.setattr(
        "penwright.workflows.import_model.load", lambda run: held.append(len(imported[0].weights)) or load(run)
    )
    import_model(str(llama), tmp_path / "run")
    assert held == [0]


def test_existing_run_folder_is_not_overwritten(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PenwrightError, match="not empty"):
        penwright.import_model(llama, tmp_path / "run")
    assert (tmp_path / "run" / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_hub_download_without_a_network_is_refused(tmp_path: Path, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("there is no network")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(PenwrightError, match="hub:some/model cannot be downloaded: there is no network"):
        penwright.import_model("hub:some/model", tmp_path / "run")


def test_shards_without_an_index_are_read_only_if_all_are_there(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for first, name in enumerate(names):
        part = {key: tensor for number, (key, tensor) in enumerate(tensors.items()) if number % 2 == first}
        save_file(part, llama / name, metadata={"format": "pt"})
    assert read_huggingface(llama).weights
    (llama / names[1]).unlink()
    with pytest.raises(PenwrightError, match=rf"incomplete\. Download model.*index\.json, {names[1]}, too"):
        read_huggingface(llama)


def test_hub_download_of_a_revision_has_each_file_once(llama: Path, tmp_path: Path, monkeypatch) -> None:
    hub, calls = pytest.importorskip("huggingface_hub"), []
    files = ["model.safetensors", "model-00001-of-00002.safetensors", "penwright-tokenizer.json", "config.json"]
    duplicates = [
        "consolidated.safetensors",
        "onnx/model.safetensors",
        "adapter_model.safetensors",
        "pytorch_model.bin",
    ]

    def snapshot(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((name, revision))
        assert list(hub.utils.filter_repo_objects([*files, *duplicates], allow_patterns=allow_patterns)) == files
        return str(llama)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    given = {"finetuning": {"base": "hub:own/small@refs/pr/3"}}
    assert with_imported_base(given, tmp_path / "run")["finetuning"]["base"] == str(tmp_path / "small")
    penwright.import_model("hub:own/small", tmp_path / "again")
    assert calls == [("own/small", "refs/pr/3"), ("own/small", None)]


def test_adapter_is_not_imported_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    write(tmp_path / "adapter/adapter_config.json", {"peft_type": "LORA"})
    message = "is a LoRA adapter, not a whole model.*export BASE --adapter .*adapter --to penwright"
    assert_import_is_refused(tmp_path / "adapter", tmp_path, message)
    with pytest.raises(PenwrightError, match=message):
        with_imported_base({"finetuning": {"base": str(tmp_path / "adapter")}}, None)
    write(tmp_path / "adapter/config.json", {"model_type": "llama"})
    assert_import_is_refused(tmp_path / "adapter", tmp_path, message)


def test_adapter_beside_a_model_is_pointed_out(llama: Path, tmp_path: Path) -> None:
    write(llama / "adapter_config.json", {"peft_type": "LORA"})
    said: list[str] = []
    import_model(str(llama), tmp_path / "run", say=said.append)
    assert any("the adapter in" in line and "--adapter" in line for line in said)


def test_missing_source_is_refused(llama: Path, tmp_path: Path) -> None:
    assert_import_is_refused(tmp_path / "nothing", tmp_path, "there is no .*nothing")
    (llama / "config.json").unlink()
    assert_import_is_refused(llama, tmp_path, r"there is no config\.json\. Name the folder")


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_recommended_decoding_settings_are_imported_and_exported(llama: Path, marian: Path, tmp_path: Path) -> None:
    given = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "no_repeat_ngram_size": 3}
    given |= {"min_new_tokens": 2}
    messages: list[str] = []
    write(llama / "generation_config.json", given)
    import_model(str(llama), tmp_path / "run", say=messages.append)
    decoding = open_run(tmp_path / "run").recipe.decoding
    assert (decoding.temperature, decoding.top_k, decoding.repetition_penalty) == (0.6, 20, 1.05)
    assert decoding.no_repeat_ngram == 3 and "temperature = 0.6, top_k = 20" in messages[0]
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "out")
    exported = transformers.GenerationConfig.from_pretrained(tmp_path / "out").to_diff_dict()
    assert given.items() <= exported.items()
    assert decoding_in({"do_sample": True, "temperature": 0.8}, "generate") == {"temperature": 0.8, "top_k": 50}
    whole = generation_of(DecodingSettings(temperature=0.6), "generate")
    assert whole == {"do_sample": True, "temperature": 0.6, "top_k": 0}  # without top_k, transformers would use 50

    restrictions = {"bad_words_ids": [[5]], "suppress_tokens": [], "min_new_tokens": 2, "encoder_repetition_penalty": 1}
    write(llama / "generation_config.json", restrictions)
    import_model(str(llama), tmp_path / "restricted", say=messages.append)
    assert open_run(tmp_path / "restricted").recipe.decoding.min_new_tokens == 2
    assert messages[-2].endswith("that Penwright does not apply: bad_words_ids = [[5]]")
    write(llama / "generation_config.json", {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1})
    import_model(str(llama), tmp_path / "greedy")
    decoding = open_run(tmp_path / "greedy").recipe.decoding
    assert (decoding.temperature, decoding.repetition_penalty) == (DecodingSettings().temperature, 1.1)
    write(llama / "generation_config.json", {"temperature": -1.0})
    import_model(str(llama), tmp_path / "invalid", say=messages.append)
    assert open_run(tmp_path / "invalid").recipe.decoding == DecodingSettings()
    assert "the decoding settings of the model are left out: generation_config.json" in messages[-1]

    pad = json.loads((marian / "config.json").read_text(encoding="utf-8"))["pad_token_id"]
    large = {"num_beams": 10**6, "repetition_penalty": 1.3, "bad_words_ids": [[pad]]}
    write(marian / "generation_config.json", large)
    limited = import_model(str(marian), tmp_path / "limited", say=messages.append)
    assert limited.defaults.beam_size == DecodingSettings().beam_size
    assert messages[-2].endswith("does not apply: repetition_penalty = 1.3")
    assert messages[-1].startswith("num_beams = 1000000")
    write(marian / "generation_config.json", {"num_beams": 6, "length_penalty": 0.8, "temperature": 0.5})
    ours = penwright.import_model(marian, tmp_path / "opus")
    assert (ours.defaults.beam_size, ours.defaults.length_penalty) == (6, 0.8)
    assert ours.defaults.temperature == DecodingSettings().temperature
    penwright.export(tmp_path / "opus", "huggingface", tmp_path / "opus-out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "opus-out")
    tokenizer, generation = transformers.MarianTokenizer.from_pretrained(marian), theirs.generation_config
    assert (generation.num_beams, generation.length_penalty) == (6, 0.8)
    assert generation.decoder_start_token_id == tokenizer.pad_token_id
    assert_same_translations(ours, tmp_path / "opus-out", tokenizer, {})


@pytest.mark.parametrize(
    "name", ["BertTokenizer", "DistilBertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"]
)
@pytest.mark.parametrize(
    "changes",
    [
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
)
def test_bert_settings_override_tokenizer_json_as_in_transformers(name: str, changes: Table, tmp_path: Path) -> None:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "The",
        "the",
        "Café",
        "Cafe",
        "café",
        "cafe",
        "中",
        "国",
        "中国",
    ]
    file = wordpiece("\n".join(pieces), {"do_lower_case": True})
    write(tmp_path / "tokenizer.json", file)
    write(tmp_path / "config.json", {"model_type": "bert"})
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": name, "unk_token": "[UNK]", **changes})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, {"model_type": "bert"}, "classify", None)
    for text in ("The Café, the cafe", "中国"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("changes", [{}, {"add_prefix_space": True}, {"add_bos_token": False}])
def test_prefix_and_start_token_are_those_of_transformers(name: str, changes: Table, llama: Path) -> None:
    edit(llama / "tokenizer_config.json", tokenizer_class=name, **changes)
    theirs = transformers.AutoTokenizer.from_pretrained(llama)
    ours = read_tokenizer(llama, {"model_type": "gpt2"}, "generate", None)
    assert ours.prompt(ours.encode("The cat")) == theirs("The cat")["input_ids"]


@pytest.mark.parametrize("begins", [True, False])
def test_exported_writer_begins_texts_as_before(begins: bool, llama: Path, tmp_path: Path) -> None:
    changes = {"post_processor": None} if begins else {}
    edit(llama / "tokenizer.json", **changes)
    edit(llama / "tokenizer_config.json", tokenizer_class="LlamaTokenizer", add_bos_token=begins)
    ours = penwright.import_model(llama, tmp_path / "run").tokenizer
    assert ours.begins == begins
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("The cat")["input_ids"] == ours.prompt(ours.encode("The cat"))
    assert penwright.import_model(tmp_path / "out", tmp_path / "again").tokenizer.begins == begins


def test_vocab_txt_tokenizes_as_transformers(tmp_path: Path) -> None:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "sat",
        "##s",
        "un",
        "##aff",
        "##able",
        ",",
        "12",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, {}, "classify", None)
    for text in [*TEXTS, "Thé CATS unaffable 12", ""]:
        assert [ours.start_id, *ours.encode(text), ours.end_id] == theirs(text)["input_ids"]
    assert mask_of(ours) == theirs.mask_token_id  # for masked-token training


def save_bert(model: transformers.PreTrainedModel, folder: Path) -> Path:
    """Write a tiny BERT with a tokenizer of letters."""
    save_model(model, folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join([*pieces, *(f"##{letter}" for letter in "abcdefghi")]) + "\n", "utf-8")
    return folder


BERT = transformers.BertConfig(**SMALL, vocab_size=40)


ADDED = {"[E]": 7, "flurbo": 8}


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_of_a_vocab_txt_are_read(where: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]), "utf-8"
    )
    write(tmp_path / "special_tokens_map.json", {"additional_special_tokens": ["[E]"]})
    write_added(tmp_path, where, ADDED)
    ours = read_tokenizer(tmp_path, {}, "classify", None)
    assert (ours.vocab_size, ours.special_ids["[E]"]) == (9, 7)
    assert ours.encode("The flurbo cat") == [5, 8, 6]
    assert ours.encode("[E]") != [7]  # a text has no special tokens


def write_added(folder: Path, where: str, added: dict[str, int]) -> None:
    decoder = {str(number): {"content": name, "special": not name.isalpha()} for name, number in added.items()}
    content = {"added_tokens_decoder": decoder} if where == "tokenizer_config.json" else added
    write(folder / where, content)


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("source", [LLAMA_2, ZEPHYR])
def test_chat_of_a_sentencepiece_model_has_the_ids_of_transformers(
    source: str, is_legacy: bool, spm, tmp_path: Path
) -> None:
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "vocab_size": 400}
    (tmp_path / "tokenizer.model").write_bytes(spm("bpe", byte_fallback=True, **options).read_bytes())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "legacy": is_legacy, **names})
    theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    messages = [Message("user", "A cat"), Message("assistant", "Yes."), Message("user", " two  cats\n")]
    records = [each._asdict() for each in messages]
    wanted = theirs.apply_chat_template(records, chat_template=source, add_generation_prompt=True)["input_ids"]
    template = ChatTemplate(source, "<s>", "</s>")
    for has_file in (False, True):
        if has_file:  # the same tokenizer as a tokenizer.json
            theirs.save_pretrained(tmp_path)
        ours = read_tokenizer(tmp_path, {}, "generate", None)
        ((turn,), rest) = template.turns(messages)
        pieces = [turn.prompt, [turn.answer], [Markup("</s>")], rest]
        found = [token for each in pieces for token in encode_pieces(ours, each)]
        assert [ours.pieces[token] for token in found] == [ours.pieces[token] for token in wanted]


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_of_a_sentencepiece_model_are_read(where: str, spm, tmp_path: Path) -> None:
    path = spm("bpe", byte_fallback=True, normalization_rule_name="identity", vocab_size=400)
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    write(
        tmp_path / "special_tokens_map.json", {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    write_added(tmp_path, where, {"<|im_start|>": 400, "<|im_end|>": 401})
    ours = read_tokenizer(tmp_path, {"bos_token_id": 1}, "generate", None)
    assert (ours.vocab_size, ours.end_id, ours.pad_id) == (402, 401, 401)
    assert encode_pieces(ours, [Markup("<|im_start|>"), "<|im_end|>"])[0] == 400
    assert 401 not in ours.encode("<|im_end|>")
    write_added(tmp_path, where, {"<|im_start|>": 400, "<|im_end|>": 402})
    with pytest.raises(PenwrightError, match=r"'<\|im_end\|>' has the id 402 in .* but should have 401"):
        read_tokenizer(tmp_path, {"bos_token_id": 1}, "generate", None)


@pytest.mark.parametrize(("role", "number"), [("bos", 400), ("eos", 450)])
def test_special_token_without_a_name_is_refused(role: str, number: int, spm, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(spm("bpe", byte_fallback=True, vocab_size=400).read_bytes())
    config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 400}
    assert read_tokenizer(tmp_path, config, "generate", None).pad_id == 2
    with pytest.raises(
        PenwrightError, match=f"{role}_token_id is {number}, but the tokenizer has no token with this id"
    ):
        read_tokenizer(tmp_path, config | {f"{role}_token_id": number}, "generate", None)


@pytest.mark.parametrize(("epochs", "rate"), [(0.5, 0.0), (4, 0.1)])
def test_imported_encoder_gets_dropout_if_it_reads_texts_often(tmp_path: Path, epochs: float, rate: float) -> None:
    folder, table = save_bert(transformers.BertModel(BERT), tmp_path / "bert"), tmp_path / "labels.tsv"
    import_model(str(folder), tmp_path / "run")
    rows = [f"{label}\t{letter} {label}" for letter in string.ascii_lowercase for label in ("good", "bad")]
    table.write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    tables = {"data": {"train": [str(table)]}, "finetuning": {"base": str(tmp_path / "run")}}
    model = prepare({"task": "classify", **tables, "training": {"epochs": epochs}}).plan.recipe.model
    assert (model.dropout, model.attention_dropout) == (rate, rate)


def test_pretrained_bert_with_old_names_and_without_architectures_is_an_encoder(tmp_path: Path) -> None:
    theirs = transformers.BertForPreTraining(BERT)
    folder = save_bert(theirs, tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():  # as in bert-base-uncased
        tensors = {key.replace(new, name): tensor for key, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ours = penwright.import_model(folder, tmp_path / "run")
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        expected = theirs.bert(ids).last_hidden_state
    torch.testing.assert_close(ours.model.hidden(ids, ids > 0).detach(), expected, atol=1e-4, rtol=1e-4)
    edit(folder / "config.json", architectures=None)
    assert penwright.import_model(folder, tmp_path / "same").labels == ()


def test_classifiers_of_several_labels_and_of_scores_are_imported(tmp_path: Path) -> None:
    several = transformers.BertConfig(**SMALL, vocab_size=40, num_labels=3, problem_type="multi_label_classification")
    theirs = transformers.BertForSequenceClassification(several)
    ours = penwright.import_model(save_bert(theirs, tmp_path / "several"), tmp_path / "labels")
    ids = torch.tensor([[2, 7, 8, 3]])
    with torch.no_grad():
        expected = theirs(ids).logits[0].sigmoid().tolist()
    (found,) = ours.classify("c d")
    assert found.scores == pytest.approx({f"LABEL_{n}": p for n, p in enumerate(expected)}, abs=1e-4)
    assert set(found.labels) == {f"LABEL_{n}" for n, p in enumerate(expected) if p >= 0.5}

    cross_encoder = transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL, vocab_size=40, num_labels=1, sentence_transformers={"version": "5.0"})
    )
    ours = penwright.import_model(save_bert(cross_encoder, tmp_path / "cross"), tmp_path / "score")
    ids, types = torch.tensor([[2, 7, 8, 3, 9, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1]])
    with torch.no_grad():
        expected = float(cross_encoder(ids, token_type_ids=types).logits)
    (found,) = ours.classify([("c d", "e")])
    assert found.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_max_tokens": True}, r"0_Pooling/config\.json: the pooling mode 'max' is not supported"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, r"pooling mode 'mean\+cls'"),
        (None, r"modules\.json: the module Dense is not supported"),
    ],
)
def test_modules_of_sentence_transformers_are_applied_or_refused(pooling, expected: str, tmp_path: Path) -> None:
    folder = save_bert(transformers.BertModel(BERT), tmp_path / "bert")
    kinds = ["Transformer", "Pooling", "Normalize"] if pooling else ["Transformer", "Pooling", "Dense"]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"0_{kind}"} for kind in kinds]
    write(folder / "modules.json", modules)
    (folder / "0_Pooling").mkdir()
    write(folder / "0_Pooling/config.json", pooling or {"pooling_mode": "mean"})
    if expected in ("first", "mean"):
        settings = penwright.import_model(folder, tmp_path / "run").model.settings
        assert (settings.pooling, settings.pooler) == (expected, False)
    else:
        assert_import_is_refused(folder, tmp_path, expected)


def test_limits_and_prompts_of_sentence_transformers_are_pointed_out(tmp_path: Path) -> None:
    folder, messages = save_bert(transformers.BertModel(BERT), tmp_path / "bert"), list[str]()
    write(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": True})
    prompts = {"prompts": {"query": "query: ", "passage": ""}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    ours = import_model(str(folder), tmp_path / "run", say=messages.append)
    assert ours.model.settings.context_length == 512
    limit, prompt = messages
    assert "first 128 tokens" in limit and "512 tokens at a time" in limit and "'query: '" in prompt
    write(folder / "tokenizer_config.json", {"do_lower_case": False})
    assert_import_is_refused(folder, tmp_path, r"sentence_bert_config\.json: do_lower_case = true")


def test_prompts_of_sentence_transformers_without_a_default_are_named(tmp_path: Path) -> None:
    outline, tokenizer = Outline("classify", 300, ModelSettings()), train_tokenizer("bytes", TEXTS)
    for default in (None, ["query"]):
        prompts = {"prompts": {"query": "find: ", "passage": ""}, "default_prompt_name": default}
        write(tmp_path / "config_sentence_transformers.json", prompts)
        (note,) = differences(outline, tokenizer, tmp_path)
        assert "prompts (query: 'find: '). Put them before your texts yourself" in note


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_pooling_of_a_language_model_other_than_the_mean_is_refused(prefix: str, llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, llama / "model.safetensors", metadata={"format": "pt"})
    write(llama / "modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}])
    (llama / "1_Pooling").mkdir()
    write(llama / "1_Pooling/config.json", {"pooling_mode_lasttoken": True})
    assert_import_is_refused(llama, tmp_path, "pooling mode 'lasttoken' is not supported for language models")
    write(llama / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    assert read_huggingface(llama).outline.task == "generate"


@pytest.mark.parametrize(
    ("keys", "is_noted"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
        ({"sentence_transformers": {"version": "5.0"}}, True),  # the default of one output
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
    ],
)
def test_scores_before_the_sigmoid_of_a_cross_encoder_are_pointed_out(keys: Table, is_noted: bool, tmp_path) -> None:
    config = transformers.BertConfig(**SMALL, vocab_size=40, num_labels=1, **keys)
    folder = save_bert(transformers.BertForSequenceClassification(config), tmp_path / "cross")
    assert any("scores are logits" in note for note in read_huggingface(folder).notes) == is_noted


@pytest.fixture
def xlm_r(tmp_path: Path) -> tuple[Path, torch.nn.Module, LibraryTokenizer]:
    """A folder with a tiny XLM-R classifier of pairs, its model and its tokenizer."""
    library = LibraryTokenizer(models.Unigram())
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    ends = [("<s>", 0), ("</s>", 2)]
    templates = {"single": "<s> $A </s>", "pair": "<s> $A </s> </s> $B </s>"}
    library.post_processor = processors.TemplateProcessing(**templates, special_tokens=ends)
    sizes = {"vocab_size": library.get_vocab_size(), "max_position_embeddings": 66, "type_vocab_size": 1}
    config = transformers.XLMRobertaConfig(**SMALL, **sizes, pad_token_id=1)
    theirs = transformers.XLMRobertaForSequenceClassification(config)
    save_model(theirs, tmp_path / "xlm-r")
    library.save(str(tmp_path / "xlm-r/tokenizer.json"))
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write(tmp_path / "xlm-r/tokenizer_config.json", names)
    return tmp_path / "xlm-r", theirs, library


def test_xlm_r_classifies_as_transformers(xlm_r, tmp_path: Path) -> None:
    folder, theirs, library = xlm_r
    ours = penwright.import_model(folder, tmp_path / "run")
    (found,) = ours.classify("Der Hund sitzt.")
    with torch.no_grad():
        expected = theirs(torch.tensor([library.encode("Der Hund sitzt.").ids])).logits[0].softmax(-1).tolist()
    assert found.scores == pytest.approx({f"LABEL_{n}": p for n, p in enumerate(expected)}, abs=1e-4)


def test_xlm_r_reads_pairs_as_transformers(xlm_r, tmp_path: Path) -> None:
    folder, theirs, library = xlm_r
    long, short = " ".join(TEXTS), "Die Katze."
    ours = penwright.import_model(folder, tmp_path / "run", pairs=True)
    pair, tokenizer = "Der Hund.\x1eDie Katze.", ours.tokenizer
    assert encode_pieces(tokenizer, text_in_pieces(pair, tokenizer)) == encode_text(pair, tokenizer)
    assert [tokenizer.start_id, *encode_text(pair, tokenizer), tokenizer.end_id] == library.encode(
        *pair.split("\x1e")
    ).ids
    library.enable_truncation(64)
    for first, second in (("Der Hund sitzt.", short), (long, short), (short, long)):
        (found,) = ours.classify([(first, second)])
        with torch.no_grad():
            expected = theirs(torch.tensor([library.encode(first, second).ids])).logits[0].softmax(-1).tolist()
        assert found.scores == pytest.approx({f"LABEL_{n}": p for n, p in enumerate(expected)}, abs=1e-4)
    edit(folder / "config.json", id2label={"0": "CONTRADICTION", "1": "ENTAILMENT"})
    assert penwright.import_model(folder, tmp_path / "nli").reads_pairs
    messages: list[str] = []
    edit(folder / "config.json", id2label={"0": "LABEL_0"})
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {n: tensors[n][:1].clone() for n in tensors if "out_proj" in n}, folder / "model.safetensors")
    assert not import_model(str(folder), tmp_path / "score", say=messages.append).reads_pairs
    assert import_model(str(folder), tmp_path / "reranker", say=messages.append, pairs=True).reads_pairs
    (note,) = messages
    assert "such as a reranker, add --pairs" in note


def test_only_classifiers_read_pairs(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only classifiers read pairs of texts: leave out --pairs"):
        import_model(str(llama), tmp_path / "run", pairs=True)


def test_leftover_heads_of_classifiers_are_ignored() -> None:
    sizes = {"vocab_size": 40, "max_position_embeddings": 66}
    roberta = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SMALL, **sizes))
    bert = transformers.BertForSequenceClassification(BERT)
    for theirs, leftover in ((roberta, ["roberta.pooler.dense.weight", "lm_head.bias"]), (bert, ["cls.seq.weight"])):
        config = {**theirs.config.to_dict(), "architectures": [type(theirs).__name__]}
        ours = model_from_huggingface(config, {**theirs.state_dict(), **dict.fromkeys(leftover, torch.ones(3))})
        ids = torch.arange(5, 11)[None]
        with torch.no_grad():
            torch.testing.assert_close(ours(ids, ids > 0), theirs.eval()(ids).logits, atol=1e-4, rtol=1e-4)


def test_xlm_r_needs_a_tokenizer_json(tmp_path: Path) -> None:
    config = transformers.XLMRobertaConfig(**SMALL, vocab_size=40, max_position_embeddings=66, type_vocab_size=1)
    save_model(transformers.XLMRobertaModel(config), tmp_path / "xlm-r")
    (tmp_path / "xlm-r/sentencepiece.bpe.model").write_bytes(b"")
    assert_import_is_refused(tmp_path / "xlm-r", tmp_path, "no tokenizer.json, which .* XLMRobertaTokenizer")


@pytest.mark.parametrize(
    ("name", "file", "where"),
    [
        ("BertJapaneseTokenizer", "vocab.txt", "tokenizer_config.json"),
        ("PhobertTokenizer", "vocab.txt", "config.json"),
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", "config.json"),
        ("Qwen2Tokenizer", "merges.txt", "tokenizer_config.json"),
    ],
)
def test_tokenizer_of_an_unknown_class_needs_a_tokenizer_json(name, file, where, tmp_path: Path) -> None:
    folder = save_bert(transformers.BertModel(BERT), tmp_path / "bert")
    (folder / "vocab.txt").rename(folder / file)
    content = {"tokenizer_class": name}
    write(folder / where, content) if where == "tokenizer_config.json" else edit(folder / where, **content)
    assert_import_is_refused(folder, tmp_path, f"no tokenizer.json, .* tokenizer_class {name}.*save_pretrained")


def test_pooling_in_the_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    save_bert(transformers.BertModel(BERT), folder)
    (folder / "1_Pooling").mkdir()
    blobs.mkdir()
    write(blobs / "123", {"pooling_mode_mean_tokens": True})
    (folder / "1_Pooling/config.json").symlink_to("../../../blobs/123")
    assert penwright.import_model(folder, tmp_path / "run").model.settings.pooling == "mean"


def test_vocab_json_and_merges_tokenize_as_transformers(llama: Path, tmp_path: Path) -> None:
    model = json.loads((llama / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    write(tmp_path / "vocab.json", model["vocab"])
    merges = "\n".join(" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    write(tmp_path / "tokenizer_config.json", special | {"tokenizer_class": "GPT2Tokenizer"})
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, {"model_type": "gpt2"}, "generate", None)
    assert [ours.prompt(ours.encode(text)) for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert all(ours.decode(ours.encode(text)) == text for text in TEXTS)


AWKWARD = [
    "",
    " ",
    "  two  spaces ",
    "ﬁne ① Ｆｕｌｌ",
    "unseen: ő Ж 🦜 \u200b",
    "tab\tand\nline",
    "\n edges\u00a0\t",
    "the ▁ sign",
    "don't",
]
COMPOSED = "Việt tiếng 한국어 각 ガギパ"
DECOMPOSED = [unicodedata.normalize("NFD", COMPOSED), "ｶﾞｷﾞﾊﾟ"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {"required_chars": COMPOSED.replace(" ", "")},
        {"byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 400},
    ],
)
def test_sentencepiece_model_gives_the_ids_of_its_library(kind, options, spm, tmp_path: Path) -> None:
    import sentencepiece

    path = spm(kind, **options)
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    ours = read_tokenizer(tmp_path, {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}, "generate", None)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in [*TEXTS, *AWKWARD, COMPOSED, *DECOMPOSED]:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)).replace(" \u2047 ", "\ufffd")
    assert Tokenizer.load(save_tokenizer(ours, tmp_path)).encode(TEXTS[0]) == ours.encode(TEXTS[0])


@pytest.mark.timeout(30)  # a pattern that tries each space as the first of the last ones would take minutes
def test_sentencepiece_model_reads_many_spaces_as_one(spm) -> None:
    file = as_tokenizer_json(parse_sentencepiece(spm("unigram").read_bytes()))
    library = tokenizers.Tokenizer.from_str(json.dumps(file))
    spaces = " " * 300_000
    assert library.encode(f"{spaces}one{spaces}two{spaces}").ids == library.encode("one two").ids


def test_sentencepiece_model_with_spaces_after_words_is_refused(spm) -> None:
    with pytest.raises(ValueError, match="treat_whitespace_as_suffix"):
        parse_sentencepiece(spm("unigram", treat_whitespace_as_suffix=True).read_bytes())


def save_tokenizer(tokenizer: ForeignTokenizer, folder: Path) -> Path:
    tokenizer.save(folder / "saved.json")
    return folder / "saved.json"


@pytest.fixture
def marian(spm, tmp_path: Path) -> Path:
    """A folder with a tiny Marian, whose source and target have different SentencePiece models."""
    import sentencepiece

    folder = tmp_path / "marian"
    folder.mkdir()
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for name, seed in (("source", 0), ("target", 1)):
        path = spm("unigram", seed)
        (folder / f"{name}.spm").write_bytes(path.read_bytes())
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        for number in range(3, model.get_piece_size()):
            pieces.setdefault(model.id_to_piece(number), len(pieces))
    pieces["<pad>"] = len(pieces)
    write(folder / "vocab.json", pieces)
    write(
        folder / "tokenizer_config.json",
        {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"},
    )
    pad = pieces["<pad>"]
    config = transformers.MarianConfig(
        **TRANSLATOR, vocab_size=len(pieces), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0
    )
    save_model(transformers.MarianMTModel(config), folder)
    return folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_translates_as_transformers(marian: Path, tmp_path: Path) -> None:
    tokenizer = transformers.MarianTokenizer.from_pretrained(marian)
    ours = penwright.import_model(marian, tmp_path / "run")
    for text in TEXTS[:4]:
        assert ours.tokenizer.source(ours.tokenizer.encode(text)) == tokenizer(text)["input_ids"]
        assert [*ours.tokenizer.target.encode(text), 0] == tokenizer(text_target=text)["input_ids"]
    assert open_run(tmp_path / "run").card.languages == ("en", "de")
    assert_same_translations(ours, marian, tokenizer, {})
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "exported")
    exported = transformers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    for text in [*TEXTS, *AWKWARD]:
        assert exported(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert exported(text_target=text)["input_ids"] == tokenizer(text_target=text)["input_ids"]
    assert exported.decode([5, 6, 7], skip_special_tokens=True) == tokenizer.decode([5, 6, 7], skip_special_tokens=True)


@pytest.mark.parametrize("languages", [None, ("eng_Latn", "deu_Latn")])
def test_pairs_in_the_reverse_direction_are_refused(languages, marian: Path, tmp_path: Path) -> None:
    penwright.import_model(marian, tmp_path / "run", languages=languages)
    for code in ("en", "de"):
        (tmp_path / f"news.{code}").write_text("".join(f"{code} {text}\n" for text in TEXTS), encoding="utf-8")
    files = [str(tmp_path / f"news.{code}") for code in ("de", "en")]
    settings = {"task": "translate", "finetuning": {"base": str(tmp_path / "run")}, "training": {"steps": 1}}
    with pytest.raises(PenwrightError, match=r"translates en.* to de.*, but these pairs go from de to en"):
        prepare(settings | {"data": {"train": files}})
    prepare(settings | {"data": {"train": files[::-1]}})


def test_marian_model_of_a_group_of_languages_has_no_languages(marian: Path, tmp_path: Path) -> None:
    write(marian / "tokenizer_config.json", {"source_lang": "en", "target_lang": "ROMANCE"})
    penwright.import_model(marian, tmp_path / "run")
    assert open_run(tmp_path / "run").card.languages is None


def assert_same_translations(ours, folder: Path, tokenizer, options: dict[str, int]) -> None:
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    for text in TEXTS[:3]:
        given = tokenizer(text, return_tensors="pt")
        written = theirs.generate(**given, **options, num_beams=1, do_sample=False, max_new_tokens=8)[0].tolist()
        found = ours.translate(text, beam_size=1, max_new_tokens=8)[0]
        expected = tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert found.text[:7] == expected.strip()[:7]  # at the limit, Marian forces the end token


@pytest.fixture
def m2m100(spm, tmp_path: Path) -> Path:
    """A folder with a tiny M2M100, with languages after its vocabulary."""
    import sentencepiece

    folder = tmp_path / "m2m100"
    folder.mkdir()
    path = spm("bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(path.read_bytes())
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    names = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(number) for number in range(3, 150))]
    write(folder / "vocab.json", {piece: number for number, piece in enumerate(names)})
    languages = [
        f"__{code}__" for code in transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    ]
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write(folder / "special_tokens_map.json", special | {"additional_special_tokens": languages})
    write(folder / "tokenizer_config.json", special | {"tokenizer_class": "M2M100Tokenizer"})
    config = transformers.M2M100Config(
        **TRANSLATOR, vocab_size=len(names) + len(languages) + 8, decoder_start_token_id=2
    )
    save_model(transformers.M2M100ForConditionalGeneration(config), folder)
    return folder


def test_m2m100_translates_between_the_given_languages(m2m100: Path, tmp_path: Path) -> None:
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(m2m100, src_lang="en")
    ours = penwright.import_model(m2m100, tmp_path / "run", languages=("en", "de"))
    for text in TEXTS[:4]:
        assert ours.tokenizer.source(ours.tokenizer.encode(text)) == tokenizer(text)["input_ids"]
    assert_same_translations(ours, m2m100, tokenizer, {"forced_bos_token_id": tokenizer.get_lang_id("de")})
    assert ours.translate(TEXTS[0], beam_size=3, coverage_penalty=0.2, max_new_tokens=8)[0].text is not None
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "exported")
    exported = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "exported")
    assert (exported.src_lang, exported.tgt_lang) == ("en", "de")
    for text in [*TEXTS, *AWKWARD]:
        assert exported(text)["input_ids"] == tokenizer(text)["input_ids"]
    again = penwright.import_model(tmp_path / "exported", tmp_path / "again", languages=("en", "de"))
    assert again.translate(TEXTS[0], max_new_tokens=8)[0].text == ours.translate(TEXTS[0], max_new_tokens=8)[0].text


def test_m2m100_saved_by_transformers_5_keeps_its_languages(m2m100: Path, tmp_path: Path) -> None:
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(m2m100, src_lang="en", tgt_lang="de")
    (m2m100 / "special_tokens_map.json").unlink()
    tokenizer.save_pretrained(m2m100)
    ours = read_huggingface(m2m100, Languages("en", "de")).tokenizer
    assert not (m2m100 / "special_tokens_map.json").exists()
    assert ours.source(ours.encode(TEXTS[0])) == tokenizer(TEXTS[0])["input_ids"]
    assert ours.target_prefix == (tokenizer.get_lang_id("de"),)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (None, r"between many languages\. Pass --from with one of these codes: af, am,"),
        (("en", "tlh"), "no language tlh. Pass --to"),
    ],
)
def test_multilingual_model_needs_two_languages(languages, message, m2m100: Path, tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=message):
        penwright.import_model(m2m100, tmp_path / "run", languages=languages)


def test_nllb_sequences_begin_with_language_tokens(llama: Path, tmp_path: Path) -> None:
    library = LibraryTokenizer(models.BPE(unk_token="<unk>"))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=200, special_tokens=special))
    library.add_special_tokens(["eng_Latn", "deu_Latn"])
    library.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "tokenizer_config.json", {"eos_token": "</s>", "pad_token": "<pad>"})
    config = {"model_type": "m2m_100", "decoder_start_token_id": 2}
    ours = read_tokenizer(tmp_path, config, "translate", Languages("eng_Latn", "deu_Latn"))
    english, german = (library.token_to_id(code) for code in ("eng_Latn", "deu_Latn"))
    assert ours.source(ours.encode("The cat")) == [english, *library.encode("The cat").ids, 2]
    assert (ours.start_id, ours.target_prefix) == (2, (german,))
    assert ours.decode(ours.encode("The cat sat")) == "The cat sat"


@pytest.fixture
def nllb(spm, tmp_path: Path) -> Path:
    """A folder with a tiny NLLB, with languages after its vocabulary."""
    from transformers.models.nllb.tokenization_nllb import NllbTokenizer

    folder = tmp_path / "nllb"
    bpe = as_tokenizer_json(parse_sentencepiece(spm("bpe").read_bytes()))["model"]
    names = ["<s>", "<pad>", "</s>", "<unk>", *list(bpe["vocab"])[3:]]
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = NllbTokenizer(vocab, [tuple(pair) for pair in bpe["merges"]], src_lang="eng_Latn", tgt_lang="deu_Latn")
    tokenizer.save_pretrained(folder)
    config = transformers.M2M100Config(**TRANSLATOR, vocab_size=len(tokenizer), decoder_start_token_id=2)
    save_model(transformers.M2M100ForConditionalGeneration(config), folder)
    return folder


def test_nllb_is_imported_exported_and_imported_again(nllb: Path, tmp_path: Path) -> None:
    codes, tokenizer = ("eng_Latn", "deu_Latn"), transformers.AutoTokenizer.from_pretrained(nllb)
    ours, german = penwright.import_model(nllb, tmp_path / "run", languages=codes), tokenizer.vocab["deu_Latn"]
    assert_same_translations(ours, nllb, tokenizer, {"forced_bos_token_id": german})
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "exported")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    for text in [*TEXTS, *AWKWARD]:
        expected = tokenizer(text)["input_ids"]
        assert ours.tokenizer.source(ours.tokenizer.encode(text)) == exported(text)["input_ids"] == expected
    assert_same_translations(ours, tmp_path / "exported", exported, {})  # generation_config.json names the language
    again = penwright.import_model(tmp_path / "exported", tmp_path / "again", languages=codes)
    assert again.translate(TEXTS[0], max_new_tokens=8)[0].text == ours.translate(TEXTS[0], max_new_tokens=8)[0].text


def test_nllb_with_the_language_after_the_text_is_refused(nllb: Path, tmp_path: Path) -> None:
    edit(nllb / "tokenizer_config.json", legacy_behaviour=True)
    with pytest.raises(PenwrightError, match="the language follows the text"):
        penwright.import_model(nllb, tmp_path / "run", languages=("eng_Latn", "deu_Latn"))


def test_gguf_model_larger_than_memory_is_not_read(llama: Path, tmp_path: Path, monkeypatch) -> None:
    path = export_gguf(llama, tmp_path)
    monkeypatch.setattr(pretrained, "available_memory", lambda: 1000.0)
    monkeypatch.setattr(GGUFFile, "tensor", lambda *_: pytest.fail("a tensor was read"))
    assert_import_is_refused(path, tmp_path, "GiB of memory")


def export_gguf(llama: Path, tmp_path: Path) -> Path:
    pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")
    penwright.import_model(llama, tmp_path / "for-gguf")
    penwright.export(tmp_path / "for-gguf", "gguf", tmp_path / "gguf", precision="bfloat16")
    return tmp_path / "gguf" / "model.gguf"


@pytest.fixture(scope="module")
def saved_gguf(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_gguf(saved_llama, tmp_path_factory.mktemp("gguf"))


def test_folder_of_a_gguf_file_is_imported(llama: Path, tmp_path: Path) -> None:
    folder = export_gguf(llama, tmp_path).parent
    with pytest.raises(PenwrightError, match=r"for-gguf is a run already.*--from"):
        penwright.import_model(tmp_path / "for-gguf", tmp_path / "run")
    ours = penwright.import_model(folder, tmp_path / "run")
    assert ours.model.settings == penwright.load(tmp_path / "for-gguf").model.settings
    settings = with_imported_base({"finetuning": {"base": str(folder)}}, tmp_path / "runs" / "new")
    assert settings == {"finetuning": {"base": str(tmp_path / "runs" / "gguf")}}
    (folder / "other.gguf").touch()
    assert_import_is_refused(folder, tmp_path / "others", r"has 2 GGUF files\. Name one of them, such as .*model\.gguf")


def test_gguf_file_is_read_in_its_precision(llama: Path, tmp_path: Path) -> None:
    path = export_gguf(llama, tmp_path)
    ours, before = penwright.import_model(path, tmp_path / "run"), penwright.load(tmp_path / "for-gguf")
    expected = before.model.decoder.blocks[1].attention.query.weight.bfloat16().float()
    assert torch.equal(ours.model.decoder.blocks[1].attention.query.weight, expected)
    assert [ours.tokenizer.encode(text) for text in TEXTS] == [before.tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("pre", "words", "begins"),
    [("llama-bpe", 3, True), ("tekken", 4, True), ("deepseek-r1-qwen", 4, False), ("phi-2", 3, False)],
)
def test_gguf_tokenizer_splits_and_begins_texts_as_llama_cpp(pre: str, words: int, begins: bool, llama: Path) -> None:
    model = json.loads((llama / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), "12", "ĠX", "Ġx", "Xx"]
    merges = [*(" ".join(pair) for pair in model["merges"]), "1 2", "Ġ X", "Ġ x", "X x"]
    held = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "token_type": [3] * 2 + [1] * len(tokens)}
    held = {f"tokenizer.ggml.{key}": value for key, value in held.items()}
    held |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    tokenizer = read_gguf_tokenizer(held)
    assert len(tokenizer.encode("12 X x")) == words
    assert tokenizer.begins == begins
    assert not read_gguf_tokenizer(held | {"tokenizer.ggml.add_bos_token": False}).begins
    with pytest.raises(PenwrightError, match=r"pre = 'gpt-9' is not supported.* deepseek-r1-qwen, .*tekken"):
        read_gguf_tokenizer(held | {"tokenizer.ggml.pre": "gpt-9"})
    with pytest.raises(PenwrightError, match=r"eos_token_id = -1 is not the id of a token"):
        read_gguf_tokenizer(held | {"tokenizer.ggml.eos_token_id": -1})
    del held["tokenizer.ggml.token_type"]
    with pytest.raises(PenwrightError, match=r"the key tokenizer\.ggml\.token_type is missing"):
        read_gguf_tokenizer(held)


@pytest.mark.parametrize(
    ("architecture", "size", "rule"),
    [("qwen2", 10, "qwen2"), ("qwen3", 10, "qwen2"), ("gpt2", 10, "gpt-2"), ("llama", 128_256, "llama-bpe")],
)
def test_gguf_file_without_a_word_rule_has_that_of_its_architecture(architecture: str, size: int, rule: str) -> None:
    held = {"general.architecture": architecture, "tokenizer.ggml.tokens": range(size), "tokenizer.ggml.model": "gpt2"}
    for stated in ({}, {"tokenizer.ggml.pre": "default"}):
        assert words_in(held | stated) == rule and not is_guessed(held | stated)
    small_llama = held | {"general.architecture": "llama", "tokenizer.ggml.tokens": range(10)}
    assert is_guessed(small_llama) and words_in(small_llama) == "gpt-2"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-2000], "is incomplete or damaged"),
        (lambda content: content[:300], "cannot be read as GGUF: it is incomplete"),
        (lambda content: b"GGML" + content[4:], "it does not begin with GGUF"),
        (
            lambda content: content[:8] + struct.pack("<QQ", 2**60, 2**60) + content[24:],
            "1,152,921,504,606,846,976 keys",
        ),
        (lambda content: with_embedding_type(content, 99), "is of type 99"),
        (lambda content: content.replace(b"general.architecture", b"general.architectura", 1), "general.architecture"),
        (lambda content: content.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1), "'mamba'"),
        (
            lambda content: content.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-9", 1),
            "ggml.pre = 'gpt-9'",
        ),
    ],
)
def test_damaged_gguf_file_is_refused(damage, message, saved_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(saved_gguf.read_bytes()))
    assert_import_is_refused(path, tmp_path, message)


def gguf_header(value: bytes, n_tensors: int = 0) -> bytes:
    """Return the beginning of a GGUF file with a single key, `general.alignment`, whose type precedes its value."""
    key = b"general.alignment"
    return b"GGUF" + struct.pack("<IQQQ", 3, n_tensors, 1, len(key)) + key + value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gguf_header(struct.pack("<II", 4, 0)), "general.alignment = 0"),
        (gguf_header(struct.pack("<IQ", 8, 2) + b"32"), "general.alignment = '32'"),
        (gguf_header(struct.pack("<II", 77, 0)), "a value of type 77"),
        (gguf_header(struct.pack("<IIQ", 9, 9, 1)), "an array of 1 values"),
        (gguf_header(struct.pack("<IIQ", 9, 0, 1 << 23) + bytes(1 << 23)), "an array of 8,388,608 values"),
        (gguf_header(struct.pack("<IQ", 8, 1 << 60)), "a string of 1,152,921,504,606,846,976 bytes"),
        (gguf_header(struct.pack("<IIQI", 4, 32, 0, 5), 1), "a tensor of 5 dimensions"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_implausible_gguf_header_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(PenwrightError, match=f"cannot be read as GGUF: .*{message}"):
        GGUFFile(tmp_path / "model.gguf")


def test_split_gguf_file_is_refused_until_it_is_merged(saved_gguf: Path, tmp_path: Path) -> None:
    content, path = saved_gguf.read_bytes(), tmp_path / "model-00001-of-00002.gguf"
    n_keys = struct.unpack("<Q", content[16:24])[0]
    for n_files in (2, 0):  # llama.cpp writes 0 when it merges
        key = struct.pack("<Q", 11) + b"split.count" + struct.pack("<IH", 2, n_files)
        filler = struct.pack("<Q", 1) + b"x" + struct.pack("<IQ", 8, 18) + 18 * b"."  # 64 bytes in all, for alignment
        path.write_bytes(content[:16] + struct.pack("<Q", n_keys + 2) + key + filler + content[24:])
        if n_files:
            assert_import_is_refused(path, tmp_path, "split into 2 files.*--merge")
    assert import_model(str(path), tmp_path / "merged").kind == "writer"


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"scaling.type": "linear"}, None),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, None),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),  # in old files
    ],
)
def test_linear_rope_scaling_is_read_from_a_gguf_file(keys, factor, saved_gguf: Path, tmp_path: Path) -> None:
    positions = read_gguf(with_rope_keys(saved_gguf, keys, tmp_path)).outline.settings.positions
    assert (positions.scaling and positions.scaling.factor) == factor


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.scaling.factor", -1.0, r"rope\.scaling: factor: must be greater than 0"),
        ("rope.scaling.attn_factor", 2.0, r"rope\.scaling\.attn_factor = 2\.0 is supported only for YaRN"),
        ("rope.scaling.yarn_ext_factor", 0.5, r"yarn_ext_factor = 0\.5 is not supported"),
        ("attention.scale", 0.1, r"llama\.attention\.scale = 0\.1.* is not supported"),
        ("logit_scale", 0.5, r"llama\.logit_scale = 0\.5 is not supported"),
        ("expert_count", 8.0, r"llama\.expert_count = 8\.0 is not supported"),
    ],
)
def test_unsupported_keys_of_a_gguf_file_are_refused(key, value, message: str, saved_gguf: Path, tmp_path) -> None:
    assert_import_is_refused(with_keys(saved_gguf, {key: value}, tmp_path), tmp_path, message)


def with_rope_keys(saved: Path, keys: Table, folder: Path) -> Path:
    return with_keys(saved, {f"rope.{key}": value for key, value in keys.items()}, folder)


def with_keys(saved: Path, keys: Table, folder: Path) -> Path:
    """Write the GGUF file with more keys; return its path."""
    content, added = saved.read_bytes(), b""
    for key, value in keys.items():
        name = f"llama.{key}".encode()
        text = value.encode() if isinstance(value, str) else b""
        stored = struct.pack("<IQ", 8, len(text)) + text if text else struct.pack("<If", 6, value)
        added += struct.pack("<Q", len(name)) + name + stored
    filler = -(len(added) + 8 + 1 + 12) % 32  # tensors are aligned to 32 bytes
    added += struct.pack("<Q", 1) + b"x" + struct.pack("<IQ", 8, filler) + filler * b"."
    n_keys = struct.unpack("<Q", content[16:24])[0] + len(keys) + 1
    path = folder / "rope.gguf"
    path.write_bytes(content[:16] + struct.pack("<Q", n_keys) + added + content[24:])
    return path


def with_embedding_type(content: bytes, kind: int) -> bytes:
    """Return the file with another type of its embeddings, stored after name, dimensions and shape."""
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    return content[:at] + struct.pack("<I", kind) + content[at + 4 :]


def test_gguf_file_of_gpt_2_equals_transformers(llama: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")
    names = {
        "wte": "token_embd",
        "wpe": "position_embd",
        "ln_f": "output_norm",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
    }
    names |= {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    sizes = {"vocab_size": 300, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, layer_norm_epsilon=0.01))
    save_model(theirs, tmp_path / "gpt2")
    writer = gguf.GGUFWriter(tmp_path / "gpt2.gguf", "gpt2")
    lengths = {"context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 128}
    for key, size in (lengths | {"attention.head_count": 4}).items():
        writer.add_uint32(f"gpt2.{key}", size)
    writer.add_layer_norm_eps(0.01)
    model = json.loads((llama / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].__getitem__))
    writer.add_token_types([1] * 300)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(1)
    for name, tensor in theirs.transformer.state_dict().items():
        module, _, kind = name.removeprefix("h.").rpartition(".")
        block, _, part = module.partition(".") if name.startswith("h.") else ("", "", module)
        stored = f"blk.{block}.{names[part]}.{kind}" if block else f"{names[part]}.{kind}"
        writer.add_tensor(stored, (tensor.T if ".c_" in name and kind == "weight" else tensor).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, tokens = penwright.import_model(tmp_path / "gpt2.gguf", tmp_path / "run"), torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.model(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


def test_llama_3_rope_scaling_is_read_from_a_gguf_file(llama: Path, tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_type": "llama3", "rope_theta": 500_000.0}
    edit(llama / "config.json", rope_parameters=scaling)
    path = export_gguf(llama, tmp_path)
    ours, before = penwright.import_model(path, tmp_path / "run"), penwright.load(tmp_path / "for-gguf")
    assert ours.model.settings.positions == before.model.settings.positions
    assert ours.model.settings.positions.scaling.factor == 8.0


def test_sentencepiece_bpe_round_trips_through_a_gguf_file(spm, llama: Path, tmp_path: Path) -> None:
    import sentencepiece

    for name in ("tokenizer.json", "tokenizer_config.json"):
        (llama / name).unlink()
    path = spm(
        "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, vocab_size=400
    )
    (llama / "tokenizer.model").write_bytes(path.read_bytes())
    config = transformers.LlamaConfig(**LLAMA, vocab_size=400, bos_token_id=1, eos_token_id=2)
    save_model(transformers.LlamaForCausalLM(config), llama)
    edit(llama / "config.json", pad_token_id=2)
    write(llama / "tokenizer_config.json", {"add_bos_token": True})
    ours = penwright.import_model(export_gguf(llama, tmp_path), tmp_path / "run").tokenizer
    before = Tokenizer.load(tmp_path / "for-gguf" / "tokenizer.json")
    assert ours.prompt([]) == before.prompt([])
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in [*TEXTS, *AWKWARD]:
        assert ours.encode(text) == library.encode(text)
    assert ours.decode(ours.encode("The cat 🦜")) == "The cat 🦜"


CHATML = (
    "{% for message in messages %}{{ '<s>' + message.role + '\\n' + message.content + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + 'assistant\\n' }}{% endif %}"
)
CONVERSATION = [Message("user", "Hello</s>"), Message("assistant", "Hi!"), Message("user", "The cat?")]


def test_imported_writer_answers_with_its_chat_template(llama: Path, tmp_path: Path) -> None:
    edit(llama / "tokenizer_config.json", chat_template=CHATML, tokenizer_class="PreTrainedTokenizerFast")
    penwright.import_model(llama, tmp_path / "run")
    ours, recipe = penwright.load(tmp_path / "run"), open_run(tmp_path / "run").recipe
    assert recipe.chat is not None
    assert (recipe.chat.template, recipe.chat.bos_token, recipe.chat.eos_token) == (CHATML, "<s>", "</s>")
    theirs = transformers.AutoTokenizer.from_pretrained(llama)
    conversation = [
        CONVERSATION[0]._replace(content="Hello"),
        *CONVERSATION[1:],
    ]  # transformers parses "</s>" in a message as the token
    expected = theirs.apply_chat_template([each._asdict() for each in conversation], add_generation_prompt=True)
    assert ours.chat_tokens(conversation) == expected["input_ids"]
    start, end = ours.tokenizer.start_id, ours.tokenizer.end_id
    assert ours.chat_tokens(CONVERSATION).count(end) == expected["input_ids"].count(end)
    assert ours.chat_tokens(CONVERSATION)[0] == start
    assert ours.chat_tokens(CONVERSATION)[1] != start
    request = ours.requests(ours.chat_tokens(CONVERSATION))[0]  # as the server does
    assert list(request.prompt_tokens) == ours.chat_tokens(CONVERSATION)
    assert ours.answer(CONVERSATION, max_new_tokens=4).tokens


def test_template_gets_the_unknown_token_if_it_uses_it(llama: Path) -> None:
    names = {"unk_token": "</s>", "pad_token": "<s>"}
    edit(llama / "tokenizer_config.json", chat_template="{{ unk_token }}" + CHATML, **names)
    settings = read_huggingface(llama).chat
    assert settings is not None
    assert (settings.unk_token, settings.pad_token) == ("</s>", "")


def test_template_that_reads_the_first_message_answers_in_a_chat(llama: Path, tmp_path: Path, capsys) -> None:
    first = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"  # as in Qwen2.5 and Llama 3.1
    edit(llama / "tokenizer_config.json", chat_template=first + CHATML)
    penwright.import_model(llama, tmp_path / "run")
    chat(tmp_path / "run", "Hello", max_new_tokens=4, seed=1)
    expected = penwright.load(tmp_path / "run").answer([Message("user", "Hello")], max_new_tokens=4, seed=1)
    assert capsys.readouterr().out == f"{expected.text}\n"


TURNS = CHATML.replace("'<s>' + ", "").replace("eos_token", "'<|im_end|>'")


@pytest.fixture
def base_model(llama: Path) -> Path:
    """A writer like the base models of Qwen2: its template ends turns with a token that is not its end token."""
    file = json.loads((llama / "tokenizer.json").read_text(encoding="utf-8"))
    library = LibraryTokenizer.from_str(json.dumps(file))
    library.add_special_tokens(["<|im_end|>"])
    library.save(str(llama / "tokenizer.json"))
    config = transformers.LlamaConfig(**LLAMA, vocab_size=library.get_vocab_size(), bos_token_id=0, eos_token_id=1)
    save_model(transformers.LlamaForCausalLM(config), llama)
    (llama / "chat_template.jinja").write_text(TURNS, encoding="utf-8")
    return llama


def test_answer_ends_with_the_templates_end_of_turn_token(base_model: Path, tmp_path: Path) -> None:
    ours = penwright.import_model(base_model, tmp_path / "run")
    turn_end = ours.tokenizer.special_ids["<|im_end|>"]
    assert ours.template.end_of_turn == "<|im_end|>"
    assert ours.tokenizer.pieces[ours.tokenizer.end_id] == "</s>"  # documents still end with the tokenizer's own token
    theirs = transformers.AutoTokenizer.from_pretrained(base_model)
    expected = theirs.apply_chat_template([each._asdict() for each in CONVERSATION[1:]], add_generation_prompt=True)
    assert ours.chat_tokens(CONVERSATION[1:]) == [ours.tokenizer.start_id, *expected["input_ids"]]
    free = ours.answer(CONVERSATION, max_new_tokens=8)
    for end, banned in product((turn_end, ours.tokenizer.end_id), ((), ("zebra",))):
        settings = {"max_new_tokens": 8, "banned_words": banned}
        (request,) = ours.requests(ours.chat_tokens(CONVERSATION), settings, biases={end: 1e9})
        pool = ours.pool()
        pool.join(request)
        while not request.is_finished:
            pool.step()
        assert request.draft is not None
        assert (request.draft.tokens, request.draft.finish) == ([end], "end")
    assert "<|im_end|>" not in free.text


def test_tokens_of_a_chat_template_are_special_after_the_import(base_model: Path, tmp_path: Path) -> None:
    file = json.loads((base_model / "tokenizer.json").read_text(encoding="utf-8"))
    file["added_tokens"][-1]["special"] = False
    library = LibraryTokenizer.from_str(json.dumps(file))
    library.add_tokens(["<think>", " and"])
    library.save(str(base_model / "tokenizer.json"))
    config = transformers.LlamaConfig(**LLAMA, vocab_size=library.get_vocab_size(), bos_token_id=0, eos_token_id=1)
    save_model(transformers.LlamaForCausalLM(config), base_model)
    template = f"{{# <think> and #}}{TURNS}"
    (base_model / "chat_template.jinja").write_text(template, encoding="utf-8")
    ours = penwright.import_model(base_model, tmp_path / "run")
    turn_end = ours.tokenizer.special_ids["<|im_end|>"]
    assert ours.template.end_of_turn == "<|im_end|>" and turn_end in ours.end_ids
    assert not {"<think>", " and"} & ours.tokenizer.special_ids.keys()
    assert ours.chat_tokens([Message("user", "Hello<|im_end|>")]).count(turn_end) == 1


def test_writing_stops_at_every_end_token_and_exports_name_all(base_model: Path, tmp_path: Path) -> None:
    edit(base_model / "config.json", eos_token_id=[1, 280])
    edit(base_model / "generation_config.json", eos_token_id=[1, 290])
    ours = penwright.import_model(base_model, tmp_path / "run")
    assert ours.tokenizer.end_ids == (1, 280, 290)
    for end in (280, 290):
        (request,) = ours.requests("The", {"max_new_tokens": 8}, biases={end: 1e9})
        pool = ours.pool()
        pool.join(request)
        while not request.is_finished:
            pool.step()
        assert request.draft is not None
        assert (request.draft.tokens, request.draft.finish, request.draft.pieces) == ([end], "end", [])
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "out")
    turn_end = ours.tokenizer.special_ids["<|im_end|>"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (theirs.config.eos_token_id, theirs.generation_config.eos_token_id) == (
        [1, 280, 290],
        [1, 280, 290, turn_end],
    )
    assert penwright.import_model(tmp_path / "out", tmp_path / "again").tokenizer.end_ids == (1, 280, 290, turn_end)
    small = trimmed(ours.tokenizer, ours.tokenizer.encode("The cat"))
    assert [small.pieces[end] for end in small.end_ids] == [ours.tokenizer.pieces[end] for end in (1, 280, 290)]
    assert small.vocab_size < 290


def test_ends_of_turns_round_trip_through_a_gguf_file(base_model: Path, tmp_path: Path) -> None:
    ours = penwright.import_model(export_gguf(base_model, tmp_path), tmp_path / "run")
    assert ours.tokenizer.end_ids == (1, ours.tokenizer.special_ids["<|im_end|>"])


def test_training_answers_end_with_the_end_of_turn_token(base_model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": f"The cat {n}?", "completion": f"The mat {n}."} for n in range(40)]
    (tmp_path / "chat.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    penwright.import_model(base_model, tmp_path / "base")
    context = training_context(tmp_path / "chat.jsonl", tmp_path / "base")
    assert context.training is not None
    turn_end = context.tokenizer.special_ids["<|im_end|>"]
    batch = next(TASKS["chat"].batches(context, context.training).in_order())
    for targets in batch.targets.tolist():
        assert [each for each in targets if each >= 0][-1] == turn_end


@pytest.mark.parametrize("to", ["gguf", "huggingface"])
def test_chat_template_round_trips_through_an_export(to: str, llama: Path, tmp_path: Path) -> None:
    if to == "gguf":
        pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")
    (llama / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    before = penwright.import_model(llama, tmp_path / "run")
    penwright.export(tmp_path / "run", to, tmp_path / to)
    again = penwright.import_model(tmp_path / to / ("model.gguf" if to == "gguf" else ""), tmp_path / "again")
    assert again.template == before.template
    assert again.chat_tokens(CONVERSATION) == before.chat_tokens(CONVERSATION)
    if to == "huggingface":
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / to)
        expected = theirs.apply_chat_template([each._asdict() for each in CONVERSATION[1:]], add_generation_prompt=True)
        assert before.chat_tokens(CONVERSATION[1:]) == expected["input_ids"]


def test_default_of_several_chat_templates_is_used(llama: Path, tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": CHATML}]
    edit(llama / "tokenizer_config.json", chat_template=several)
    ours = penwright.import_model(llama, tmp_path / "run")
    assert ours.template.source == CHATML


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("x" * 100_001, "at most 100000 characters"),
        ("{% for %}", "not valid"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
    ],
)
def test_invalid_chat_template_is_dropped_with_a_note(
    template: object, message: str, llama: Path, tmp_path: Path
) -> None:
    edit(llama / "tokenizer_config.json", chat_template=template)
    messages: list[str] = []
    ours = import_model(str(llama), tmp_path / "run", say=messages.append)
    assert ours.template is None
    (note,) = messages
    assert "the model cannot chat" in note
    assert message in note
    with pytest.raises(UsageError, match="not trained to answer"):
        ours.answer(CONVERSATION)


PAIRS = [(f"The {a} sat on the {b}.", f"Der {a} sitzt auf der {b}.") for a in ("cat", "dog", "mat") for b in "abcdefgh"]
FAST_TRAINING = {
    "training": {"steps": 2, "evaluate_every": 2, "batch_tokens": 256, "precision": "float32", "compile": "off"}
}


def write_pairs(folder: Path) -> Path:
    path = folder / "pairs.en-de.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    return path


def training_context(data: Path, base: Path, **more: Table) -> RunContext:
    given = merge(FAST_TRAINING, {"data": {"train": [str(data)]}, "finetuning": {"base": str(base)}}, more)
    prepared = prepare(given)
    tokenizer = open_run(base).tokenizer
    return make_context(prepared.plan.recipe, prepared.corpus, tokenizer, torch.device("cpu"), is_new=True)


@torch.no_grad()
def test_translator_training_loss_equals_transformers(m2m100: Path, tmp_path: Path) -> None:
    penwright.import_model(m2m100, tmp_path / "base", languages=("en", "de"))
    context = training_context(write_pairs(tmp_path), tmp_path / "base")
    assert context.training is not None
    batches = list(TASKS["translate"].batches(context, context.training).in_order())
    model = context.model.eval()
    found = sum(float(summed_loss(model, batch)) for batch in batches)
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(m2m100, src_lang="en", tgt_lang="de")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(m2m100)
    expected, n_targets = 0.0, 0
    for pair in context.corpus.training:
        given = tokenizer(pair.source, text_target=pair.target, return_tensors="pt")
        log_probs = theirs(**given).logits[0, :, : context.tokenizer.vocab_size].log_softmax(-1)
        labels = given["labels"][0]
        expected -= float(
            log_probs[range(1, len(labels)), labels[1:]].sum()
        )  # the first target, the language token, is not scored
        n_targets += len(labels) - 1
    assert sum(batch.n_targets for batch in batches) == n_targets
    assert found == pytest.approx(expected, rel=1e-4)


def test_fine_tuned_translator_keeps_the_reach_and_the_languages_of_its_base(
    marian: Path, m2m100: Path, tmp_path: Path
) -> None:
    data = write_pairs(tmp_path).rename(tmp_path / "pairs.tsv")
    data.write_text("".join(f"the cat {n}\tdie Katze {n}\n" for n in range(60)), encoding="utf-8")
    for folder, languages in ((marian, ("en", "de")), (m2m100, ("en", "de"))):
        base = tmp_path / f"base-{folder.name}"
        ours = penwright.import_model(folder, base, languages=languages)
        context = training_context(data, base, task="translate")
        assert context.card.languages == languages
        assert context.application.reach == ours.reach == TRANSLATOR["max_position_embeddings"]
        card = replace(context.card, max_source_tokens=40)  # of a base that was trained on sources of 40 tokens
        assert make_card(context.corpus, context.training, context.tokenizer, context.recipe.data, card) == card


def test_imported_translator_is_fine_tuned_and_exported(marian: Path, tmp_path: Path) -> None:
    (marian / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n", encoding="utf-8")
    data, base = write_pairs(tmp_path), tmp_path / "base"
    penwright.import_model(marian, base)
    settings = merge(FAST_TRAINING, {"decoding": {"max_new_tokens": 8}})
    ours = penwright.train(data, run=tmp_path / "run", base=base, settings=settings, quiet=True)
    assert ours.tokenizer.fingerprint == open_run(base).tokenizer.fingerprint
    record = corpus_record(open_run(tmp_path / "run").run)
    assert record.imported == corpus_record(open_run(base).run).imported
    assert not record.is_untrained
    assert penwright.evaluate(tmp_path / "run", quiet=True)
    assert penwright.resume(tmp_path / "run", steps=2, quiet=True).reach == open_run(base).recipe.model.context_length
    for to in ("huggingface", "penwright"):
        penwright.export(tmp_path / "run", to, tmp_path / to)
    card = (tmp_path / "huggingface" / "README.md").read_text(encoding="utf-8")
    assert "license: cc-by-4.0" in card
    assert "was fine-tuned from a model that was imported" in card
    assert "source.spm, sha256" in card
    assert corpus_record(open_run(tmp_path / "penwright").run).imported == record.imported


def write_novel(folder: Path) -> Path:
    path = folder / "novel.txt"
    path.write_text("".join(f"Night {n} was cold, and house {n % 29} had no roof.\n" for n in range(99)))
    return path


@torch.no_grad()
def test_writer_without_a_start_token_is_trained_without_one(llama: Path, tmp_path: Path) -> None:
    edit(llama / "tokenizer.json", post_processor=None)
    penwright.import_model(llama, tmp_path / "base")
    context = training_context(write_novel(tmp_path), tmp_path / "base")
    assert context.training is not None
    batches = list(TASKS["generate"].batches(context, context.training).in_order())
    start = context.tokenizer.start_id
    assert not any((batch.tokens == start).any() for batch in batches)
    text = "".join(chunk for document in context.corpus.training for chunk in document.chunks)
    first = context.tokenizer.encode(text)[: batches[0].tokens.shape[1]]
    assert batches[0].tokens[0].tolist() == first
    theirs = transformers.AutoModelForCausalLM.from_pretrained(llama)
    expected = float(
        theirs(torch.tensor([first])).logits[0, :-1].log_softmax(-1)[range(len(first) - 1), first[1:]].sum()
    )
    log_probs = context.model.eval()(batches[0].tokens[:1])[0].log_softmax(-1)
    found = float(log_probs[range(len(first) - 1), batches[0].targets[0, :-1]].sum())
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_samples_of_an_imported_writer_on_a_cpu_are_short(llama: Path, tmp_path: Path) -> None:
    penwright.import_model(llama, tmp_path / "base")
    context = training_context(write_novel(tmp_path), tmp_path / "base")
    samples, lengths = generation.sample(context), list[int]()
    application = context.application
    assert isinstance(application, Generator)
    for sample in samples:
        same = application.generate(sample.prompt, context.recipe.decoding, max_new_tokens=generation.FEW_TOKENS)[0]
        assert same.text == sample.completion
        lengths.append(len(same.tokens))
    assert max(lengths) == generation.FEW_TOKENS < generation.SAMPLE_TOKENS and FEW_TOKENS < SAMPLE_TOKENS


def test_an_imported_writer_is_scored_on_longer_windows_than_it_trains_on(llama: Path, tmp_path: Path) -> None:
    penwright.import_model(llama, tmp_path / "base")
    context = training_context(write_novel(tmp_path), tmp_path / "base", training={"batch_tokens": 16})
    lengths = [generation.batches(context, store).length for store in (context.training, context.held_out)]
    assert lengths == [16, LLAMA["max_position_embeddings"]]


def test_conversations_for_an_imported_writer_are_no_longer_than_a_batch(
    llama: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("penwright.tasks.chat.LONGEST_WINDOW", 16)
    edit(llama / "tokenizer_config.json", chat_template=CHATML)
    lines = [{"prompt": f"The cat {n}?", "completion": "The mat. " * n} for n in range(40)]
    (tmp_path / "chat.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    penwright.import_model(llama, tmp_path / "base")
    for batch_tokens, longest in ((8, 16), (32, 32), (4096, LLAMA["max_position_embeddings"])):
        context = training_context(tmp_path / "chat.jsonl", tmp_path / "base", training={"batch_tokens": batch_tokens})
        trainer = make_trainer(context, choose_machine(context.recipe.training), Run(tmp_path))
        assert max(batch.tokens.shape[1] for batch in trainer.batches.in_order()) == longest
        (note,) = skipped_text(trainer, context.recipe)
        assert f"conversations longer than {longest} tokens: only the end is used" in note
        assert ("training.batch_tokens raises this limit" in note) == (longest < LLAMA["max_position_embeddings"])


def test_the_text_of_an_imported_writer_cannot_be_kept(llama: Path, tmp_path: Path) -> None:
    penwright.import_model(llama, tmp_path / "base")
    with pytest.raises(PenwrightError, match="was imported without its training text"):
        prepare(
            {
                "data": {"train": [str(write_novel(tmp_path))]},
                "finetuning": {"base": str(tmp_path / "base"), "keep_old": 0.2},
            }
        )


def test_adapter_of_an_imported_writer_states_its_origin(llama: Path, tmp_path: Path) -> None:
    base, settings = tmp_path / "base", merge(FAST_TRAINING, {"lora": {"rank": 2}})
    penwright.import_model(llama, base)
    penwright.train(write_novel(tmp_path), run=tmp_path / "run", base=base, settings=settings, quiet=True)
    penwright.export(tmp_path / "run", "peft", tmp_path / "adapter")
    card = (tmp_path / "adapter" / "README.md").read_text(encoding="utf-8")
    assert "license: mit" in card
    assert "LlamaForCausalLM" in card
    adapter, merged = tmp_path / "adapter", tmp_path / "runs" / "llama"
    (adapter / "README.md").write_text(card.replace("license: mit", "license: cc0-1.0"), encoding="utf-8")
    penwright.export(base, "penwright", merged, adapter=adapter)
    new = {"finetuning": {"base": str(llama)}}
    start = with_imported_base(new, tmp_path / "runs" / "new")["finetuning"]["base"]
    assert start == str(tmp_path / "runs" / "llama-2")  # the merged run has other weights than the imported model
    assert with_imported_base(new, tmp_path / "runs" / "new")["finetuning"]["base"] == start
    for name, run in (("hf", merged), ("direct", base)):
        penwright.export(run, "huggingface", tmp_path / name, adapter=adapter if run == base else None)
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert f"{llama} (LlamaForCausalLM, licence: mit), with the adapter {adapter} (licence: cc0-1.0) merged" in card
        assert "license: mit, cc0-1.0\n" in card and "adapter, sha256 " in card
    penwright.train(write_novel(tmp_path), run=tmp_path / "z", base=merged, settings=settings, quiet=True)
    penwright.export(tmp_path / "z", "peft", tmp_path / "of-merged")
    names = [
        json.loads((tmp_path / name / "adapter_config.json").read_text())["base_model_name_or_path"]
        for name in ("adapter", "of-merged")
    ]
    assert names == [str(llama), str(merged)]


def test_imported_writer_is_trained_with_its_chat_template(llama: Path, tmp_path: Path) -> None:
    edit(llama / "tokenizer_config.json", chat_template=CHATML)
    lines = [{"prompt": f"The cat {n}?", "completion": f"The mat {n}."} for n in range(40)]
    (tmp_path / "chat.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    penwright.import_model(llama, tmp_path / "base")
    context = training_context(tmp_path / "chat.jsonl", tmp_path / "base")
    assert context.training is not None
    batch = next(TASKS["chat"].batches(context, context.training).in_order())
    theirs = transformers.AutoTokenizer.from_pretrained(llama)
    conversations = [[each._asdict() for each in conversation.messages] for conversation in context.corpus.training]
    expected = {
        tuple(theirs.apply_chat_template(talk)["input_ids"][:-1]) for talk in conversations
    }  # without a line break
    end = context.tokenizer.end_id
    assert context.tokenizer.pad_id == end
    assert all((*_without_padding(row, end), end) in expected for row in batch.tokens.tolist())
    said: list[str] = []
    assert len(evaluate(tmp_path / "base", [str(tmp_path / "chat.jsonl")], say=said.append)) == 1
    assert any("scoring the answers" in line for line in said) and "evaluating on 40 conversations" in said
    as_text = {"data": {"text": "completion"}}
    assert len(evaluate(tmp_path / "base", [str(tmp_path / "chat.jsonl")], as_text)) > 1


def _without_padding(row: list[int], pad: int) -> list[int]:
    while row[-1] == pad:
        row = row[:-1]
    return row


def test_base_that_is_not_a_run_is_imported_first(llama: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, messages = write_novel(tmp_path), list[str]()
    given = {"data": {"train": [str(data)]}, "finetuning": {"base": str(llama)}}
    with pytest.raises(UsageError, match=r"a dry run writes nothing\. Import it first: penwright import .*llama"):
        with_imported_base(given, None, is_dry=True)
    assert not (tmp_path / "runs").exists()
    again = with_imported_base(given, Path("runs/mine"), messages.append)
    assert again["finetuning"] == {"base": "runs/llama"}
    assert messages == [f"importing {llama} into the run runs/llama, to start from it"]
    assert with_imported_base(given, None, messages.append, is_dry=True) == again
    assert messages[1:] == [f"{llama} was imported before: starting from runs/llama"]
    edit(llama / "tokenizer_config.json", add_bos_token=False)  # now a different model
    assert with_imported_base(given, None)["finetuning"] == {"base": "runs/llama-2"}
    assert with_imported_base(again, None) == again
    assert with_imported_base({}, None) == {}
    (llama / "model.safetensors").unlink()
    with pytest.raises(PenwrightError, match=r"the base model cannot be imported: .*no model\.safetensors"):
        with_imported_base(given, None)


def test_training_from_a_hub_folder_needs_one_call(llama: Path, tmp_path: Path) -> None:
    ours = penwright.train(write_novel(tmp_path), run=tmp_path / "run", base=llama, settings=FAST_TRAINING, quiet=True)
    assert ours.kind == "writer"
    assert open_run(tmp_path / "run").recipe.finetuning.base == str(
        tmp_path / "llama-2"
    )  # the folder of the model already has this name


def test_tiny_llama_3_is_trained_exported_and_imported(tmp_path: Path) -> None:
    tiny = {"size": "llama3-1b", "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 64}
    settings = {"model": tiny, "tokenizer": {"type": "bpe", "vocab_size": 300}}
    settings["training"] = {**FAST_TRAINING["training"], "steps": 20, "batch_tokens": 512, "evaluate_every": 10}
    ours = penwright.train(write_novel(tmp_path), run=tmp_path / "run", settings=settings, quiet=True)
    recipe = open_run(tmp_path / "run").recipe.model
    assert (recipe.n_kv_heads, recipe.feed_forward, recipe.norm.type, recipe.qk_norm) == (2, "swiglu", "rms", False)
    assert (recipe.positions.type, recipe.positions.base) == ("rotary", 500_000.0)
    losses = [record["nats per token"] for record in open_run(tmp_path / "run").run.records("metrics.jsonl")]
    assert losses[-1] < losses[0]
    penwright.export(tmp_path / "run", "huggingface", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["model_type"] == "llama"
    again = penwright.import_model(tmp_path / "exported", tmp_path / "again")
    options = {"temperature": 0, "max_new_tokens": 8}
    assert again.generate("The", **options)[0].text == ours.generate("The", **options)[0].text
