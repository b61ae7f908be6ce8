"""Text from tokens as they come, one by one."""

import codecs

from penwright.tokenizers.tokenizer import Tokenizer


class TextStream:
    """Gives text as soon as its characters are complete; all pieces together are what decode gives for all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while the bytes of a character are not all there."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """U+FFFD for a character whose last bytes never came, otherwise nothing."""
        return self._decoder.decode(b"", final=True)
