"""From a trained model to text: sampling, beam search, and what they need of a model."""

from penwright.decoding.beam import BeamSettings, Hypothesis, beam_search
from penwright.decoding.classifier import Classification, Classifier
from penwright.decoding.decodable import Continuing, Decodable, Translating
from penwright.decoding.generate import Finish, Step, generate
from penwright.decoding.generator import Completion, Generator
from penwright.decoding.sampling import Chances, Sampling
from penwright.decoding.translator import Candidate, Translation, Translator

__all__ = [
    "BeamSettings",
    "Candidate",
    "Chances",
    "Classification",
    "Classifier",
    "Completion",
    "Continuing",
    "Decodable",
    "Finish",
    "Generator",
    "Hypothesis",
    "Sampling",
    "Step",
    "Translating",
    "Translation",
    "Translator",
    "beam_search",
    "generate",
]
