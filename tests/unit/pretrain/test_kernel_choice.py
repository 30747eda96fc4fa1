"""Which kernels a run uses: forced, measured, kept by its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations.fused import build, cpp, direct, operation
from stamm.activations.module import build_activation
from stamm.base.autotune import Measurement
from stamm.engine.attention_support import kernel_of
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.models import fused_attention
from stamm.models.config import GatedFFN, PlainFFN
from stamm.models.determinism import operation_threads
from stamm.optim.schedules import BatchStage
from stamm.pretrain import kernel_choice, training_run
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.kernel_choice import choose_kernels, chosen_kernels
from stamm.recipes.demo import smoke

needs_compiler = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)
MANY = 2**40  # sequences: more than enough to be worth a measurement


ALONE = DistributedContext(torch.device("cpu"))


def config(**changes: Any) -> PretrainConfig:
    base = smoke().pretrain
    ffn = changes.pop("ffn", PlainFFN(width=192, activation="xielu"))
    engine = replace(base.engine, **changes)
    return replace(base, model=replace(base.model, ffn=ffn), engine=engine, context=256)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What every measurement comes to; the implementations are called once."""
    found = {"stamm": 1.0, "torch": 2.0}

    def measured(name: str, arms: Mapping[str, Any], **_: object) -> Measurement:
        for call in arms.values():
            call()
        return Measurement(operation=name, processor="p", seconds=dict(found))

    monkeypatch.setattr(kernel_choice, "measured", measured)
    return found


@pytest.mark.parametrize("kernels", ["stamm", "torch"])
def test_a_switch_forces_either(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> Measurement:
        raise AssertionError("measured")

    monkeypatch.setattr(kernel_choice, "measured", never)
    found = choose_kernels(config(kernels=kernels), MANY)
    assert found == {"attention": kernels, "activation xielu, fast": kernels}


@needs_compiler
@pytest.mark.parametrize("compiled", ["off", "layers"])
@pytest.mark.parametrize(
    "ffn", [PlainFFN(width=192, activation="xielu"), GatedFFN(width=192, activation="swiglu")]
)
def test_the_faster_is_chosen(
    ffn: PlainFFN | GatedFFN, compiled: str, times: dict[str, float]
) -> None:
    given = config(ffn=ffn, compile=compiled)
    assert set(choose_kernels(given, MANY).values()) == {"stamm"}
    times["torch"] = 0.5
    assert set(choose_kernels(given, MANY).values()) == {"torch"}
    assert set(choose_kernels(given, 10).values()) == {"stamm", "torch"}  # not worth its while
    assert set() == operation._EAGER


@needs_compiler
def test_the_probes_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival that computed something else would be a measurement of nothing."""
    results: dict[str, list[torch.Tensor]] = {}

    def measured(name: str, arms: Mapping[str, Any], **_: object) -> Measurement:
        for arm, call in arms.items():
            kept: list[Any] = []
            grad = torch.autograd.grad
            with monkeypatch.context() as patch:
                patch.setattr(
                    torch.autograd, "grad", lambda *a, grad=grad, kept=kept: kept.append(grad(*a))
                )
                call()
            results.setdefault(name, []).append(torch.cat([g.flatten() for g in kept[0]]))
            assert arm in ("stamm", "torch")
        return Measurement(operation=name, processor="p", seconds={"stamm": 1.0, "torch": 1.0})

    monkeypatch.setattr(kernel_choice, "measured", measured)
    choose_kernels(config(), MANY)
    assert len(results) == 2
    for ours, theirs in results.values():
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("compiled", ["off", "layers"])
def test_eager_runs_are_measured_with_the_calls_that_they_make(
    compiled: str, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the first 256 of a process, whose fixed cost is larger."""
    prepared: list[bool] = []
    monkeypatch.setattr(direct, "prepare", lambda: prepared.append(True))
    choose_kernels(config(compile=compiled), 10)
    assert prepared == []
    choose_kernels(config(compile=compiled), MANY)
    assert len(prepared) == (compiled == "off" or bool(kernel_choice.missing_to_compile()))


@needs_compiler
def test_what_was_chosen_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config()
    act = build_activation("xielu", precision="fast")
    x = torch.linspace(-3, 3, 40000)
    calls: list[str] = []
    monkeypatch.setattr(
        direct.DirectCalls, "kernel", lambda *_: None
    )  # calls by way of `operation`
    forward = operation._forward
    monkeypatch.setattr(operation, "_forward", lambda *a: (calls.append("fused"), forward(*a))[1])
    choice: kernel_choice.Choices = {"attention": "torch", "activation xielu, fast": "torch"}
    with chosen_kernels(given, choice) as chosen, torch.no_grad():
        eager = act(x)
        assert chosen.engine.attention == "dense" and calls == []
    with chosen_kernels(given, {}) as chosen, torch.no_grad():
        fused = act(x)
        assert chosen == given and calls == ["fused"]
    assert torch.allclose(eager, fused, rtol=1e-6, atol=1e-6)


def test_a_kernel_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "unavailable_reason", lambda: "no compiler")
    assert kernel_choice.prepare_kernels(config(), {"attention": "stamm"}) == "no compiler"
    assert kernel_choice.prepare_kernels(config(), {"attention": "torch"}) is None


def test_a_plan_knows_that_torch_attends_where_it_is_forced() -> None:
    given = config()
    assert kernel_of(given.engine, given.model, gpu=False) == "fused"
    forced = config(kernels="torch")
    assert kernel_of(forced.engine, forced.model, gpu=False) == "dense"
    assert choose_kernels(forced, 1)["attention"] == "torch"


@needs_compiler
def test_a_changed_kernel_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def measured(name: str, arms: object, content: Any, processor: str) -> Measurement:
        seen.append(content)
        return Measurement(
            operation=name, processor=processor, seconds={"stamm": 1.0, "torch": 1.0}
        )

    monkeypatch.setattr(kernel_choice, "measured", measured)
    choose_kernels(config(), MANY)
    head = cpp._HEAD
    monkeypatch.setattr(cpp, "_HEAD", head + "// another emission\n")
    choose_kernels(config(), MANY)
    attention, activation, same_attention, other_activation = seen
    assert attention == same_attention and activation != other_activation


PER_EPOCH = 10**6


def test_a_run_resumes_with_the_kernels_of_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": 1}')
    assert training_run._choices(config(), PER_EPOCH, ALONE, tmp_path) == {}
    (tmp_path / "manifest.json").write_text('{"kernels": {"attention": "torch"}}')
    assert training_run._choices(config(), PER_EPOCH, ALONE, tmp_path) == {"attention": "torch"}


def test_kernels_are_measured_with_the_threads_that_an_operation_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        kernel_choice, "choose_kernels", lambda *_: seen.append(torch.get_num_threads())
    )
    batch = (BatchStage(size=16),)
    for pieces in (None, 1, 2, 8):
        engine = EngineConfig(threads=4, pieces=pieces)
        asked = replace(config(), context=256, batch=batch, engine=engine)
        with operation_threads(4):
            training_run._choices(asked, PER_EPOCH, ALONE, tmp_path)
    assert seen == [1, 4, 2, 1]


@needs_compiler
def test_no_compiler_starts_once_a_run_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_choice.prepare_kernels(config(), {"attention": "stamm"}) is None

    def never(*_: object) -> None:
        raise AssertionError("a compiler was started")

    monkeypatch.setattr(build, "_compile", never)
    q = torch.randn(1, 2, 8, 16)
    document = torch.zeros(1, 8, dtype=torch.int64)
    assert fused_attention.fused_attention(q, q, q, document).shape == q.shape
