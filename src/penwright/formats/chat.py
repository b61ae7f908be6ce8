"""The chat templates of models that other projects trained."""

from typing import Any

from penwright.config import ChatSettings, validate
from penwright.errors import PenwrightError
from penwright.tokenizers.chat_template import Message, template_of


def read_chat(template: Any, bos_token: str, eos_token: str, notes: list[str]) -> ChatSettings | None:
    """Return the settings of a model's chat template, or None.

    The template is tried on one message, in a sandbox. If it is too long or fails, append the reason to `notes` and
    return None.
    """
    if template is None:
        return None
    given = {"template": template, "bos_token": bos_token, "eos_token": eos_token}
    try:
        settings = validate(ChatSettings, given, "the chat template")
        template_of(settings).turns([Message("user", "Hello")])
    except PenwrightError as error:
        notes.append(f"the chat template is left out, so the model cannot chat: {error}")
        return None
    return settings
