"""Training whose bits are the same on every x86-64 processor with AVX2: `engine.portable_bits`.

Three libraries choose code by the processor: torch by its vectors, MKL by its vendor too (products, and exp, log,
sqrt, sin and cos of tensors), oneDNN. The environment `base.processor.PORTABLE` fixes the first two. Products, which
MKL computes slowly there, are those of `models.fixed_order_products`; oneDNN is off, and attention is the fused kernel
or plain products. Whether two machines really compute alike is measured: `arithmetic` of both is compared.

Checked  tests/unit/pretrain/test_portable_training.py
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build, direct
from stamm.base.errors import ConfigError, RunError
from stamm.base.processor import PORTABLE, cpu_capability, is_portable
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.determinism import operation_threads
from stamm.models.ffn import ffn_activation
from stamm.models.fixed_order_products import fixed_order_products
from stamm.models.fused_attention import fused_attention, unavailable_reason


def check_portable(device: torch.device, processes: int) -> None:
    """Check that a run with portable bits can train in this process.

    Raises   ConfigError on a GPU and for several processes; RunError for a process that began without the
             environment, a processor without AVX2, torch without MKL, and a machine without a compiler
    """
    if device.type != "cpu" or processes > 1:
        what = f"{processes} processes" if processes > 1 else "a GPU"
        raise ConfigError(
            f"engine.portable_bits is for one process on a CPU, and this run has {what}",
            fix="Set engine.device=cpu and start one process, or set engine.portable_bits=false",
        )
    if (reason := why_not_portable()) is not None:
        raise RunError(f"engine.portable_bits {reason}", fix="Set engine.portable_bits=false")
    if not is_portable():
        words = " ".join(f"{name}={value}" for name, value in PORTABLE.items())
        raise RunError(
            "engine.portable_bits was set after torch had been loaded with other vector instructions",
            fix=f"Start the process with {words}",
        )


def why_not_portable() -> str | None:
    """The reason why this machine cannot have portable bits, or None: "needs a processor with AVX2"."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "needs torch with MKL"
    if cpu_capability() not in ("AVX2", "AVX512"):
        return "needs a processor with AVX2"
    reason = build.unavailable_reason() or unavailable_reason()
    return None if reason is None else f"needs stamm's own kernels: {reason}"


@contextlib.contextmanager
def portable_bits(engine: EngineConfig) -> Iterator[None]:
    """Context of a training run: portable arithmetic where `engine` asks for it, in the whole process."""
    if not engine.portable_bits:
        yield
        return
    direct.prepare()  # else the calls of activations change in the middle of the run
    attention: Any = torch.backends.cuda  # its switch is that of CPUs, too, whose kernel calls MKL
    onednn: Any = torch.backends.mkldnn
    before = attention.flash_sdp_enabled(), onednn.enabled
    attention.enable_flash_sdp(False)
    onednn.enabled = False
    try:
        with fixed_order_products():
            yield
    finally:
        attention.enable_flash_sdp(before[0])
        onednn.enabled = before[1]


def arithmetic(model: DecoderConfig) -> str:
    """SHA-256 of what this process computes in probes of all that training of `model` uses.

    Equal on two machines: training has the same bits there. It covers libraries and compilers too.

    Raises   RunError as `check_portable`
    """
    check_portable(torch.device("cpu"), 1)
    digest = hashlib.sha256()
    engine = EngineConfig(portable_bits=True, compile="off")
    with portable_bits(engine), operation_threads(1), torch.enable_grad():
        for tensor in _probes(model):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _probes(model: DecoderConfig) -> Iterator[Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(61, 403, generator=random)
    y = torch.randn(403, 67, generator=random)
    above = x.abs() + 1e-3
    yield from (x, x @ y, torch.addmm(y[0], x, y), (x.double() @ y.double())[0])
    names = ["exp", "sin", "cos", "tanh", "erf", "erfc", "sigmoid"]
    for function in (F.softplus, *(getattr(torch, name) for name in names)):
        yield from (function(x), function(x.double()))
    for function in (torch.log, torch.log2, torch.sqrt, torch.rsqrt, torch.log1p, torch.reciprocal):
        yield from (function(above), function(above.double()))
    yield from (10_000.0**x, above**1.5, 0.9 ** x.double(), x.softmax(-1), x.log_softmax(-1))
    yield from (x.logsumexp(-1), x.sum(), x.mean(0), x.double().sum(-1), x.var(-1), x.cumsum(0))
    yield from (
        *torch._foreach_norm([x, y]),
        x.lerp(above, 0.3),
        x.addcdiv(above, above, value=0.1),
    )
    yield torch.linalg.svdvals(x[:40, :50].double())
    steps = [math.cos(n / 7) + math.exp(-n / 9) + math.log(n + 2) ** 0.3 for n in range(50)]
    yield torch.tensor(steps, dtype=torch.float64)
    q = torch.randn(1, 2, 90, 16, generator=random, requires_grad=True)
    masked = F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(90, 90).tril().log())
    for attended in (fused_attention(q, q, q), masked):
        yield from (attended, *torch.autograd.grad(attended.square().sum(), q))
    for ffn in dict.fromkeys(map(model.ffn_of, range(model.num_layers))):
        module = ffn_activation(ffn)
        width = ffn.neurons or 96
        inputs = [
            (3 * torch.randn(37, width, generator=random)).requires_grad_()
            for _ in range(2 if isinstance(ffn, GatedFFN) else 1)
        ]
        activated = module(*inputs)
        wanted = [*inputs, *(p for p in module.parameters() if p.requires_grad)]
        yield from (activated, *torch.autograd.grad(activated.square().sum(), wanted))
