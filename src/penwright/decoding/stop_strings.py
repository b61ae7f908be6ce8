"""Stop strings, found across the borders of tokens, without ever showing a part of one."""

from collections.abc import Sequence


class StopFilter:
    """Passes text on until a stop string is complete; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown; nothing more once a stop string has come.

        Of several stop strings that one counts which is complete first, and of those the longest, so that it makes no
        difference in what portions the text comes.
        """
        if self.stopped:
            return ""
        text = self._held + text
        places = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)[1]]
        n_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def finish(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that a stop string begins with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
