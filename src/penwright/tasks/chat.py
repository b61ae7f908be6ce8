"""Chat: a decoder-only model of prompts and answers. It is trained on the answers only."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from penwright.config import Recipe
from penwright.data.conversations import (
    AnswerBatches,
    Conversation,
    open_conversations,
    open_evaluation_conversations,
)
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.evaluation.baselines import ngram_baselines
from penwright.evaluation.perplexity import negative_log_likelihood
from penwright.evaluation.scores import Sample, Score
from penwright.generation.generator import Generator
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.tasks.generation import LONGEST_WINDOW
from penwright.tokenizers.chat_template import Message, template_of

N_SAMPLES, SAMPLE_TOKENS = 2, 100
MOST_EVALUATED = 500_000  # maximum number of tokens in a quick evaluation
TEXT_COLUMNS, LABEL_COLUMNS = ("prompt", "answer"), ("turn",)

open_corpus, open_evaluation = open_conversations, open_evaluation_conversations


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield the prompt, the answer and the index of each turn of each conversation."""
    for conversation in _conversations(part):
        for number, turn in enumerate(conversation.turns):
            yield turn.prompt, (turn.answer,), number


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield each prompt and each answer of the training conversations."""
    for conversation in _conversations(corpus.training):
        for turn in conversation.turns:
            yield from (*turn.prompt, turn.answer)


def longest_conversation(recipe: Recipe) -> int:
    """Return the maximum number of tokens of a conversation that the model sees at once.

    For imported models with long contexts, it is a batch, but at least LONGEST_WINDOW tokens: a single longer
    conversation would need far more memory than planned.
    """
    length, tokens = recipe.model.context_length, recipe.training.batch_tokens
    return min(length, max(tokens, LONGEST_WINDOW)) if recipe.tokenizer.is_pretrained else length


def batches(context: RunContext, store: TokenStore) -> AnswerBatches:
    """Return the batches of a token store."""
    recipe = context.recipe
    length, tokens, seed = longest_conversation(recipe), recipe.training.batch_tokens, recipe.seed
    columns = store.column("prompt"), store.column("answer"), store.labels["turn"]
    end = template_of(context.recipe.chat).end_of_answer(context.tokenizer)
    return AnswerBatches(*columns, length, tokens, replace(context.markers, end=end), seed)


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out answers."""
    return _scores(context, 1)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a sample of answers, spread over the held-out set."""
    with context.quick_precision():
        return _scores(context, -(-len(context.held_out.column("answer").tokens) // MOST_EVALUATED))


def _scores(context: RunContext, one_in: int) -> Sequence[Score]:
    held_out = batches(context, context.held_out).in_order(one_in)
    return [Score("nats per token", negative_log_likelihood(context.model, held_out, context.device).mean)]


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score n-gram models on the answers. As in the scores of the model, each answer has its end token."""
    assert context.training is not None
    end = template_of(context.recipe.chat).end_of_answer(context.tokenizer)
    columns = (store.column("answer") for store in (context.training, context.held_out))
    training, held_out = (np.insert(column.tokens[:], np.cumsum(column.lengths), end) for column in columns)
    nats = ngram_baselines(training, held_out, context.tokenizer.vocab_size)
    return [Score("nats per token", value, note=name) for name, value in nats.items()]


def sample(context: RunContext) -> Sequence[Sample]:
    """Answer the prompts in the settings or, if the settings have no prompts, the first held-out prompts."""
    generator, settings = context.application, context.recipe.decoding
    length = max(settings.max_new_tokens or SAMPLE_TOKENS, settings.min_new_tokens)
    assert isinstance(generator, Generator)
    examples: list[tuple[Sequence[Message], str]] = [
        ([Message("user", prompt)], "") for prompt in context.recipe.training.prompts
    ]
    if not examples:
        held_out = islice(_conversations(context.corpus.held_out), N_SAMPLES)
        examples = [(each.messages[:-1], each.messages[-1].content) for each in held_out]
    answers = [generator.answer(messages, max_new_tokens=length).text for messages, _ in examples]
    return [
        Sample(messages[-1].content if messages else "", answer, reference)
        for (messages, reference), answer in zip(examples, answers, strict=True)
    ]


def _conversations(part: AnyPart) -> Iterator[Conversation]:
    for example in part:
        assert isinstance(example, Conversation)
        yield example
