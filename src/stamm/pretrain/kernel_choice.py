"""Kernel choice of a training run on a CPU: generated kernels or torch's own, by measurement.

Both meet the same error bounds but differ in bits. A run chooses once, before its first step, on
the main process for all; the manifest records the choice, and the run resumes with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build, direct, gpu
from stamm.activations.fused.operation import SMALLEST, cpu_sources, use_eager
from stamm.base.autotune import Measurement, measured
from stamm.engine.attention_support import may_fuse
from stamm.engine.compile import missing_to_compile, separate_inductor_cache
from stamm.engine.distributed import DistributedContext
from stamm.engine.pieces import pieces_of, threads_of_operations
from stamm.models import fused_attention
from stamm.models.attention_mask import document_mask
from stamm.models.config import GatedFFN, PlainFFN
from stamm.models.determinism import operation_threads
from stamm.models.ffn import ffn_activation
from stamm.pretrain.config import DecoderTrainingConfig

Implementation = Literal["stamm", "torch"]
ATTENTION = "attention"
# Activations are compared with torch.compile, which takes seconds to compile: only for runs in which
# all layers together compute more elements than this (a minute and more).
WORTH_MEASURING = 2**36
_PROBED = 2**20  # elements of a probe of an activation
_DOCUMENTS = 2  # per row of a probe of attention: fewer and longer than in most corpora

Choices = dict[str, Implementation]


def activation_key(ffn: PlainFFN | GatedFFN) -> str:
    """Key of a feed-forward block's activation in the choices."""
    return f"activation {ffn.spec.name}, {ffn.precision}"


def choose_kernels(config: DecoderTrainingConfig, num_sequences: int) -> Choices:
    """The implementation of attention and of each activation of `config.model` on this CPU.

    num_sequences   length of the run
    Edge     "stamm" where nothing is measured, because the run is short or the kernel cannot be
             built: where such a kernel is not supported, torch's function is used instead
    """
    engine, model = config.engine, config.model
    blocks = {activation_key(ffn): ffn for ffn in map(model.ffn_of, range(model.num_layers))}
    attends = may_fuse(engine, model)
    names = [*([ATTENTION] if attends else []), *blocks]
    if engine.portable_bits:  # a measurement would choose by the machine
        return dict.fromkeys(names, "stamm")
    if engine.kernels != "auto":
        return dict.fromkeys(names, engine.kernels)
    chosen: Choices = dict.fromkeys(names, "stamm")
    if attends and fused_attention.unavailable_reason() is None:
        chosen[ATTENTION] = _faster(_attention(model.num_heads, config.context, model.head_width))
    elements = num_sequences * config.context * model.num_layers
    for key, ffn in blocks.items():
        worth = elements * ffn.width >= WORTH_MEASURING
        if worth and build.unavailable_reason() is None:
            compiled = engine.compile == "layers" and not missing_to_compile()
            if not compiled:
                direct.prepare()  # so that what is measured is what the run computes with
            short = engine.precision != "float32"
            dtype = torch.bfloat16 if short else torch.float32
            chosen[key] = _faster(_activation(key, ffn, dtype, compiled))
    return chosen


def choices_of_run(
    config: DecoderTrainingConfig, num_sequences: int, world: DistributedContext
) -> Choices:
    """`choose_kernels` with the threads that an operation of the run has; for the main process."""
    threads = config.engine.threads
    if world.mesh is None:
        largest = config.largest_micro_batch(max(stage.size for stage in config.batch))
        pieces = pieces_of(config.engine, largest, config.context)
        threads = threads_of_operations(threads, pieces)
    with operation_threads(threads):
        return choose_kernels(config, num_sequences)


def prepare_kernels(config: DecoderTrainingConfig, choices: Choices) -> str | None:
    """Compile or load the kernels of `choices` before the first step.

    Returns  why the attention kernel of `choices` cannot be used in this process, else None
    """
    generated = may_fuse(config.engine, config.model) and choices.get(ATTENTION) != "torch"
    return fused_attention.unavailable_reason() if generated else None


def activation_backend(
    config: DecoderTrainingConfig, choices: Choices, device: torch.device
) -> str:
    """The implementation of the activation of `config.model` on `device`, as a line of the log."""
    ffn = config.model.ffn
    why = "engine.kernels" if config.engine.kernels == "torch" else "measured to be faster"
    if choices.get(activation_key(ffn)) != "torch":
        why = (gpu if device.type == "cuda" else build).unavailable_reason() or ""
    if why:
        return f"Activation {ffn.spec.name}: torch functions ({why})."
    small = f"; torch functions for inputs of fewer than {SMALLEST:,} elements"
    on_gpu = small if device.type == "cuda" else ""
    return f"Activation {ffn.spec.name}: fused kernel, compiled at first use{on_gpu}."


@contextlib.contextmanager
def chosen_kernels(
    config: DecoderTrainingConfig, choices: Choices
) -> Iterator[DecoderTrainingConfig]:
    """A context in which activations use the kernels of `choices`; yields `config` with their attention.

    Edge     a missing choice, as in the manifest of an older run, is "stamm"
    """
    eager: list[str] = []
    for ffn in map(config.model.ffn_of, range(config.model.num_layers)):
        if choices.get(activation_key(ffn)) == "torch":
            eager += ffn_activation(ffn).forms
    use_eager(eager, eager=True)
    try:
        if choices.get(ATTENTION) == "torch":
            config = replace(config, engine=replace(config.engine, attention="dense"))
        yield config
    finally:
        use_eager(eager, eager=False)


def _faster(measurement: Measurement) -> Implementation:
    return "torch" if measurement.chosen == "torch" else "stamm"


def _attention(heads: int, length: int, width: int) -> Measurement:
    """Forward and backward of one row of documents, the mask given."""
    heads = min(heads, 2 * torch.get_num_threads())
    random = torch.Generator().manual_seed(0)
    q, k, v, d_o = (torch.randn(1, heads, length, width, generator=random) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    position = torch.arange(length)
    document = (position * _DOCUMENTS // length)[None]
    mask = document_mask(document, document, position, position, torch.float32)

    def step(attend: Callable[[], Tensor]) -> None:
        torch.autograd.grad(attend(), (q, k, v), d_o)

    arms = {
        "stamm": partial(step, lambda: fused_attention.fused_attention(q, k, v, document)),
        "torch": partial(step, lambda: F.scaled_dot_product_attention(q, k, v, mask)),
    }
    return measured(
        f"attention float32 T={length} E={width} H={heads}",
        arms,
        content=build.content([fused_attention.source()]),
        processor=build.processor(),
    )


def _activation(
    key: str, ffn: PlainFFN | GatedFFN, dtype: torch.dtype, compiled: bool
) -> Measurement:
    """Forward and backward of the activation, against torch's functions, compiled or not."""
    module = ffn_activation(ffn)
    forms = module.forms
    random = torch.Generator().manual_seed(0)
    shape = (max(_PROBED // ffn.width, 1), ffn.width)
    count = 2 if isinstance(ffn, GatedFFN) else 1
    made = [torch.randn(shape, generator=random).to(dtype) for _ in range(count + 1)]
    *inputs, weight = made
    for x in inputs:
        x.requires_grad_()
    rival: Callable[..., Tensor] = module
    if compiled:
        separate_inductor_cache()
        rival = torch.compile(module, fullgraph=True, dynamic=False)

    def step(call: Callable[..., Tensor], eager: bool) -> None:
        use_eager(forms, eager=eager)
        try:
            torch.autograd.grad(call(*inputs), [*inputs, *module.parameters()], weight)
        finally:
            use_eager(forms, eager=False)

    arms = {"stamm": partial(step, module, False), "torch": partial(step, rival, True)}
    name = str(dtype).removeprefix("torch.")
    against = "compiled" if compiled else "eager"
    return measured(
        f"{key} {name} {shape[0]}x{shape[1]}, torch {against}",
        arms,
        content=build.content(cpu_sources(forms, dtype)),
        processor=build.processor(),
    )
