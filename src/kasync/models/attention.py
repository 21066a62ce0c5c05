"""Transformers without dropout: a GPT for tokens and a vision transformer for pictures, of the same blocks.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): normalisation before each part, learned
positions, weights drawn from N(0, 0.02), those that end on the residual path smaller by sqrt(2 layers).
Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021); the mean of all patches instead of a class token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.errors import UserError
from kasync.models.seeded import Draw, positive, seeded

_DEVIATION = 0.02


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v in several heads; causal: a token sees itself and those before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # [N, T, width] -> [N, T, width]
        split = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1))  # [N, T, 3, heads, d]
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind()  # each [N, heads, T, d]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.project(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.project(functional.gelu(self.expand(self.mlp_norm(x))))


class GPT(nn.Module):
    """Tokens [N, T], T <= context, to logits of the token after each, [N, T, vocabulary]."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.context = context
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[-1] > self.context:
            raise UserError(f"{tokens.shape[-1]} tokens exceed the context of {self.context}: cut them, or raise it.")
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]]  # [N, T, width]
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def continued(self, tokens: Tensor, count: int, temperature: float = 1.0, seed: int = 0) -> Tensor:
        """Tokens [N, T] and `count` more, drawn from the softmax of their logits; temperature 0 takes the largest."""
        generator = torch.Generator(tokens.device).manual_seed(seed)
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1]  # [N, vocabulary]
            if temperature:
                drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            else:
                drawn = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, drawn], 1)
        return tokens


class ViT(nn.Module):
    """Pictures [N, C, size, size] in patches to a row of logits [N, classes]."""

    def __init__(self, width: int, depth: int, heads: int, patch: int, classes: int, size: int, channels: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Embedding((size // patch) ** 2, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions.weight  # [N, patches, width]
        return self.head(self.norm(self.blocks(x)).mean(1))


def gpt(
    layers: int = 4, width: int = 128, heads: int = 4, context: int = 128, vocabulary: int = 256, seed: int = 0
) -> GPT:
    """A GPT without dropout: about 12 layers width^2 + (2 vocabulary + context) width parameters."""
    for setting, value in (("layers", layers), ("context", context), ("vocabulary", vocabulary)):
        positive(setting, value)
    _check_heads(width, heads)
    return seeded(lambda: GPT(layers, width, heads, context, vocabulary), seed, _small(layers))


def vit(
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    patch: int = 4,
    classes: int = 10,
    size: int = 32,
    channels: int = 3,
    seed: int = 0,
) -> ViT:
    """A vision transformer for pictures of channels x size x size: 2,693,194 parameters as it stands."""
    for setting, value in (("depth", depth), ("patch", patch), ("classes", classes), ("size", size)):
        positive(setting, value)
    if size % patch:
        raise UserError(f"patch is {patch}, which does not divide the size {size}: choose one that does.")
    _check_heads(width, heads)
    return seeded(lambda: ViT(width, depth, heads, patch, classes, size, channels), seed, _small(depth))


def _check_heads(width: int, heads: int) -> None:
    if positive("width", width) % positive("heads", heads):
        raise UserError(f"heads is {heads}, which does not divide the width {width}: choose one that does.")


def _small(layers: int) -> Draw:
    """N(0, 0.02), by sqrt(2 layers) less where a layer ends on the residual path; biases 0."""

    ends: set[nn.Module] = set()  # layers whose output is added to the residual path; their parents come first

    def draw(module: nn.Module, generator: torch.Generator) -> bool:
        if isinstance(module, Attention | Block):
            ends.add(module.project)
        if not isinstance(module, nn.Linear | nn.Embedding):
            return False
        deviation = _DEVIATION / (2 * layers) ** 0.5 if module in ends else _DEVIATION
        module.weight.normal_(0, deviation, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        return True

    return draw
