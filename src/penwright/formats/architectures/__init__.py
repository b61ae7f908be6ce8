"""Tables that translate architectures of transformers into our settings and names; import and export use them."""

from penwright.formats.architectures.architecture import VALUE_NAMES, Architecture, Config, Tensors
from penwright.formats.architectures.classifiers import BERT
from penwright.formats.architectures.translators import M2M100, MARIAN
from penwright.formats.architectures.writers import GPT2, LLAMA, QWEN3

__all__ = ["ARCHITECTURES", "VALUE_NAMES", "Architecture", "Config", "Tensors"]

ARCHITECTURES = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "Qwen3ForCausalLM": QWEN3,
    "MarianMTModel": MARIAN,
    "M2M100ForConditionalGeneration": M2M100,
    "BertForSequenceClassification": BERT,
}
