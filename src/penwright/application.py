"""Applications: trained models with their tokenizers, ready to use. Each application is imported only when needed."""

from typing import TYPE_CHECKING, Literal, TypeAlias, Union

from penwright.config import Recipe
from penwright.languages import Languages, requested_languages
from penwright.model import Model
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.run.provenance import ModelCard
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import template_of

if TYPE_CHECKING:
    import penwright.classification.classifier
    import penwright.classification.linear
    import penwright.generation.generator
    import penwright.translation.translator

Application: TypeAlias = Union[
    "penwright.generation.generator.Generator",
    "penwright.translation.translator.Translator",
    "penwright.classification.classifier.Classifier",
]
ModelKind = Literal["writer", "translator", "classifier"]  # the attribute `kind` of an application


def languages_of(recipe: Recipe, card: ModelCard) -> Languages | None:
    """Return the source and target language of a translator, from the corpus or the recipe; None if unknown."""
    return card.languages or requested_languages(recipe.data)


def make_application(
    model: Model,
    tokenizer: Tokenizer,
    recipe: Recipe,
    card: ModelCard,
    linear: "penwright.classification.linear.LinearClassifier | None" = None,
) -> Application:
    """Combine the model with its tokenizer into an application: text in, text or labels out.

    If `model.ngrams` is on, a classifier also uses the predictions of the `linear` classifier.
    """
    match model:
        case DecoderOnly():
            from penwright.generation.generator import Generator  # noqa: PLC0415 - only what this model needs

            template = template_of(recipe.chat) if recipe.chat or recipe.task == "chat" else None
            return Generator(model, tokenizer, recipe.decoding, template)
        case EncoderDecoder():
            from penwright.translation.translator import Translator  # noqa: PLC0415 - only what this model needs

            languages = languages_of(recipe, card)
            return Translator(
                model,
                tokenizer,
                recipe.decoding,
                source_language=languages.source if languages else None,
                max_source_tokens=card.max_source_tokens,
                hints=card.hints,
                new_terms=card.new_terms,
            )
        case EncoderOnly():
            from penwright.classification.classifier import Classifier  # noqa: PLC0415 - only what this model needs

            return Classifier(model, tokenizer, card.labels, linear if recipe.model.ngrams else None)
