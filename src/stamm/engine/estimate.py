"""Estimate of a training step's memory and traffic, from its configuration alone. No torch here.

Memory is that of one process on its device: of the first process, whose shards are the largest.
Counted are tensors, sharded as in `engine.parallel`: matrices, their biases, gradients and moments over
the processes of a replica, other vectors whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stamm.base.errors import ConfigError
from stamm.engine.config import EIGHT_BITS, Precision
from stamm.engine.float8_support import layer_matrices
from stamm.models.config import (
    DecoderConfig,
    GatedFFN,
    PlainFFN,
    SavePost,
)
from stamm.models.flops import factor_bytes, inner_bytes
from stamm.models.lora_config import Lora
from stamm.models.parameter_shapes import adapter_shapes, parameter_shapes, trained_shapes
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.param_group_rules import Group, grouped


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """An accelerator by its vendor's data sheet.

    flops    dense bf16 peak FLOP/s, accumulated in float32
    memory   bytes; the gigabytes of the sheet as 10^9, which for most leaves a reserve for the
             driver, NCCL and fragmentation
    bytes_per_s   memory bandwidth
    capability    CUDA compute capability
    """

    flops: float
    memory: int
    bytes_per_s: float
    capability: tuple[int, int]
    source: str


DEVICES = {
    "A100": DeviceKind(
        flops=312e12, memory=80 * 10**9, bytes_per_s=2.039e12, capability=(8, 0),
        source="NVIDIA A100 80GB data sheet",
    ),
    "H100": DeviceKind(
        flops=989e12, memory=80 * 10**9, bytes_per_s=3.35e12, capability=(9, 0),
        source="NVIDIA H100 SXM data sheet",
    ),
    "H200": DeviceKind(
        flops=989e12, memory=141 * 10**9, bytes_per_s=4.8e12, capability=(9, 0),
        source="NVIDIA H200 SXM data sheet",
    ),
    "GH200": DeviceKind(
        flops=989e12, memory=96 * 10**9, bytes_per_s=4.0e12, capability=(9, 0),
        source="NVIDIA GH200 data sheet, with HBM3",
    ),
    "B200": DeviceKind(
        flops=2250e12, memory=180 * 10**9, bytes_per_s=8.0e12, capability=(10, 0),
        source="NVIDIA DGX B200 data sheet",
    ),
}  # fmt: skip
PEAK_FLOPS = {name: kind.flops for name, kind in DEVICES.items()}
# Apertus 8B: 6.96k tokens/s per GH200 (arXiv 2509.14233) times the 48.3 GFLOP that training_flops
# counts a token, over the peak. With the masked half of attention and the embedding it is 0.385.
ASSUMED_UTILISATION = 0.34
# Apertus 8B: 105 GB, for which training waits about 40 s (arXiv 2509.14233 and its scripts).
ASSUMED_SAVE_BYTES_PER_S = 105e9 / 40
# torch.distributed.checkpoint copies what it saves to the CPU, and safetensors writes it down in
# memory twice before it goes to disk (torch 2.13, safetensors 0.8).
_COPIES = 3
# Chunk of float32 logits, as in losses/linear_cross_entropy.py.
_CACHE, _FEWEST, _MOST, _MOST_GPU = 2**20, 128, 64 * 2**20, 2**30
_SHOWN = 40  # characters of an invalid device
# Elements of a batch of AdEMAMix over lists (optim/ademamix.py).
_AT_ONCE = 2**22


@dataclass(frozen=True)
class Devices:
    """A number of equal accelerators ("1024xGH200")."""

    count: int
    name: str

    @property
    def peak_flops(self) -> float:
        """Dense bf16 FLOP/s of all of them together."""
        return self.count * PEAK_FLOPS[self.name]

    @property
    def memory(self) -> int:
        """Bytes of one of them."""
        return DEVICES[self.name].memory


def parse_devices(text: str) -> Devices:
    """Devices from "8xH200".

    Raises   ConfigError for another form or an unknown device.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,8})x([A-Za-z0-9]+)", text)
    if not match or match.group(2).upper() not in DEVICES:
        raise ConfigError(
            f"--gpus {text[:_SHOWN]!r} is not a number and a known device",
            fix=f"Write for example 8xH200. Known: {', '.join(sorted(DEVICES))}",
        )
    return Devices(int(match.group(1)), match.group(2).upper())


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Division of a step over processes, and how it is computed.

    data, context, tensor   processes in each direction, as in `engine.config.Parallel`
    replicas                groups of data-parallel processes; each group holds all shards
    gpu                     whether it runs on GPUs
    micro_batches           of a step; the accumulated gradients exist during the last
    at_once                 number of them in flight; each has gradients beside the accumulated ones
    compiled, recompute     whether layers are compiled, and recomputed in the backward pass
    dense                   whether attention uses a T x S mask
    background              whether checkpoints are written asynchronously
    guided                  whether structured matrices have their dense guides
    lora                    adapters that are trained in place of all parameters
    """

    data: int = 1
    context: int = 1
    tensor: int = 1
    replicas: int = 1
    gpu: bool = False
    micro_batches: int = 1
    at_once: int = 1
    compiled: bool = False
    recompute: bool = False
    dense: bool = True
    background: bool = False
    guided: bool = False
    lora: Lora | None = None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Memory at one moment of a step, in bytes.

    gathered     unsharded weights, in the precision of products; 0 in one float32 process
    kept         activations for the backward pass
    working      temporary results and gradients
    """

    name: str
    weights: int
    moments: int
    gradients: int = 0
    gathered: int = 0
    kept: int = 0
    working: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        held = self.weights + self.moments + self.gradients
        return held + self.gathered + self.kept + self.working


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one process in bytes: each part at its largest, and the timeline of a step.

    weights       float32, sharded: updated by the optimizer. With products in bfloat16 these are the
                  master weights, and `gathered` is what is multiplied
    gradients     float32, sharded
    moments       optimizer state, float32, sharded
    activations   kept for the backward pass of the micro-batches in flight, the mask of dense attention and the
                  gradients that the loss forms in its forward pass included
    gathered      unsharded weights of the layers in use
    host          additional CPU memory while a checkpoint is written; 0 on a CPU, where it is part of
                  the timeline
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    gathered: int
    host: int
    timeline: tuple[Phase, ...]

    @property
    def fullest(self) -> Phase:
        """The moment with the peak."""
        return max(self.timeline, key=lambda moment: moment.total)

    @property
    def peak(self) -> int:
        """Peak memory."""
        return self.fullest.total


def estimate_memory(
    model: DecoderConfig,
    optimizer: OptimizerConfig,
    sequences: int,
    context: int,
    precision: Precision,
    setting: Setting | None = None,
) -> Memory:
    """Memory of one process that trains on micro-batches of `sequences` sequences.

    sequences   per data-parallel rank; context- and tensor-parallel processes divide them
    precision   of products and activations; weights, gradients and moments are float32
    Edge        on a CPU without a C++ compiler the heap is fragmented: resident memory was up to two
                thirds above the estimate (`engine.cpu_allocator`)
    Checked     tests/unit/engine/test_estimate.py (against what autograd keeps);
                bench/plan_memory.py (against the peak of training processes)
    """
    how = setting or Setting()
    width = 4 if precision == "float32" else 2
    shapes = parameter_shapes(model, guides=how.guided)
    trained = trained_shapes(model, guides=how.guided, lora=how.lora)
    pieces = {name: _piece(name, shape, how) for name, shape in (shapes | trained).items()}
    weights = 4 * sum(pieces.values())
    updated = {name: pieces[name] for name in trained}
    gradients = 4 * sum(updated.values())
    moments = 4 * _moments(grouped(optimizer, trained), pieces)
    # One process with products in float32 has the plain model: nothing is gathered or sent.
    cut = how.data * how.context * how.tensor > 1 or width == 2
    output = model.vocab_size * model.d_model
    ends = output if model.tied_embeddings else 2 * output
    layer, learned = (_largest_layer(s) // how.tensor for s in (shapes | trained, trained))
    # Without a gradient of the output matrix, none is formed or sent.
    output, output_sent = (0, 0) if how.lora else (output, (width + 4) * ends)
    tokens = sequences * context // (how.context * how.tensor)
    row = width * model.d_model * tokens
    kept = _kept(model, sequences, context, width, how)
    base, at_once = _Base(weights, moments), how.at_once
    forward = {
        "gradients": gradients if how.micro_batches > how.at_once else 0,
        # While one layer is computed with, the weights of the next are being gathered.
        "gathered": width * (ends + min(2, model.num_layers) * layer) if cut else 0,
    }
    again = _layer(model, context, width, how) * tokens if how.recompute else 0
    tail = _norm(model.d_model, 1, width, replace(how, compiled=False)) * tokens
    timeline = [
        base.at(
            "the loss",
            **forward,
            kept=at_once * kept,
            working=at_once * _logits(model, tokens, width, gpu=how.gpu),
        ),
        # Both gradients of the loss are scaled into new ones, and that of the matrix is cast.
        base.at(
            "the backward pass begins",
            **forward,
            kept=at_once * kept,
            working=at_once * (row + (4 if width == 4 else 6) * output),
        ),
        base.at(
            "the backward pass of the last layer",
            **forward,
            kept=at_once * (kept - 4 * output - row - tail),
            working=at_once * (width * output + row + again + _block_work(model, tokens, width))
            + ((width + 4) * learned if cut else 0)
            + (_casts(model, tokens, how) if precision in EIGHT_BITS else 0),
        ),
        base.at(
            "the backward pass ends",
            gradients=gradients if at_once == 1 else (1 + at_once) * gradients,
            gathered=width * ends if cut else 0,
            working=output_sent if cut else 4 * output * model.tied_embeddings,
        ),
        base.at(
            "the optimizer's step",
            gradients=gradients,
            working=_update(optimizer, trained, updated),
        ),
    ]
    saved = gradients + moments  # in float32, as the gradients of what is trained
    if how.background and not how.gpu:
        timeline = [replace(m, working=m.working + _COPIES * saved) for m in timeline]
    elif not how.gpu:
        timeline.append(base.at("a checkpoint is written", working=(_COPIES - 1) * saved))
    return Memory(
        weights=weights,
        gradients=gradients,
        moments=moments,
        activations=at_once * kept,
        gathered=forward["gathered"],
        host=_COPIES * saved if how.gpu else 0,
        timeline=tuple(timeline),
    )


def checkpoint_bytes(
    model: DecoderConfig,
    optimizer: OptimizerConfig,
    guides: bool = False,
    lora: Lora | None = None,
) -> int:
    """Size of one checkpoint: trained weights and their moments in float32, a tied matrix once.

    guides   whether the dense guides of structured matrices are included
    lora     adapters that are trained in place of all parameters
    Checked  tests/unit/engine/test_estimate.py (against the files that are written)
    """
    shapes = trained_shapes(model, guides=guides, lora=lora)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return 4 * (sum(sizes.values()) + _moments(grouped(optimizer, shapes), sizes))


def traffic(
    model: DecoderConfig,
    optimizer: OptimizerConfig,
    context: int,
    precision: Precision,
    setting: Setting | None = None,
) -> tuple[int, int]:
    """Approximate memory traffic besides products, in bytes: per token, per update.

    Activations that layers keep are written and read once, and so is their gradient; logits are read
    or written five times, in float32. An update reads and writes weights and moments, and reads or
    writes gradients four times, among others for their norm.
    """
    how = setting or Setting()
    width = 4 if precision == "float32" else 2
    layers = sum(_layer(model, context, width, how, n) for n in range(model.num_layers))
    numbers = sum(math.prod(shape) for shape in trained_shapes(model, lora=how.lora).values())
    update = 2 * checkpoint_bytes(model, optimizer, lora=how.lora) + 4 * 4 * numbers
    return 4 * layers + 5 * 4 * model.vocab_size, update


def optimizer_groups(
    model: DecoderConfig, optimizer: OptimizerConfig, lora: Lora | None = None
) -> list[Group]:
    """Parameter groups of the model, or of its adapters.

    Raises   ConfigError for a rule that matches no parameter
    """
    return grouped(optimizer, trained_shapes(model, lora=lora))


@dataclass(frozen=True)
class _Base:
    """Memory that is constant over a step."""

    weights: int
    moments: int

    def at(self, name: str, **parts: int) -> Phase:
        return Phase(name=name, weights=self.weights, moments=self.moments, **parts)


def _piece(name: str, shape: tuple[int, ...], how: Setting) -> int:
    """Number of elements of a parameter in the shard of the first process."""
    if len(shape) < 2 and not name.endswith("_proj.bias"):
        return math.prod(shape)
    rows, columns = (*shape, 1)[:2]
    ways = max(how.data // how.replicas, 1) * how.context
    if ".layers." not in name:
        ways *= how.tensor
    elif name.split(".")[-2] in ("o_proj", "down_proj"):
        columns = -(-columns // how.tensor)
    else:
        rows = -(-rows // how.tensor)
    return -(-rows // ways) * columns


def _moments(groups: Iterable[Group], sizes: Mapping[str, int]) -> int:
    """Numbers of 32 bits that the optimizer keeps for shards of these sizes."""
    return round(
        sum(group.state_per_parameter * sizes[name] for group in groups for name in group.sizes)
    )


def _largest_layer(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of elements in the matrices of the largest layer."""
    numel_by_layer: dict[str, int] = {}
    for name, shape in shapes.items():
        if ".layers." in name and len(shape) >= 2:
            layer = name.split(".")[2]
            numel_by_layer[layer] = numel_by_layer.get(layer, 0) + math.prod(shape)
    return max(numel_by_layer.values(), default=0)


def _kept(model: DecoderConfig, sequences: int, context: int, width: int, how: Setting) -> int:
    """Bytes that one process keeps for the backward pass of `sequences` sequences.

    The layers; the last norm, which is not compiled; the gradients of the last hidden states and of
    the output matrix, in float32 and unsharded; the token ids; the attention mask, one for all
    layers. Logits are never kept; rotary angles are too few to count.
    """
    tokens = sequences * context // (how.context * how.tensor)
    d = model.d_model
    if how.recompute:
        layers = model.num_layers * width * d
    else:
        layers = sum(_layer(model, context, width, how, n) for n in range(model.num_layers))
    tail = _norm(d, 1, width, replace(how, compiled=False)) + width * d + 8
    mask = sequences * context // how.context * context * width if how.dense else 0
    output = 0 if how.lora else 4 * model.vocab_size * d
    return tokens * (layers + tail) + output + mask


def _layer(
    model: DecoderConfig, context: int, width: int, how: Setting, layer: int | None = None
) -> int:
    """Bytes per token that a layer keeps for its backward pass; by default the last layer.

    Two norms of the hidden state and the inputs of the matrices after them, which have the tokens of
    all tensor-parallel processes; the norms of queries and keys; rotated queries, attention outputs
    and a float32 log-sum-exp per head, or two numbers where attention is fused; rotated keys and
    values of the tokens of all context-parallel processes; the inner activations of the feed-forward
    block.
    """
    ffn = model.ffn_of(model.num_layers - 1 if layer is None else layer)
    d, e = model.d_model, model.head_width
    queries, keys = model.num_heads * e, model.num_kv_heads * e
    kept = 2 * _norm(d, 1, width, how) + 2 * width * d * how.tensor
    if model.qk_norm:
        heads = model.num_heads + model.num_kv_heads
        kept += _norm(queries + keys, heads, width, how)
    kept += width * (2 * queries + 2 * keys * how.context)
    kept += (4 if how.dense or how.gpu else 8) * model.num_heads
    if how.compiled and isinstance(ffn, PlainFFN) and isinstance(ffn.memory, SavePost):
        inner = 2 * width * ffn.width  # whatever the order of evaluation
    else:
        inner = inner_bytes(ffn, width)
    low = len(adapter_shapes(model, how.lora)) // 2 // model.num_layers if how.lora else 0
    low *= how.lora.rank if how.lora else 0  # A x of every adapter
    return kept + inner + factor_bytes(d, ffn, width) + width * low


def _norm(numbers: int, rows: int, width: int, how: Setting) -> int:
    """Bytes that RMSNorm keeps: its input and one scale per row in float32, and the normalised input.

    Compiled: the input in its own dtype, and the scale. Frozen: not the normalised input.
    """
    if how.compiled:
        return 4 * rows + width * numbers
    return 4 * rows + (4 if how.lora else 4 + width) * numbers


def _logits(model: DecoderConfig, tokens: int, width: int, *, gpu: bool) -> int:
    """Bytes of the logits of one chunk of the loss: in float32 and in the dtype of the product, on a GPU
    in the latter alone.
    """
    row = 4 * model.vocab_size
    if gpu:
        return min(max(_MOST_GPU // row, 1), tokens) * width * model.vocab_size
    most = min(max(_CACHE // row, _FEWEST), _MOST // row)
    return min(max(most, 1), tokens) * (row if width == 4 else 2 * row)


def _block_work(model: DecoderConfig, tokens: int, width: int) -> int:
    """Bytes of gradients inside a feed-forward block, beyond the activations already freed."""
    inner = 2 if isinstance(model.ffn, GatedFFN) else 1
    return inner * width * model.ffn.width * tokens


def _casts(model: DecoderConfig, tokens: int, how: Setting) -> int:
    """Bytes of the 8-bit copies of a product's operands.

    Eager mode also has one of them in float32, while it is scaled and clamped.
    """
    seen, most = tokens * how.tensor, 0
    for rows, columns in layer_matrices(model, how.tensor).values():
        _, middle, largest = sorted((seen * rows, seen * columns, rows * columns))
        most = max(most, middle + largest + (0 if how.compiled else 2 * 4 * largest))
    return most


def _update(
    optimizer: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], pieces: Mapping[str, int]
) -> int:
    """Temporary bytes of an update; none for a fused one."""
    largest = max(pieces.values())
    groups = grouped(optimizer, shapes)
    if isinstance(optimizer, AdEMAMix):
        lists = optimizer.implementation == "foreach"
        return 2 * 4 * max(largest, min(_AT_ONCE, sum(pieces.values()))) if lists else 0
    # AdamW's root of the mean square over a group; Muon's copies of a whole matrix. A user's
    # optimizer is counted as AdamW.
    root = max(
        (sum(pieces[n] for n in group.sizes) for group in groups if group.method != "muon"),
        default=0,
    )
    whole = max(
        (size for group in groups if group.method == "muon" for size in group.sizes.values()),
        default=0,
    )
    return max(4 * root, _MUON * whole)


_MUON = 24  # bytes per element: about three copies in float32 and six in bfloat16
