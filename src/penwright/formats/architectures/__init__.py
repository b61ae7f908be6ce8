"""Tables that map the architectures of the transformers library to our settings and names, for import and export."""

from penwright.formats.architectures.architecture import VALUE_NAMES, Architecture, Config, Tensors
from penwright.formats.architectures.encoders import (
    BERT,
    BERT_ENCODER,
    DISTILBERT,
    DISTILBERT_ENCODER,
    ROBERTA,
    ROBERTA_ENCODER,
)
from penwright.formats.architectures.translators import M2M100, MARIAN
from penwright.formats.architectures.writers import GPT2, LLAMA, MISTRAL, QWEN2, QWEN3

__all__ = ["ARCHITECTURES", "VALUE_NAMES", "Architecture", "Config", "Tensors"]

ARCHITECTURES = {
    "LlamaForCausalLM": LLAMA,
    "Qwen3ForCausalLM": QWEN3,
    "GPT2LMHeadModel": GPT2,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "MarianMTModel": MARIAN,
    "M2M100ForConditionalGeneration": M2M100,
    "BertForSequenceClassification": BERT,
    "DistilBertForSequenceClassification": DISTILBERT,
    "RobertaForSequenceClassification": ROBERTA,
    "BertModel": BERT_ENCODER,
    "DistilBertModel": DISTILBERT_ENCODER,
    "RobertaModel": ROBERTA_ENCODER,
    "BertForMaskedLM": BERT_ENCODER,
    "DistilBertForMaskedLM": DISTILBERT_ENCODER,
    "RobertaForMaskedLM": ROBERTA_ENCODER,
}
