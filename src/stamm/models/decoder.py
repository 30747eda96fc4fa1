"""The decoder, with the tensor names and shapes of transformers' ApertusForCausalLM.

Letters: B batch, T tokens, D model, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stamm.activations.module import Activation, GatedActivation
from stamm.base.files import sha256_bytes
from stamm.models.attention import Attention, KeyValues, document_mask
from stamm.models.config import DecoderConfig
from stamm.models.ffn import build_ffn
from stamm.models.norm import RMSNorm
from stamm.models.rope import inverse_frequencies, rotation


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = build_ffn(config.d_model, config.ffn)
        self.attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """The layer's output, same shape as its input."""
        x_BTD = x_BTD + self.self_attn(self.attention_layernorm(x_BTD), turn, mask, cache)
        y_BTD: Tensor = x_BTD + self.mlp(self.feedforward_layernorm(x_BTD))
        return y_BTD


class Trunk(nn.Module):
    """Everything before the output matrix: embedding, layers, last norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        frequencies = inverse_frequencies(config.rope, config.head_width)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None = None,
        caches: list[KeyValues] | None = None,
        start: int = 0,
    ) -> Tensor:
        """Normalised hidden states, shape (B, T, D).

        document_BT   a number per token, equal within a document; None means one document a row
        caches        one per layer, when decoding token by token
        start         position of the first token, when decoding token by token
        """
        x_BTD = self.embed_tokens(tokens_BT)
        frequencies: Tensor = self.get_buffer("inverse_frequencies")
        turn = rotation(frequencies, start, tokens_BT.shape[1])
        mask = None if document_BT is None else document_mask(document_BT, x_BTD.dtype)
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, turn, mask, None if caches is None else caches[index])
        y_BTD: Tensor = self.norm(x_BTD)
        return y_BTD


class Decoder(nn.Module):
    """A causal language model: `model` (the trunk) and `lm_head`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens_BT: Tensor, document_BT: Tensor | None = None) -> Tensor:
        """Logits of the next token, shape (B, T, V)."""
        logits_BTV: Tensor = self.lm_head(self.model(tokens_BT, document_BT))
        return logits_BTV

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every weight from `seed`; norms are ones, activations take their stated values.

        Matrices are normal with standard deviation init_std. A tensor's numbers depend on the
        seed, its name and its shape alone, so arms that share a tensor start from the same one.
        """
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() < 2:
                continue
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            drawn = torch.empty(parameter.shape).normal_(generator=generator)
            parameter.copy_(drawn.mul_(self.config.init_std))
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
            if isinstance(module, (Activation, GatedActivation)):
                module.reset_parameters()


def build_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A decoder with its weights drawn from `seed`, float32, on the CPU."""
    decoder = Decoder(config)
    decoder.initialise(seed)
    return decoder


def _seed_of(seed: int, name: str) -> int:
    return int(sha256_bytes(f"{seed}:{name}".encode())[:15], 16)
