"""The decoder, with the tensor names and shapes of transformers' ApertusForCausalLM.

Letters: B batch, T tokens, D model, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_bytes
from stamm.losses.language_model import LossOutput, masked_cross_entropy
from stamm.losses.sequence import sequence_log_probs
from stamm.models.attention import Attention, KeyValues
from stamm.models.attention_mask import Mask, Sight, sight
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.ffn import build_ffn
from stamm.models.guide_draws import uses_guide
from stamm.models.linear import structured_linears
from stamm.models.norm import RMSNorm
from stamm.models.rope import inverse_frequencies
from stamm.models.self_guide import guide_weight


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)).

    recompute   keep the layer's input alone for the backward pass, and compute the rest once more
    """

    recompute = False

    def __init__(self, config: DecoderConfig, ffn: PlainFFN | GatedFFN) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = build_ffn(config.d_model, ffn)
        self.attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Mask,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """The layer's output, same shape as its input."""
        if self.recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(
                self._forward, x_BTD, turn, mask, use_reentrant=False, preserve_rng_state=False
            )
            return again
        return self._forward(x_BTD, turn, mask, cache)

    def _forward(
        self,
        x_BTD: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Mask,
        cache: KeyValues | None = None,
    ) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.attention_layernorm(x_BTD), turn, mask, cache)
        y_BTD: Tensor = x_BTD + self.mlp(self.feedforward_layernorm(x_BTD))
        return y_BTD


class Trunk(nn.Module):
    """Everything before the output matrix: embedding, layers, last norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            Layer(config, config.ffn_of(index)) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        frequencies = inverse_frequencies(config.rope, config.head_width)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None = None,
        caches: list[KeyValues] | None = None,
        start: int = 0,
        seen: Sight | None = None,
    ) -> Tensor:
        """Normalised hidden states, shape (B, T, D).

        document_BT   a number per token, equal within a document; None means one document a row
        caches        one per layer, when decoding token by token
        start         position of the first token, when decoding token by token
        seen          what attention is told, where it is not what the above say: a sequence that
                      is divided over processes
        """
        x_BTD = self.embed_tokens(tokens_BT)
        if seen is None:
            length = tokens_BT.shape[1]
            seen = sight(self.frequencies, length, document_BT, x_BTD.dtype, start)
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else caches[index]
            x_BTD = layer(x_BTD, seen.turn, seen.mask, cache)
        y_BTD: Tensor = self.norm(x_BTD)
        return y_BTD

    @property
    def frequencies(self) -> Tensor:
        """Radians per token of each rotated pair: float32, also where weights were cast to less."""
        kept = self.get_buffer("inverse_frequencies")
        if kept.dtype == torch.float32:
            return kept
        return inverse_frequencies(self.config.rope, self.config.head_width).to(kept.device)


class Decoder(nn.Module):
    """A causal language model: `model` (the trunk) and `lm_head`.

    FORWARD_METHODS   methods other than `forward` that compute with the parameters of the model
                      itself. FSDP gathers the shards before each of them
                      (`engine.parallel.apply_fsdp`); a subclass adds its own
    """

    FORWARD_METHODS: ClassVar[tuple[str, ...]] = ("losses", "sequence_log_probs")

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

    def losses(
        self,
        tokens_BT: Tensor,
        target_BT: Tensor,
        keep_BT: Tensor,
        kept: float,
        document_BT: Tensor | None = None,
        seen: Sight | None = None,
        z_loss: float = 0.0,
    ) -> LossOutput:
        """The losses of the kept targets, divided by `kept`; the logits are never whole.

        document_BT, seen   as in `Trunk.forward`
        """
        hidden_BTD = self.model(tokens_BT, document_BT, seen=seen)
        return masked_cross_entropy(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            target_BT.flatten(),
            keep_BT.flatten(),
            kept=kept,
            z_loss=z_loss,
        )

    def sequence_log_probs(
        self,
        tokens_BT: Tensor,
        target_BT: Tensor,
        completion_BT: Tensor,
        completions: int,
        document_BT: Tensor | None = None,
        seen: Sight | None = None,
    ) -> Tensor:
        """Log-probability of each completion in nats, differentiable, float64, shape (completions,).

        completion_BT        the completion that each target belongs to, -1 for none, as in
                             `losses.sequence.sequence_log_probs`
        document_BT, seen    as in `Trunk.forward`
        Edge                 sums over the tokens of this process: where sequences are divided over
                             processes (context or tensor parallel), add them up
        Checked              tests/unit/engine/test_sequence_processes.py (FSDP2, two processes)
        """
        hidden_BTD = self.model(tokens_BT, document_BT, seen=seen)
        return sequence_log_probs(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            target_BT.flatten(),
            completion_BT.flatten(),
            completions,
        )

    @torch.no_grad()
    def initialise(self, seed: int, put: Callable[[Tensor, Tensor], object] = Tensor.copy_) -> None:
        """Draw every weight from `seed`; norms are ones, activations take their stated values.

        Matrices are normal with standard deviation init_std. A tensor's numbers depend on the
        seed, its name and its shape alone, so arms that share a tensor start from the same one.
        Structured matrices start as `StructuredLinear.initialise` says; a low-rank one from the
        dense matrix of the arm that has it dense.

        put   what fills a matrix with its numbers, where it does not lie here in one piece
        """
        structured = dict(structured_linears(self))
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() < 2 or name.rpartition(".")[0] in structured:
                continue
            drawn = _drawn(seed, name, parameter.shape)
            put(parameter, drawn.mul_(self.config.init_std))
        for name, linear in structured.items():
            linear.initialise(name, partial(_drawn, seed), self.config.init_std)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
            if isinstance(module, (Activation, GatedActivation)):
                module.reset_parameters()

    def add_guides(self) -> None:
        """Give every structured matrix its dense guide, where the configuration asks for guides.

        Needs    weights drawn already, and not yet divided over processes
        """
        if self.config.structured.guide is not None:
            for _, linear in structured_linears(self):
                linear.add_guide()

    def drop_guides(self) -> None:
        """Take the guides away, once `guided_steps` are done; their optimizer state is the caller's."""
        for _, linear in structured_linears(self):
            linear.drop_guide()

    def begin_step(self, step: int, num_steps: int, seed: int) -> None:
        """Set what the guides say in step `step` of `num_steps`, counted from 1; before its forward.

        seed     the run's; with it every process draws alike which layers use their guides
        Edge     nothing to do without guides in the configuration
        Raises   ConfigError for a guided step of a decoder that has none of the guides it asks for
        """
        guide = self.config.structured.guide
        weight = guide_weight(guide, step, num_steps)
        for index, layer in enumerate(self.model.layers):
            for _, linear in structured_linears(layer):
                if linear.guide is not None:
                    linear.guide_weight.fill_(weight)
                    linear.guided = uses_guide(guide, index, step, num_steps, seed)
                elif weight > 0:
                    raise ConfigError(
                        f"step {step} of {num_steps} is self-guided, and the decoder has no guides",
                        fix="Call add_guides() before it is trained",
                    )

    @torch.no_grad()
    def merged(self) -> Decoder:
        """The same function with each structured matrix written out as one, for export and decoding.

        Itself where nothing is structured; otherwise all other tensors are shared with it. Guides are
        no part of the function, and left out.

        Needs    a decoder in one piece

        Checked  tests/unit/models/test_structured.py::test_a_merged_decoder_says_the_same
        """
        structured = dict(structured_linears(self))
        if not structured:
            return self
        shared = {id(t): t for t in (*self.parameters(), *self.buffers())}
        decoder = copy.deepcopy(self, shared)
        for name, linear in structured.items():
            decoder.set_submodule(name, linear.merged())
        decoder.config = self.config.merged()
        decoder.model.config = decoder.config
        return decoder


def build_blank(config: DecoderConfig) -> Decoder:
    """A decoder without numbers, to be divided over processes before it is given some."""
    with torch.device("meta"):
        return Decoder(config)


def build_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A decoder with its weights drawn from `seed`, float32, on the CPU."""
    decoder = Decoder(config)
    decoder.initialise(seed)
    return decoder


def _drawn(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    return torch.empty(tuple(shape)).normal_(generator=generator)


def _seed_of(seed: int, name: str) -> int:
    return int(sha256_bytes(f"{seed}:{name}".encode())[:15], 16)
