"""The Trainer of transformers on models of our sizes, in its own process.

`lm TEXT SETTINGS` prints characters per second; `classify TRAIN DEV TEST SETTINGS` prints accuracies.
`lora TEXT GGUF ADAPTER SETTINGS` trains a LoRA adapter with peft, and prints tokens per second.
"""

import json
import sys
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

STARTED, PAD = perf_counter(), "[PAD]"


class Windows(Dataset[dict[str, torch.Tensor]]):
    """A number of random windows of a text, by characters."""

    def __init__(self, text: str, context: int, n: int):
        letters = {letter: place for place, letter in enumerate(sorted(set(text)))}
        self.tokens, self.context, self.n = torch.tensor([letters[c] for c in text]), context, n
        self.vocab_size = len(letters)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = int(torch.randint(len(self.tokens) - self.context, ()))
        window = self.tokens[start : start + self.context]
        return {"input_ids": window, "labels": window}


class _Stopwatch(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: object, **more: object) -> None:
        self.ends.append(perf_counter())


def language_model(path: Path, settings: dict[str, Any]) -> None:
    """Print the characters per second of a Llama of these sizes."""
    rows, context, steps = settings["rows"], settings["context"], settings["steps"]
    data = Windows(path.read_text(encoding="utf-8"), context, rows * steps)
    width = settings["d_model"]
    config = LlamaConfig(
        vocab_size=data.vocab_size,
        hidden_size=width,
        intermediate_size=settings["d_ff"],
        num_hidden_layers=settings["n_layers"],
        num_attention_heads=settings["n_heads"],
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    watch = _Stopwatch()
    arguments = _arguments(rows, max_steps=steps, torch_compile=settings["compile"], bf16=settings["bf16"])
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[watch]).train()
    times = np.diff(watch.ends[4:])
    print(json.dumps(rows * context / median(times.tolist())))


class Labelled(Dataset[dict[str, Any]]):
    """Tokenized texts with their labels."""

    def __init__(self, rows: list[tuple[str, int]], tokenizer: Tokenizer):
        self.rows = [(tokenizer.encode(text).ids[:256], label) for text, label in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens, label = self.rows[index]
        return {"input_ids": tokens, "labels": label}


def classifier(train: Path, dev: Path, test: Path, settings: dict[str, Any]) -> None:
    """Train a BERT and its vocabulary from scratch; print the accuracies of the checkpoint that is best on dev."""
    parts = {name: _labelled(path) for name, path in (("train", train), ("dev", dev), ("test", test))}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    learner = trainers.WordPieceTrainer(vocab_size=settings["vocab_size"], special_tokens=[PAD, "[UNK]"])
    tokenizer.train_from_iterator((text for text, _ in parts["train"]), learner)
    data = {name: Labelled(rows, tokenizer) for name, rows in parts.items()}
    width = settings["d_model"]
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=settings["n_layers"],
        num_attention_heads=settings["n_heads"],
        intermediate_size=4 * width,
        num_labels=len({label for _, label in parts["train"]}),  # type: ignore[call-arg]  # undeclared
        pad_token_id=0,
    )
    arguments = _arguments(
        64,
        num_train_epochs=settings["epochs"],
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        learning_rate=settings["learning_rate"],
        warmup_steps=200,
        weight_decay=0.01,
        train_sampling_strategy="group_by_length",
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        data_collator=_padded,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    trainer.train()
    scores = {name: trainer.evaluate(data[name])["eval_accuracy"] for name in ("dev", "test")}
    print(json.dumps(scores))


def lora(text: Path, gguf: Path, adapter: Path, settings: dict[str, Any]) -> None:
    """Train a LoRA adapter for `seconds` in this process, with one thread; the learning rate falls to 0 by the clock.

    The text is cut into adjacent windows without padding, shuffled in each epoch. The base model is in bfloat16.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    context, seconds = settings["context"], settings["seconds"]
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokens = AutoTokenizer.from_pretrained(**source)(text.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    windows = tokens[: len(tokens) // context * context].view(-1, context)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    rank = settings["rank"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings["learning_rate"], weight_decay=0.0)
    run = torch.compile(model) if settings["compile"] else model
    order, times, begin = torch.empty(0, dtype=torch.long), [perf_counter()], perf_counter()
    while (elapsed := perf_counter() - STARTED) < seconds:
        if len(order) < settings["rows"]:
            order = torch.cat([order, torch.randperm(len(windows))])
        here, order = windows[order[: settings["rows"]]], order[settings["rows"] :]
        with torch.autocast("cpu", torch.bfloat16):  # the adapters are in float32
            loss = run(input_ids=here, labels=here).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        warmup = min(1.0, len(times) / settings["warmup"])
        optimizer.param_groups[0]["lr"] = settings["learning_rate"] * warmup * (1 - elapsed / seconds)
        optimizer.step()
        optimizer.zero_grad()
        times.append(perf_counter())
    model.save_pretrained(adapter)
    steps = np.diff(times)
    found = {
        "steps": len(steps),
        "tokens per second": settings["rows"] * context / median(steps.tolist()),
        "trained": sum(parameter.numel() for parameter in trained) / model.get_base_model().num_parameters(),
        "seconds before the first step": begin - STARTED,
    }
    print(json.dumps(found))


def _padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    tokens = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask), "labels": labels}


def _labelled(path: Path) -> list[tuple[str, int]]:
    """Read lines of a label, a tab and a text; skip a header."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if "\t" in line]
    return [(text, int(label)) for label, text in rows if label.isdigit()]


def _arguments(rows: int, **more: object) -> TrainingArguments:
    given = {
        "output_dir": mkdtemp(),
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": 256,
        "use_cpu": True,
        "bf16": torch.cpu._is_avx512_bf16_supported(),
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 100_000,
        "save_strategy": "no",
        "save_total_limit": 1,
    }
    return TrainingArguments(**{**given, **more})


if __name__ == "__main__":
    if sys.argv[1] == "lm":
        language_model(Path(sys.argv[2]), json.loads(sys.argv[3]))
    elif sys.argv[1] == "lora":
        lora(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), json.loads(sys.argv[5]))
    else:
        classifier(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), json.loads(sys.argv[5]))
