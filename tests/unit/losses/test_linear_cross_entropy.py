"""The chunked loss against plain formulas in float64, and what it takes to compute it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from stamm.base.errors import ConfigError, DataError
from stamm.losses import linear_cross_entropy as module
from stamm.losses.linear_cross_entropy import chunk_tokens, linear_cross_entropy

CPU = torch.device("cpu")


def _case(
    n: int = 37, d: int = 12, v: int = 29, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, matrix, targets of which some are -100, and scales of which some are 0."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(v, d, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(0, v, (n,), generator=generator)
    target[::7] = -100
    scale = torch.rand(n, generator=generator) + 0.1
    scale[1::5] = 0.0
    return hidden, weight, target, scale


def _plain(
    hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor, z_loss: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, nats and both gradients, in float64 and all logits at once."""
    hidden = hidden.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    logits = hidden @ weight.T
    nats = F.cross_entropy(logits, target, reduction="none", ignore_index=-100)
    learned = (target != -100) * scale.double()
    loss = (learned * (nats + z_loss * logits.logsumexp(dim=1) ** 2)).sum()
    loss.backward()
    assert hidden.grad is not None and weight.grad is not None
    return loss.detach(), (nats * (learned != 0)).detach(), hidden.grad, weight.grad


def _set_chunk(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(module, "chunk_tokens", lambda *_: tokens)


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("tokens", [1, 5, 1000])
def test_value_and_gradients_are_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, tokens: int, z_loss: float
) -> None:
    _set_chunk(monkeypatch, tokens)
    hidden, weight, target, scale = _case()
    loss, nats, log_z = linear_cross_entropy(hidden, weight, target, scale, z_loss=z_loss)
    (3.0 * loss).backward()
    plain, plain_nats, d_hidden, d_weight = _plain(hidden, weight, target, scale, z_loss)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(nats.double(), plain_nats, rtol=1e-5, atol=1e-6)
    plain_z = (hidden.double() @ weight.double().T).logsumexp(dim=1) * (plain_nats != 0)
    torch.testing.assert_close(log_z.double(), plain_z, rtol=1e-5, atol=1e-6)
    assert not nats.requires_grad and not log_z.requires_grad
    torch.testing.assert_close(hidden.grad, 3 * d_hidden.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weight.grad, 3 * d_weight.float(), rtol=1e-5, atol=1e-5)


def test_float64_stays_float64() -> None:
    hidden, weight, target, scale = _case(dtype=torch.float64)
    loss, nats, _ = linear_cross_entropy(hidden, weight, target, scale, z_loss=0.1)
    plain, plain_nats, _, _ = _plain(hidden, weight, target, scale, 0.1)
    torch.testing.assert_close(loss, plain, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(nats, plain_nats, rtol=1e-13, atol=1e-14)

    def value(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, target, scale, z_loss=0.1).loss

    assert torch.autograd.gradcheck(value, (hidden, weight))


def test_without_scales_it_is_the_sum_over_tokens_that_are_not_ignored() -> None:
    hidden, weight, target, _ = _case()
    loss = linear_cross_entropy(hidden, weight, target).loss
    plain = F.cross_entropy(hidden @ weight.T, target, reduction="sum")
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0.0)
    target[target == -100] = 3
    loss = linear_cross_entropy(hidden, weight, target, ignore_index=3).loss
    plain = F.cross_entropy(hidden @ weight.T, target, reduction="sum", ignore_index=3)
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0.0)


def test_bfloat16_is_no_worse_than_plain_bfloat16() -> None:
    hidden, weight, target, scale = _case(n=300, d=64, v=501, dtype=torch.bfloat16)
    scale = (target != -100) * (scale != 0) / 200.0
    _, _, d_hidden, d_weight = _plain(hidden, weight, target, scale)
    nats = F.cross_entropy((hidden @ weight.T).float(), target, reduction="none")
    naive = torch.autograd.grad((nats * scale).sum(), (hidden, weight))
    linear_cross_entropy(hidden, weight, target, scale).loss.backward()
    for ours, theirs, exact in zip(
        (hidden.grad, weight.grad), naive, (d_hidden, d_weight), strict=True
    ):
        assert ours is not None and ours.dtype == torch.bfloat16
        error = (ours.double() - exact).norm()
        assert error < 1.1 * (theirs.double() - exact).norm()


def test_the_gradient_of_a_bfloat16_matrix_is_added_up_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In bfloat16 a sum of ones stops at 256.
    _set_chunk(monkeypatch, 1)
    n = 4096
    hidden = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    linear_cross_entropy(hidden, weight, torch.zeros(n, dtype=torch.int64)).loss.backward()
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [-n / 2, n / 2]


def test_dropped_tokens_enter_nothing() -> None:
    hidden, weight, target, scale = _case()
    dropped = (target == -100) | (scale == 0)
    clean = linear_cross_entropy(hidden, weight, target, scale)
    with torch.no_grad():
        hidden[dropped] = float("nan")
    target[scale == 0] = 10**9
    spoilt = linear_cross_entropy(hidden, weight, target, scale)
    spoilt.loss.backward()
    assert torch.equal(spoilt.loss, clean.loss)
    assert torch.equal(spoilt.nats_N, clean.nats_N)
    assert (spoilt.nats_N[dropped] == 0).all() and (spoilt.nats_N[~dropped] > 0).all()
    assert hidden.grad is not None and weight.grad is not None
    assert (hidden.grad[dropped] == 0).all() and (hidden.grad[~dropped] != 0).any(dim=1).all()
    assert torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("n", [0, 1, 9])
def test_with_nothing_to_learn_everything_is_zero(n: int) -> None:
    hidden, weight, _, _ = _case(n=n)
    target = torch.full((n,), -100)
    loss, nats, log_z = linear_cross_entropy(hidden, weight, target, z_loss=0.1)
    loss.backward()
    assert loss.item() == 0.0 and nats.tolist() == log_z.tolist() == [0.0] * n
    assert hidden.grad is not None and weight.grad is not None
    assert hidden.grad.shape == hidden.shape and not hidden.grad.any()
    assert weight.grad.shape == weight.shape and not weight.grad.any()


def test_strides_do_not_matter() -> None:
    hidden, weight, target, scale = _case()
    straight = torch.autograd.grad(
        linear_cross_entropy(hidden, weight, target, scale).loss, (hidden, weight)
    )
    turned = hidden.detach().T.contiguous().T.requires_grad_()
    wide = torch.zeros(29, 24)
    wide[:, ::2] = weight.detach()
    sparse = wide[:, ::2].requires_grad_()
    assert not turned.is_contiguous() and not sparse.is_contiguous()
    loss = linear_cross_entropy(turned, sparse, target, scale).loss
    for ours, expected in zip(torch.autograd.grad(loss, (turned, sparse)), straight, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_rows_that_pad_the_vocabulary_can_be_left_out() -> None:
    hidden, weight, target, scale = _case()
    padded = torch.cat((weight.detach(), torch.full((3, 12), 7.0))).requires_grad_()
    loss = linear_cross_entropy(hidden, padded[:29], target, scale).loss
    loss.backward()
    plain, _, _, d_weight = _plain(hidden, weight, target, scale)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-6, atol=0.0)
    assert padded.grad is not None and not padded.grad[29:].any()
    torch.testing.assert_close(padded.grad[:29], d_weight.float(), rtol=1e-5, atol=1e-5)


def test_a_matrix_that_is_the_embedding_too_gets_both_gradients() -> None:
    _, weight, target, scale = _case()
    tokens = torch.arange(37) % 29
    linear_cross_entropy(F.embedding(tokens, weight).tanh(), weight, target, scale).loss.backward()
    wide = weight.detach().double().requires_grad_()
    nats = F.cross_entropy(F.embedding(tokens, wide).tanh() @ wide.T, target, reduction="none")
    (nats * scale).sum().backward()
    assert weight.grad is not None and wide.grad is not None
    torch.testing.assert_close(weight.grad, wide.grad.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_factor_that_is_frozen_gets_none(frozen: int) -> None:
    hidden, weight, target, scale = _case()
    (hidden, weight)[frozen].requires_grad_(False)
    linear_cross_entropy(hidden, weight, target, scale).loss.backward()
    grads = _plain(hidden, weight, target, scale)[2:]
    assert (hidden, weight)[frozen].grad is None
    torch.testing.assert_close(
        (hidden, weight)[1 - frozen].grad, grads[1 - frozen].float(), rtol=1e-5, atol=1e-5
    )


def test_the_same_bits_every_time() -> None:
    results = []
    for _ in range(2):
        hidden, weight, target, scale = _case(n=700, d=48, v=3001)
        loss, nats, log_z = linear_cross_entropy(hidden, weight, target, scale)
        results.append((loss, nats, log_z, *torch.autograd.grad(loss, (hidden, weight))))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_it_compiles_without_a_graph_break() -> None:
    hidden, weight, target, scale = _case()

    def value(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden.sin(), weight, target, scale, z_loss=0.1).loss

    compiled = torch.compile(value, backend="aot_eager", fullgraph=True)
    ours, eager = compiled(hidden, weight), value(hidden, weight)
    assert torch.equal(ours, eager)
    for a, b in zip(
        torch.autograd.grad(ours, (hidden, weight)),
        torch.autograd.grad(eager, (hidden, weight)),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_the_operation_keeps_its_promises_to_torch() -> None:
    hidden, weight, target, scale = _case()
    scale[target == -100] = 0.0
    for wanted in ((True, True), (False, True), (False, False)):
        arguments = (hidden, weight, target, scale, 0.1, 5, *wanted)
        found = torch.library.opcheck(
            torch.ops.stamm.linear_cross_entropy.default,
            arguments,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
        assert set(found.values()) == {"SUCCESS"}


def test_a_second_derivative_is_an_error() -> None:
    hidden, weight, target, scale = _case()
    loss = linear_cross_entropy(hidden, weight, target, scale).loss
    with pytest.raises(ConfigError, match=r"create_graph=True, and has no second derivative\. Use"):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, t, s: (h[:, :5], w, t, s), r"shapes \(37, 5\), \(29, 12\) and \(37,\)"),
        (lambda h, w, t, s: (h[None], w, t, s), r"shapes \(1, 37, 12\)"),
        (lambda h, w, t, s: (h, w, t[:-1], s), r"and \(36,\)\. Pass \(N, D\)"),
        (lambda h, w, t, s: (h, w, t, s[:-1]), r"scale has shape \(36,\).*Pass 37 numbers"),
        (lambda h, w, t, s: (h, w, t, s.requires_grad_()), "requires_grad = True"),
        (lambda h, w, t, s: (h.bfloat16(), w, t, s), "bfloat16, the matrix is torch.float32"),
        (lambda h, w, t, s: (h.half(), w.half(), t, s), "gradients need bfloat16"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: Callable[..., tuple[Tensor, ...]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        linear_cross_entropy(*change(*_case()))


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConfigError, match="autocast"):
        linear_cross_entropy(*_case())


@pytest.mark.parametrize("wrong", [29, -100])
def test_a_learned_target_outside_the_vocabulary_is_refused(wrong: int) -> None:
    hidden, weight, target, scale = _case()
    target.clamp_(min=0)[2] = wrong
    with pytest.raises(DataError, match=rf"target of token 2 is {wrong}, .* has 29 rows"):
        linear_cross_entropy(hidden, weight, target, scale, ignore_index=None)
    scale[2] = 0.0  # a dropped token's target may be any number
    linear_cross_entropy(hidden, weight, target, scale, ignore_index=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_targets_are_whole_numbers(dtype: torch.dtype) -> None:
    hidden, weight, target, scale = _case()
    with pytest.raises(ConfigError, match=f"29 rows, the targets are {dtype}"):
        linear_cross_entropy(hidden, weight, target.to(dtype), scale)
    with pytest.raises(ConfigError, match="vocabulary has 0 rows"):
        linear_cross_entropy(hidden, weight[:0], target, scale)
    for other in (torch.complex64, torch.int64, torch.float8_e4m3fn):
        factors = (hidden.detach().to(other), weight.detach().to(other))
        with pytest.raises(ConfigError, match=f"hidden states are {other}"):
            linear_cross_entropy(*factors, target, scale)


def test_the_z_loss_pulls_a_small_normalizer_up() -> None:
    """Where log Z < 0 its slope is negative, too."""
    hidden, weight, target, scale = _case()
    low = torch.cat([weight.detach(), torch.full((29, 1), -9.0)], dim=1).requires_grad_()
    high = torch.cat([hidden.detach(), torch.ones(37, 1)], dim=1).requires_grad_()
    assert ((high @ low.T).logsumexp(dim=1) < 0).sum() > 20
    _, _, d_hidden, d_weight = _plain(high, low, target, scale, 0.1)
    linear_cross_entropy(high, low, target, scale, z_loss=0.1).loss.backward()
    assert high.grad is not None and low.grad is not None
    torch.testing.assert_close(high.grad.double(), d_hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(low.grad.double(), d_weight, rtol=1e-4, atol=1e-5)


WEIGHT, TARGET, SCALE = (x.detach() for x in _case()[1:])


def _loss(hidden: Tensor) -> Tensor:
    return linear_cross_entropy(hidden, WEIGHT, TARGET, SCALE).loss


def _with_tangent(hidden: Tensor) -> Tensor:
    with forward_mode.dual_level():
        dual = forward_mode.make_dual(hidden, torch.ones_like(hidden))
        found: Tensor = forward_mode.unpack_dual(_loss(dual)).tangent
        return found


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.func.jvp": lambda hidden: torch.func.jvp(_loss, (hidden,), (hidden,))[1],
    "torch.func.grad": torch.func.grad(_loss),
    "forward mode": _with_tangent,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_derivatives_that_there_are_not_are_errors(transform: str, backend: str | None) -> None:
    torch.compiler.reset()
    call = TRANSFORMS[transform]
    if backend is not None:
        call = torch.compile(call, backend=backend)
    with pytest.raises(Exception, match=r"no forward mode and no gradients of torch\.func"):
        call(_case()[0].detach())


def test_chunks_stay_within_their_bytes() -> None:
    cuda = torch.device("cuda")
    assert chunk_tokens(100, CPU) == 2**20 // 400  # what fits into the cache
    assert chunk_tokens(131_072, CPU) == 128  # the fewest that a product is worth
    assert chunk_tokens(262_144, CPU) == 64  # 64 MiB
    assert chunk_tokens(131_072, cuda) == 2048  # 1 GiB
    assert chunk_tokens(10**9, CPU) == chunk_tokens(10**9, cuda) == 1


def _trace(call: Callable[[], object], path: Path) -> tuple[int, int]:
    """The largest allocation of `call` in bytes, and the products of two numbers it took."""
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
    ) as seen:
        call()
    seen.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    largest = max(e["args"]["Bytes"] for e in events if e.get("name") == "[memory]")
    products = 0
    for event in seen.events():
        if event.name in ("aten::mm", "aten::addmm", "aten::addmm_"):
            (rows, inner), (_, columns) = [s for s in event.input_shapes if len(s) == 2][-2:]
            products += rows * inner * columns
    return largest, products


def _step(hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor | None = None) -> None:
    loss = linear_cross_entropy(hidden, weight, target, scale).loss
    loss.backward()


def test_no_tensor_as_large_as_the_logits_is_ever_made(tmp_path: Path) -> None:
    n, d, v = 4096, 16, 1000
    hidden, weight, target, _ = _case(n, d, v)
    chunk = 4 * v * chunk_tokens(v, CPU)
    assert chunk < n * v
    chunked, _ = _trace(lambda: _step(hidden, weight, target), tmp_path / "chunked.json")
    plain, products = _trace(
        lambda: F.cross_entropy(hidden @ weight.T, target).backward(),
        tmp_path / "plain.json",
    )
    # The measurement sees what it must see.
    assert plain >= 4 * n * v and products == 3 * n * d * v
    assert chunked == chunk


def test_only_learned_tokens_are_multiplied(tmp_path: Path) -> None:
    hidden, weight, target, scale = _case()
    learned = int(((target != -100) & (scale != 0)).sum())
    assert 0 < learned < len(target)
    _, products = _trace(lambda: _step(hidden, weight, target, scale), tmp_path / "step.json")
    assert products == 3 * learned * weight.numel()


def test_without_gradients_only_the_losses_are_computed(tmp_path: Path) -> None:
    hidden, weight, target, scale = _case(n=5, d=200, v=300)
    learned = int(((target != -100) & (scale != 0)).sum())
    with torch.no_grad():
        largest, products = _trace(
            lambda: linear_cross_entropy(hidden, weight, target, scale), tmp_path / "free.json"
        )
    assert products == learned * weight.numel()
    assert largest <= 4 * learned * weight.shape[0]
    detached = linear_cross_entropy(hidden.detach(), weight.detach(), target, scale)
    assert not detached.loss.requires_grad
    assert torch.equal(detached.loss, linear_cross_entropy(hidden, weight, target, scale).loss)
