"""The chat templates of models that other projects trained."""

from typing import Any

from penwright.config import ChatSettings, validate
from penwright.errors import PenwrightError
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import ChatTemplate, Message, template_of


def read_chat(
    template: Any, bos_token: str, eos_token: str, tokenizer: Tokenizer, notes: list[str]
) -> ChatSettings | None:
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
        end = _end_of_turn(template_of(settings), tokenizer)
    except PenwrightError as error:
        notes.append(f"the chat template is left out, so the model cannot chat: {error}")
        return None
    return settings if end in ("", eos_token) else settings.model_copy(update={"end_of_turn": end})


def _end_of_turn(template: ChatTemplate, tokenizer: Tokenizer) -> str:
    """Return the special token that the template writes after an answer; "" if it writes none.

    It is often not the end token of the tokenizer: many base models end a document and a turn with different tokens.
    """
    try:
        after = template.after_answer().lstrip(" ")
    except PenwrightError:  # the template rejects conversations of more than one message
        return ""
    return max((name for name in tokenizer.special_ids if after.startswith(name)), key=len, default="")
