"""An imported writer with a chat template answers a conversation over HTTP."""

import json
from pathlib import Path
from urllib.request import Request, urlopen

import penwright
from penwright.serving.model_worker import ModelWorker
from penwright.tokenizers.chat_template import Message

from .conftest import StartServer

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_imported_writer_answers_a_chat_completion(runs: Path, tmp_path: Path, start_server: StartServer) -> None:
    penwright.export(runs / "writer", "huggingface", tmp_path / "exported")
    (tmp_path / "exported" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    writer = penwright.import_model(tmp_path / "exported", tmp_path / "answering")
    running = start_server()
    writer_worker = running.registry.get("writer")
    answering_worker = ModelWorker.load(tmp_path / "answering")
    running.registry._workers = {"writer": writer_worker, "answering": answering_worker}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 5, "temperature": 0}
    request = Request(
        f"{running.address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urlopen(request, timeout=30) as answer:
        found = json.load(answer)
    expected = writer.answer([Message("user", "Hello")], temperature=0, max_new_tokens=8, seed=5)
    assert found["model"] == "answering"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": expected.text}
    assert found["usage"]["prompt_tokens"] == len(writer.chat_tokens([Message("user", "Hello")]))
