"""The decoder, with the tensor names and shapes of transformers' ApertusForCausalLM.

Letters: B batch, T tokens, D model, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.files import sha256_bytes
from stamm.losses.config import Density
from stamm.losses.language_model import LossOutput, masked_cross_entropy
from stamm.losses.sequence import sequence_log_probs
from stamm.models.attention import Attention, KVCache
from stamm.models.attention_mask import AttentionInputs, Mask, attention_inputs
from stamm.models.config import DecoderConfig, GatedFFN, LowRank, PlainFFN
from stamm.models.ffn import build_ffn
from stamm.models.frozen_linear import FrozenLinear
from stamm.models.guide_draws import uses_guide
from stamm.models.linear import structured_linears
from stamm.models.norm import RMSNorm
from stamm.models.reward_head import RewardHead
from stamm.models.rope import inverse_frequencies
from stamm.models.self_guide import guide_weight


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)).

    recompute   activation checkpointing: save only the layer's input and recompute the rest in backward
    steering_D  what is added to the output, as `steering.steered` sets it; None: nothing
    """

    recompute = False
    steering_D: Tensor | None = None

    def __init__(self, config: DecoderConfig, ffn: PlainFFN | GatedFFN) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = build_ffn(config.d_model, ffn)
        self.attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: KVCache | None = None,
        epsilon: float | None = None,
    ) -> Any:
        """The layer's output, same shape as its input; with `epsilon` also the density of its units, (B, T)."""
        if self.recompute and torch.is_grad_enabled():
            given = (x_BTD, rotation, mask, None, epsilon)
            return checkpoint(self._forward, *given, use_reentrant=False, preserve_rng_state=False)
        return self._forward(x_BTD, rotation, mask, cache, epsilon)

    def _forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: KVCache | None,
        epsilon: float | None,
    ) -> Any:
        x_BTD = x_BTD + self.self_attn(self.attention_layernorm(x_BTD), rotation, mask, cache)
        block = self.mlp(self.feedforward_layernorm(x_BTD), epsilon=epsilon)
        added_BTD, *density = (block,) if epsilon is None else block
        y_BTD = x_BTD + added_BTD
        y_BTD = y_BTD if self.steering_D is None else y_BTD + self.steering_D
        return (y_BTD, *density) if density else y_BTD


class DecoderStack(nn.Module):
    """Embedding, layers and final norm: all but the output matrix."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            DecoderLayer(config, config.ffn_of(index)) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        frequencies = inverse_frequencies(config.rope, config.head_width)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None = None,
        caches: list[KVCache] | None = None,
        start: int = 0,
        attention: AttentionInputs | None = None,
    ) -> Tensor:
        """Normalised hidden states, which the output matrix reads, shape (B, T, D).

        document_BT   a number per token, equal within a document; None means one document a row
        caches        KV caches, one per layer, for decoding token by token
        start         position of the first token, for decoding token by token
        attention     rotation and mask, for a sequence that is divided over processes; None derives
                      them from the other arguments
        """
        y_BTD: Tensor = self.norm(
            self.before_norm(tokens_BT, document_BT, caches, start, attention)
        )
        return y_BTD

    def before_norm(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None = None,
        caches: list[KVCache] | None = None,
        start: int = 0,
        attention: AttentionInputs | None = None,
        epsilon: float | None = None,
        densities: list[Tensor] | None = None,
    ) -> Tensor:
        """The residual stream behind the last layer, before the final norm; arguments of `forward`.

        densities   list that gets the density of each layer's units, with `epsilon`
        """
        x_BTD: Tensor = self.embed_tokens(tokens_BT)
        if attention is None:
            length = tokens_BT.shape[1]
            attention = attention_inputs(self, length, document_BT, x_BTD.dtype, start)
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else caches[index]
            x_BTD = layer(x_BTD, attention.rotation, attention.mask, cache, epsilon)
            if densities is not None:
                x_BTD, density_BT = x_BTD
                densities.append(density_BT)
        return x_BTD

    def with_density(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None,
        attention: AttentionInputs | None,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        """The output of `forward`, and the mean over layers of the density of each token's units, (B, T)."""
        densities: list[Tensor] = []
        x_BTD = self.before_norm(
            tokens_BT, document_BT, attention=attention, epsilon=epsilon, densities=densities
        )
        return self.norm(x_BTD), torch.stack(densities).mean(0)

    @property
    def frequencies(self) -> Tensor:
        """Radians per token of each rotated pair: float32, also where weights were cast to 16 bits."""
        kept = self.get_buffer("inverse_frequencies")
        if kept.dtype == torch.float32:
            return kept
        return inverse_frequencies(self.config.rope, self.config.head_width).to(kept.device)


class HiddenStates(NamedTuple):
    """Last hidden states, (B, T, D): the residual stream before and after the final norm."""

    before_norm: Tensor
    after_norm: Tensor


class Decoder(nn.Module):
    """A causal language model: `model` (a DecoderStack) and `lm_head`; `reward_head` is that of a reward model.

    FORWARD_METHODS   methods other than `forward` that compute with the parameters of the model
                      itself. FSDP gathers the shards before each of them
                      (`engine.parallel.apply_fsdp`); a subclass adds its own
    """

    FORWARD_METHODS: ClassVar[tuple[str, ...]] = (
        "losses",
        "sequence_log_probs",
        "sequence_log_probs_and_hidden",
        "sequence_rewards",
    )

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStack(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.reward_head: RewardHead | None = None

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
        attention: AttentionInputs | None = None,
        z_loss: float = 0.0,
        density: Density | None = None,
    ) -> LossOutput:
        """The losses of the kept targets, divided by `kept`; the whole logits are never in memory.

        document_BT, attention   as in `DecoderStack.forward`
        density                  of the units at the inputs of the kept targets; None: not computed
        """
        if density is None:
            hidden_BTD = self.model(tokens_BT, document_BT, attention=attention)
        else:
            hidden_BTD, density_BT = self.model.with_density(
                tokens_BT, document_BT, attention, density.epsilon
            )
        output = masked_cross_entropy(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            target_BT.flatten(),
            keep_BT.flatten(),
            kept=kept,
            z_loss=z_loss,
        )
        if density is None:
            return output
        share = (density_BT * keep_BT).sum() / max(kept, 1.0)
        loss = output.loss + density.weight * share if density.weight else output.loss
        return output._replace(loss=loss, density=share.detach())

    def sequence_log_probs(
        self,
        tokens_BT: Tensor,
        target_BT: Tensor,
        completion_BT: Tensor,
        completions: int,
        document_BT: Tensor | None = None,
        attention: AttentionInputs | None = None,
    ) -> Tensor:
        """Log-probability of each completion in nats, differentiable, float64, shape (completions,).

        completion_BT        the completion that each target belongs to, -1 for none, as in
                             `losses.sequence.sequence_log_probs`
        document_BT, attention   as in `DecoderStack.forward`
        Edge                 sums over the tokens of this process: where sequences are divided over
                             processes (context or tensor parallel), add them up
        Checked              tests/unit/engine/test_sequence_processes.py (FSDP2, two processes)
        """
        hidden_BTD = self.model(tokens_BT, document_BT, attention=attention)
        return self._log_probs(hidden_BTD, target_BT, completion_BT, completions)

    def sequence_log_probs_and_hidden(
        self,
        tokens_BT: Tensor,
        target_BT: Tensor,
        completion_BT: Tensor,
        completions: int,
        attention: AttentionInputs | None = None,
    ) -> tuple[Tensor, HiddenStates]:
        """`sequence_log_probs`, and the hidden states that they are computed from."""
        residual_BTD = self.model.before_norm(tokens_BT, attention=attention)
        hidden_BTD = self.model.norm(residual_BTD)
        log_probs = self._log_probs(hidden_BTD, target_BT, completion_BT, completions)
        return log_probs, HiddenStates(residual_BTD, hidden_BTD)

    def _log_probs(
        self, hidden_BTD: Tensor, target_BT: Tensor, completion_BT: Tensor, completions: int
    ) -> Tensor:
        return sequence_log_probs(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            target_BT.flatten(),
            completion_BT.flatten(),
            completions,
        )

    def sequence_rewards(
        self,
        tokens_BT: Tensor,
        answer_BT: Tensor,
        answers: int,
        document_BT: Tensor | None = None,
        attention: AttentionInputs | None = None,
    ) -> Tensor:
        """The reward of each answer, differentiable, float64, shape (answers,); no logits are computed.

        answer_BT            the answer whose stop token each token is, -1 for others, as in
                             `RewardHead.forward`
        document_BT, attention   as in `DecoderStack.forward`
        Edge                 sums over the tokens of this process, as in `sequence_log_probs`
        Raises               ConfigError without a reward head
        Checked              tests/unit/engine/test_sequence_processes.py (FSDP2, two processes)
        """
        if self.reward_head is None:
            raise ConfigError("the decoder has no reward head", fix="Call add_reward_head()")
        hidden_BTD = self.model(tokens_BT, document_BT, attention=attention)
        rewards: Tensor = self.reward_head(hidden_BTD.flatten(0, 1), answer_BT.flatten(), answers)
        return rewards

    @torch.no_grad()
    def initialise(self, seed: int, put: Callable[[Tensor, Tensor], object] = Tensor.copy_) -> None:
        """Draw every weight from `seed`; norms are 1, biases 0, activations have their spec's initial values.

        Matrices are normal with standard deviation init_std. A tensor's values depend only on the
        seed, its name and its shape, so arms that share a tensor start from the same one. Structured
        matrices are initialised by `StructuredLinear.initialise`; a low-rank one from the dense
        matrix of the arm that has it dense.

        put   copies values into a parameter, for one that is divided over processes
        """
        structured = dict(structured_linears(self))
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() < 2 or name.rpartition(".")[0] in structured:
                continue
            drawn = normal_values(seed, name, parameter.shape)
            put(parameter, drawn.mul_(self.config.init_std))
        for name, linear in structured.items():
            linear.initialise(name, partial(normal_values, seed), self.config.init_std)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
            if isinstance(module, RewardHead):
                module.weight.zero_()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, (Activation, GatedActivation)):
                module.reset_parameters()

    def add_reward_head(self) -> None:
        """Add a reward head of weight 0, before the decoder is divided over processes.

        Rewards do not pass through an output matrix of its own (`lm_head` without tied embeddings):
        it is frozen.
        """
        if not self.config.tied_embeddings:
            self.lm_head.requires_grad_(requires_grad=False)
        self.reward_head = RewardHead(self.config.d_model, self.model.norm.weight.device)

    def add_guides(self) -> None:
        """Add a dense guide to every structured matrix, if the configuration has guides.

        Needs    initialised weights, not yet divided over processes
        """
        if self.config.structured.guide is not None:
            for _, linear in structured_linears(self):
                linear.add_guide()

    def drop_guides(self) -> None:
        """Remove the guides after `guided_steps`; the caller removes their optimizer state."""
        for _, linear in structured_linears(self):
            linear.drop_guide()

    def begin_step(self, step: int, num_steps: int, seed: int) -> None:
        """Set the weight of the guides for step `step` of `num_steps`, from 1; call before its forward.

        seed     the run's; every process draws from it which layers use their guides
        Edge     does nothing without guides in the configuration
        Raises   ConfigError for a guided step of a decoder without guides
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
        """The same function with every structured matrix multiplied out, for export and decoding.

        Returns the decoder itself if it has no structured matrix; otherwise all other tensors are
        shared with it. Guides do not change the function and are left out.

        Needs    a decoder that is not divided over processes

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

    def for_decoding(self) -> Decoder:
        """The same function with the matrices that a step of decoding multiplies: dense ones, or of low rank.

        Others are multiplied out and guides left out, as in `merged`. A step for few rows takes as long as reading its
        matrices, and factors of low rank have fewer numbers.
        """
        guided = any(linear.guide is not None for _, linear in structured_linears(self))
        return self if isinstance(self.config.ffn.linear, LowRank) and not guided else self.merged()


def build_blank(config: DecoderConfig) -> Decoder:
    """A decoder on the meta device, to be divided over processes before it is initialised."""
    with torch.device("meta"):
        return Decoder(config)


def decoder_of(
    config: DecoderConfig, state: Mapping[str, Tensor], frozen: Collection[str] = ()
) -> Decoder:
    """A decoder whose weights are the tensors of `state` themselves; of other dtypes, in float32.

    frozen   matrices that keep their dtype, as `FrozenLinear`, by the name of their weight

    Raises   RuntimeError when tensors are missing, extra or of another shape.
    """
    decoder = build_blank(config)
    for name in frozen:
        module_name = name.removesuffix(".weight")
        linear = decoder.get_submodule(module_name)
        assert isinstance(linear, nn.Linear)
        with torch.device("meta"):
            kept = FrozenLinear(linear.in_features, linear.out_features, linear.bias is not None)
        decoder.set_submodule(module_name, kept.requires_grad_(requires_grad=False))
    wide = {id(t): t.float() for name, t in state.items() if name not in frozen}
    decoder.load_state_dict({name: wide.get(id(t), t) for name, t in state.items()}, assign=True)
    if config.tied_embeddings:
        decoder.lm_head.weight = decoder.model.embed_tokens.weight
    frequencies = inverse_frequencies(config.rope, config.head_width)
    decoder.model.register_buffer("inverse_frequencies", frequencies, persistent=False)
    return decoder.eval()


def check_finite(parameters: Mapping[str, Tensor]) -> None:
    """Raise DataError for weights with NaN or infinity: comparisons with NaN would count as results.

    parameters   by name
    """
    for name, parameter in parameters.items():
        if not bool(torch.isfinite(parameter).all()):
            raise DataError(
                f"{visible(name)} of the model contains NaN or infinity",
                fix="Its training diverged: use an earlier checkpoint",
            )


def build_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A decoder with its weights drawn from `seed`, float32, on the CPU."""
    decoder = Decoder(config)
    decoder.initialise(seed)
    return decoder


def normal_values(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """Standard normal values that depend only on the seed, the tensor's name and its shape; float32."""
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    return torch.empty(tuple(shape)).normal_(generator=generator)


def _seed_of(seed: int, name: str) -> int:
    return int(sha256_bytes(f"{seed}:{name}".encode())[:15], 16)
