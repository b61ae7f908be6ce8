"""What a model makes of fixed prompts, for people to read."""

from typing import NamedTuple


class Sample(NamedTuple):
    """What the model makes of a fixed prompt, beside what stands in the held-out text, where there is such a thing."""

    prompt: str
    completion: str
    reference: str = ""
