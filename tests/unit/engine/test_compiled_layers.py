"""Compiled layers in several threads, and layers that cannot be compiled in one piece."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from stamm.base.console import NoProgress
from stamm.engine import compile as engine_compile
from stamm.engine.compile import compile_layers, graph_break
from stamm.engine.config import EngineConfig


class Layer(nn.Module):
    """Matrix product and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


class Broken(Layer):
    """The same, with a Python number of a tensor between."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) * (2.0 if float(x.sum().item()) > 0 else 1.0)


@pytest.fixture
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation without a C++ compiler."""
    plain = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **given: plain(self, backend="eager", **given)
    )
    monkeypatch.setattr(engine_compile, "missing_to_compile", lambda: "")


def test_threads_do_not_share_a_count_of_frames(
    eager_backend: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread begins a call while another is in its own: with one count for both the other one fails."""
    layers = nn.ModuleList([Layer()])
    assert compile_layers(layers, EngineConfig(), NoProgress())
    x = torch.ones(2, 4)
    layers[0](x)

    def slow(*given: object) -> int:
        found: int = count(*given)
        time.sleep(0.002)  # between the reset of the count and the frame that raises it
        return found

    frames = torch._dynamo.eval_frame
    count = getattr(frames, "set_fullgraph_compiled_frame_count", lambda *given: -1)
    monkeypatch.setattr(frames, "set_fullgraph_compiled_frame_count", slow, raising=False)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: layers[0](x), range(200)))
    assert all(torch.equal(one, results[0]) for one in results)
    assert graph_break() == ""


def test_a_layer_in_several_parts_is_told(eager_backend: None) -> None:
    layers = nn.ModuleList([Broken()])
    assert compile_layers(layers, EngineConfig(), NoProgress())
    x = torch.ones(2, 4)
    assert torch.equal(layers[0](x), 2 * torch.tanh(x))
    assert "item" in graph_break()


def test_compilations_of_others_are_not_those_of_the_layers(eager_backend: None) -> None:
    layers = nn.ModuleList([Broken()])
    compile_layers(layers, EngineConfig(), NoProgress())
    layers[0](torch.ones(2, 4))
    assert graph_break() != ""
    compile_layers(layers, EngineConfig(compile="off"), NoProgress())
    assert graph_break() == ""
