"""Initialization of parameters: balanced scales, and sublayers that start with an output of zero."""

from math import sqrt

import torch
from torch import nn

from penwright.config import ModelSettings
from penwright.model.attention import Attention
from penwright.model.feed_forward import FeedForward


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Initialize weights from N(0, 1/width) and biases to zero.

    The output weights of each sublayer are zero, or scaled down by depth.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():  # after the linear layers, because an output layer may share an embedding's matrix
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        if isinstance(module, Attention | FeedForward):
            adding = module.output if isinstance(module, Attention) else module.down
            if settings.zero_init_outputs:
                nn.init.zeros_(adding.weight)
            else:
                adding.weight.div_(sqrt(2 * settings.n_layers))
