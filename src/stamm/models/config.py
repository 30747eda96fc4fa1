"""Configuration of a decoder. No torch here, so that plans of any size load at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from stamm.activations.catalog.registry import named_activation, spec_of
from stamm.activations.spec import Gated, Spec
from stamm.base.bounds import AtLeastOne, Natural, Positive, PositiveShare, at_least, within
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError

# Head widths of attention kernels: torch's flex_attention on a GPU, fused_attention on a CPU.
SMALLEST_FLEX_HEAD = 16
FUSED_HEAD_STEP = 4
WIDEST_FUSED_HEAD = 256


@dataclass(frozen=True, kw_only=True)
class PlainRope(Bounded):
    """Rotary positions with frequencies theta^(-2i/head_dim) (Su et al. 2021, arXiv 2104.09864)."""

    theta: Annotated[float, within("[1, inf)")] = 500_000.0


@dataclass(frozen=True, kw_only=True)
class Llama3Rope:
    """Rotary positions with Llama 3's scaling: long wavelengths divided by `factor`.

    Source   Apertus has it on from the first step at 4,096 tokens (arXiv 2509.14233, its scripts).
    """

    theta: Annotated[float, within("[1, inf)")] = 500_000.0
    factor: Annotated[float, within("[1, inf)")] = 8.0
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_context: AtLeastOne = 8192

    def __post_init__(self) -> None:
        low = self.low_frequency_factor
        validate(
            self,
            (
                "high_frequency_factor",
                low < self.high_frequency_factor,
                f"must be above low_frequency_factor = {low}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class SavePost:
    """Save the activation's inputs, and its output for the last matrix."""


@dataclass(frozen=True, kw_only=True)
class SavePre:
    """Save the activation's inputs; recompute its output in the backward pass.

    One more pass of the activation, no more matrix products, the same bits.
    """


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """Activation checkpointing: save the block's input only, recompute all but the last matrix, same bits."""


MemoryPolicy = SavePost | SavePre | Recompute


@dataclass(frozen=True, kw_only=True)
class Dense:
    """One matrix."""

    def parameters(self, inputs: int, outputs: int) -> int:
        """Number of parameters that replace a matrix of `outputs` x `inputs`."""
        return inputs * outputs

    def between(self, inputs: int, outputs: int) -> int:
        """Width between the two factors; 0 for a single matrix."""
        return 0

    def problems(self, d_model: int, width: int) -> list[str]:
        """Why it cannot replace the matrices between `d_model` and `width`, in both directions."""
        return []


@dataclass(frozen=True, kw_only=True)
class LowRank(Bounded):
    """U (V x) with V of rank x inputs and U of outputs x rank; rank * (inputs + outputs) numbers.

    Source   Wei et al. 2024 (arXiv 2406.16450): 62.5 % and 31.25 % of a block of width 4 d_model
             with rank d_model / 2 and d_model / 4
    """

    rank: AtLeastOne

    def parameters(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return self.rank * (inputs + outputs)

    def between(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return self.rank

    def problems(self, d_model: int, width: int) -> list[str]:
        """As in Dense."""
        return _saving(self.rank, d_model * width, d_model + width, d_model, width)


@dataclass(frozen=True, kw_only=True)
class BlockDense:
    """U (V x) with V of `blocks` blocks along its diagonal, each rank/blocks x inputs/blocks.

    Source   Wei et al. 2024 (arXiv 2406.16450); rank * (outputs + inputs / blocks) numbers
    """

    blocks: Annotated[int, at_least(2, " (one block is LowRank)")] = 2
    rank: AtLeastOne

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "rank",
                self.blocks < 2 or self.rank % self.blocks == 0,
                f"does not divide into blocks = {self.blocks}",
            ),
        )

    def parameters(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return self.rank * (outputs + inputs // self.blocks)

    def between(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return self.rank

    def problems(self, d_model: int, width: int) -> list[str]:
        """As in Dense."""
        wide = max(d_model + width // self.blocks, width + d_model // self.blocks)
        problems = _dividing(self.blocks, d_model, width)
        return problems or _saving(self.rank, d_model * width, wide, d_model, width)


@dataclass(frozen=True, kw_only=True)
class BlockShuffle(Bounded):
    """P2 D2 P1 D1 x: two matrices of `blocks` blocks along the diagonal, shuffled after each.

    The inner width is the smaller of input and output width. Each output depends on each input.

    Source   Wei et al. 2024 (arXiv 2406.16450), after Dao et al. 2022 (Monarch, arXiv 2204.00595);
             min(inputs, outputs) * (inputs + outputs) / blocks numbers
    """

    blocks: Annotated[int, at_least(2, " (one block is Dense)")] = 2

    def parameters(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return self.between(inputs, outputs) * (inputs + outputs) // self.blocks

    def between(self, inputs: int, outputs: int) -> int:
        """As in Dense."""
        return min(inputs, outputs)

    def problems(self, d_model: int, width: int) -> list[str]:
        """As in Dense."""
        sizes = f"with d_model = {d_model} and width = {width}"
        problems = _dividing(self.blocks, d_model, width)
        if self.parameters(d_model, width) >= d_model * width:
            problems.append(f"blocks = {self.blocks} saves nothing {sizes}")
        if self.blocks**2 > min(d_model, width):
            problems.append(
                f"blocks = {self.blocks} leaves outputs that do not depend on all inputs {sizes}: its"
                " square may be at most the smaller"
            )
        return problems


Linear = Dense | LowRank | BlockDense | BlockShuffle
Shapes = Literal["layer", "neuron"]


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Division of the units of a feed-forward block into experts of equal width, some of which act on a token.

    y = sum over the shared experts of E_e(x) + sum over the chosen ones of r p_e E_e(x), with
    r = active - shared, the r largest scores of a linear router, and p their softmax. E_e is the block of
    units e w to (e + 1) w. With r p_e = 1 and all experts the block is the dense one.

    count    experts, the shared ones included
    active   experts that act on a token, the shared ones included
    shared   the first ones, which act on every token; no class of transformers has them

    Source   the router is that of Mixtral (arXiv 2401.04088), with its softmax multiplied by r
    """

    count: Annotated[int, at_least(2)] = 8
    active: AtLeastOne = 4
    shared: Natural = 0

    def __post_init__(self) -> None:
        validate(
            self,
            ("active", self.active <= self.count, f"is more than count = {self.count}"),
            ("shared", self.shared < self.active, f"leaves none to choose: active = {self.active}"),
        )

    @property
    def routed(self) -> int:
        """Experts that are chosen from."""
        return self.count - self.shared

    @property
    def chosen(self) -> int:
        """Experts that are chosen for a token."""
        return self.active - self.shared


@dataclass(frozen=True, kw_only=True)
class SelfGuide(Bounded):
    """Self-guided training: a dense matrix beside each structured one early in training.

    The block computes a W x + (1 - a) S x, with the structured matrix S and a dense W that starts as
    the same map. a falls from 1 at the first step to 0 after `until_share` of all steps; then W is
    removed.

    law           cosine: a = (1 + cos(pi t)) / 2; linear: a = 1 - t; t the completed share of the
                  guided steps
    reduce_flop   use W in a block only with probability a, drawn for each layer and step from the
                  run's seed; a step without it uses S only

    Source   Wei et al. 2024 (arXiv 2406.16450, section 3), whose code draws for each matrix, process
             and forward pass; here all matrices of a block, all processes and all micro-batches of
             a step share one draw.
    """

    until_share: PositiveShare = 0.5
    law: Literal["cosine", "linear"] = "cosine"
    reduce_flop: bool = True


@dataclass(frozen=True, kw_only=True)
class Structured:
    """Use and training of structured matrices in the feed-forward blocks of a decoder.

    keep_first   the first layer's block stays dense, as in the released models
    guide        self-guided training; None trains the structured matrices only
    """

    keep_first: bool = True
    guide: SelfGuide | None = None


@dataclass(frozen=True, kw_only=True)
class PlainFFN:
    """down(f(up(x))): two matrices, one activation of one input.

    activation  an entry of the catalogue, or your own: a Spec, "mine.py:NAME", or a folder that
               `stamm derive` wrote. The configuration then holds the Spec itself
    memory     what is saved for the backward pass: SavePost, SavePre or Recompute
               (`model.ffn.memory=SavePre`); `stamm plan` compares them
    compat     "eps" evaluates xIELU in transformers' order and with its clamp, bit for bit
    precision  of the activation on float32 inputs: "fast" in float32, "exact" in float64, rounded
               once, which is much slower in compiled CPU code. No difference for 16-bit inputs
    shapes     trained parameters of the activation: one set per "layer", or one per "neuron", for
               which no export has a place
    linear     form of the matrices: Dense, LowRank, BlockDense or BlockShuffle, in the layers that
               `model.structured` selects. The published runs were all plain, with gelu
    experts    division of the units into experts, as `adapt.carve` finds one; None: all act on every token
    """

    MAIN_FIELD: ClassVar = "activation"

    width: AtLeastOne = 384
    activation: str | Spec = "xielu"
    shapes: Shapes = "layer"
    compat: Literal["exact", "eps"] = "exact"
    precision: Literal["fast", "exact"] = "fast"
    memory: MemoryPolicy = field(default_factory=SavePost)
    linear: Linear = field(default_factory=Dense)
    experts: Experts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        spec = self.spec
        if isinstance(spec.arity, Gated):
            raise ConfigError(f"PlainFFN.activation = {spec.name!r} needs a gate: use GatedFFN")
        validate(
            self,
            (
                "compat",
                self.compat == "exact"
                or (spec.compat is not None and spec.compat.name == self.compat),
                f"is not defined for {spec.name}",
            ),
            ("compat", self.compat == "exact" or self.shapes == "layer", "has one shape per layer"),
            _shapes_check(self.shapes, spec),
            *_expert_checks(self),
        )

    @property
    def spec(self) -> Spec:
        """The Spec of the activation."""
        return spec_of(self.activation)

    @property
    def neurons(self) -> int | None:
        """Number of values of each trained parameter of the activation; None: one."""
        return self.width if self.shapes == "neuron" else None


@dataclass(frozen=True, kw_only=True)
class GatedFFN:
    """down(f(gate(x), up(x))): three matrices, an activation of two inputs.

    activation, shapes, precision, memory, linear, experts   as in PlainFFN
    """

    MAIN_FIELD: ClassVar = "activation"

    width: AtLeastOne = 256
    activation: str | Spec = "swiglu"
    shapes: Shapes = "layer"
    precision: Literal["fast", "exact"] = "fast"
    memory: MemoryPolicy = field(default_factory=SavePost)
    linear: Linear = field(default_factory=Dense)
    experts: Experts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        spec = self.spec
        if not isinstance(spec.arity, Gated):
            raise ConfigError(f"GatedFFN.activation = {spec.name!r} has no gate: use PlainFFN")
        validate(self, _shapes_check(self.shapes, spec), *_expert_checks(self))

    @property
    def spec(self) -> Spec:
        """The Spec of the activation."""
        return spec_of(self.activation)

    @property
    def neurons(self) -> int | None:
        """As in PlainFFN."""
        return self.width if self.shapes == "neuron" else None


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A causal decoder: pre-norm RMSNorm, rotary positions, grouped-query attention.

    head_dim      None means d_model / num_heads
    qk_norm       RMSNorm over head_dim on queries and keys, before the rotation (as Apertus)
    qkv_bias      biases of queries, keys and values (as Qwen2), 0 at the start
    max_context   longest sequence in tokens; written into exports
    init_std      standard deviation of every matrix at the start
    structured    layers and training of structured feed-forward matrices (`ffn.linear`)
    """

    vocab_size: AtLeastOne = 4096
    d_model: AtLeastOne = 128
    num_layers: Annotated[int, within("[1, 10000]")] = 4
    num_heads: AtLeastOne = 4
    num_kv_heads: AtLeastOne = 2
    head_dim: AtLeastOne | None = None
    ffn: PlainFFN | GatedFFN = field(default_factory=PlainFFN)
    rope: PlainRope | Llama3Rope = field(default_factory=PlainRope)
    qk_norm: bool = True
    qkv_bias: bool = False
    norm_eps: Positive = 1e-5
    tied_embeddings: bool = False
    init_std: Positive = 0.02
    max_context: AtLeastOne = 256
    structured: Structured = field(default_factory=Structured)

    def __post_init__(self) -> None:
        sizes = self.d_model > 0 and self.ffn.width > 0
        linear = self.ffn.linear.problems(self.d_model, self.ffn.width) if sizes else []
        guide = self.structured.guide
        num_structured = self.num_layers - self.structured.keep_first
        whole = self.head_dim is not None or self.d_model % max(self.num_heads, 1) == 0
        validate(
            self,
            ("d_model", whole, f"does not divide into num_heads = {self.num_heads} heads"),
            (
                "num_kv_heads",
                self.num_heads % max(self.num_kv_heads, 1) == 0,
                f"does not divide num_heads = {self.num_heads}",
            ),
            (
                "head_dim" if self.head_dim is not None else "d_model",
                not whole or self.num_heads < 1 or self.head_width % 2 == 0,
                "gives heads of odd width, which cannot be rotated in pairs",
            ),
            ("ffn", not linear, f"has a linear that does not fit: {'; '.join(linear)}"),
            (
                "structured",
                guide is None or not isinstance(self.ffn.linear, Dense),
                "has a guide, which ffn.linear = Dense() does not use",
            ),
            (
                "num_layers",
                num_structured > 0 or isinstance(self.ffn.linear, Dense),
                "leaves no structured layer: structured.keep_first keeps the first one dense",
            ),
        )

    def merged(self) -> DecoderConfig:
        """The same decoder with dense matrices only, as it is exported."""
        ffn = replace(self.ffn, linear=Dense())
        return replace(self, ffn=ffn, structured=Structured())

    def ffn_of(self, layer: int) -> PlainFFN | GatedFFN:
        """The feed-forward block of a layer, from 0: dense where `structured` keeps it dense."""
        if layer > 0 or not self.structured.keep_first:
            return self.ffn
        return replace(self.ffn, linear=Dense())

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_dim if self.head_dim is not None else self.d_model // self.num_heads


def _shapes_check(shapes: Shapes, spec: Spec) -> tuple[str, bool, str]:
    useful = shapes == "layer" or bool(spec.trainable)
    return ("shapes", useful, f"changes nothing: {spec.name} has no trained parameters")


def _expert_checks(ffn: PlainFFN | GatedFFN) -> tuple[tuple[str, bool, str], ...]:
    experts = ffn.experts
    if experts is None:
        return ()
    count, linear = experts.count, type(ffn.linear).__name__
    return (
        (
            "width",
            ffn.width % count == 0,
            f"does not divide into experts.count = {count} experts: set a divisor of it",
        ),
        ("linear", isinstance(ffn.linear, Dense), f"{linear} cannot be divided into experts"),
        ("shapes", ffn.shapes == "layer", "must be 'layer' with experts"),
    )


def _dividing(blocks: int, d_model: int, width: int) -> list[str]:
    sizes = {"d_model": d_model, "width": width}
    return [
        f"blocks = {blocks} does not divide {name} = {size}"
        for name, size in sizes.items()
        if size % blocks
    ]


def _saving(rank: int, dense: int, per_rank: int, d_model: int, width: int) -> list[str]:
    """A problem when `rank` times `per_rank` numbers are no fewer than those of the dense matrix."""
    most = (dense - 1) // per_rank
    if rank <= most:
        return []
    sizes = f"with d_model = {d_model} and width = {width}"
    return [f"rank = {rank} saves nothing: {sizes} it may be at most {most}"]
