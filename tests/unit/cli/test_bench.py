"""`stamm bench activations`: what it measures, what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.activations import benchmark as machine
from stamm.activations import benchmark as measuring
from stamm.activations import catalog
from stamm.activations.benchmark import (
    ArmTimings,
    BenchmarkArm,
    Load,
    Timed,
    kernels_text,
    measure,
    tensors_moved,
)
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import build, gpu
from stamm.activations.fused.passes import GATED, PLAIN, graph_of
from stamm.cli.bench_activations import ENTRIES
from stamm.cli.bench_baselines import arms_of
from stamm.cli.main import main

CPU = torch.device("cpu")
TINY = ["--shape", "4x6", "--rounds", "2", "--device", "cpu", "--no-compile"]
XIELU = "transformers XIELUActivation"
SIZE = 4 * 6 * 2  # bytes of one bfloat16 input


def _bench(*words: str) -> int:
    return main(["bench", "activations", *words, *TINY])


def _lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert _bench(*words, "--json") == 0
    lines: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return lines


def test_a_line_says_what_was_measured_where(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = _lines(capsys, "xielu")
    assert line["benchmark"] == "activations"
    assert line["content_hash"] == catalog.get("xielu").content_hash
    assert (line["device"], line["threads"]) == ("cpu", torch.get_num_threads())
    assert (line["shape"], line["dtype"], line["rounds"]) == ([4, 6], "bfloat16", 2)
    assert line["libraries"]["torch"] == torch.__version__
    assert {"commit", "dirty", "cpu", "cores", "others_busy_cores"} <= set(line)
    assert line["kernels"] == "fused" or line["kernels"].startswith("eager: ")
    for step in ("forward", "forward_backward"):
        times = line["seconds"][step]
        assert set(times) == {"stamm", "F.silu", XIELU}
        assert all(0 < t["p20"] <= t["p50"] <= t["p80"] for t in times.values())
        assert line["ratio"][step] == {
            name: times[name]["p50"] / times["stamm"]["p50"] for name in ("F.silu", XIELU)
        }
        copy = line["copy_seconds"]["fresh"]["p50"] / line["copy_bytes"]
        pace = line["bytes_moved"][step] / times["stamm"]["p50"]
        assert line["share_of_copy"][step]["stamm"]["fresh"] == pytest.approx(pace * copy)
    assert line["copy_bytes"] == 2 * SIZE
    assert line["bytes_moved"] == {"forward": 2 * SIZE, "forward_backward": 5 * SIZE}


def test_what_is_kept_for_the_backward_pass_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silu, swiglu = _lines(capsys, "silu", "swiglu")
    assert silu["saved_bytes"] == {"stamm": SIZE, "F.silu": SIZE}
    # gate and up; torch's product keeps silu(gate) besides
    assert swiglu["saved_bytes"] == {"stamm": 2 * SIZE, "F.silu * up": 3 * SIZE}
    assert swiglu["bytes_moved"] == {"forward": 3 * SIZE, "forward_backward": 8 * SIZE}
    assert swiglu["not_measured"] == {"Liger-Kernel": "needs a GPU"}


def test_every_shape_and_dtype_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, "relu2", "--shape", "2x1k", "--dtype", "float32", "--dtype", "float16")
    found = [(line["shape"], line["dtype"]) for line in lines]
    assert found == [(s, d) for s in ([2, 1000], [4, 6]) for d in ("float32", "float16")]
    assert "stamm, fast" in lines[0]["seconds"]["forward"]
    assert "stamm, fast" not in lines[1]["seconds"]["forward"]


def test_the_table_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench("geglu_tanh") == 0
    printed = capsys.readouterr()
    assert re.match(r"1 of 1: \w+, \d+x\d+ \w+: (compile and )?measure\n", printed.err)
    first, header, *rows = printed.out.splitlines()
    assert first.startswith("geglu_tanh, 4x6 bfloat16, ")
    assert "busy with other programs: " in first
    assert header.split() == [
        "implementation",
        *["forward", "ms", "of", "copy", "of", "clone", "×", "stamm"],
        *["forward+backward", "ms", "of", "copy", "of", "clone", "×", "stamm", "saved"],
    ]
    wanted = ["stamm", "F.silu * up", "F.gelu(tanh) * up", "transformers NewGELUActivation * up"]
    for name in [*wanted, "copy, warm memory", "clone, fresh memory"]:
        assert any(row.startswith(f"{name}  ") for row in rows), name
    assert "Liger-Kernel is not measured: needs a GPU" in rows


def test_lines_are_appended_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder" / "found.jsonl"
    printed = [
        *_lines(capsys, "silu", "--out", str(out)),
        *_lines(capsys, "mish", "--out", str(out)),
    ]
    assert [json.loads(line) for line in out.read_text().splitlines()] == printed
    assert [line["entry"] for line in printed] == ["silu", "mish"]


def test_a_spec_of_ones_own_is_measured_beside_its_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from stamm.activations import Piece, Spec\n"
        "RAMP = Spec(name='ramp', title='A ramp', source='', continuity='jump',\n"
        "    pieces=(Piece(where='x > 0', formula='1'), Piece(where='x <= 0', formula='0')),\n"
        "    peers=('torch.nn.functional:relu', 'torch.nn.functional:tanh', 'absent:relu'))\n"
    )
    (line,) = _lines(capsys, str(own))
    assert set(line["seconds"]["forward"]) == {"stamm", "F.silu", "F.relu"}
    assert "another function" in line["not_measured"]["F.tanh"]
    assert "absent cannot be imported" in line["not_measured"]["absent:relu"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["xeilu"], 2, "'xeilu' is not an activation (the command line). Did you mean 'xielu'?"),
        (["XIELU"], 2, "'XIELU' is not an activation (the command line). Did you mean 'xielu'?"),
        (["Swish-Beta"], 2, "Did you mean 'swish_beta'?"),
        (["nosuch"], 2, "`stamm ls activations` lists them"),
        (["x" * 100_000], 2, "`stamm ls activations` lists them"),
        (["silu", "--shape", "4096"], 2, "--shape '4096' is not ROWSxCOLUMNS (the command line)"),
        (["silu", "--shape", "0x8"], 2, "--shape '0x8' is not ROWSxCOLUMNS"),
        (["silu", "--shape", "ax8"], 2, "'a' is not a whole number"),
        (["silu", "--shape", "1gx1m"], 2, "--shape 1000000000x1000000 in bfloat16 needs about"),
        (["silu", "--dtype", "bfloat"], 2, "Did you mean 'bfloat16'?"),
        (["silu", "--rounds", "1"], 2, "--rounds 1 gives no spread"),
        (["silu", "--device", "tpu"], 2, "--device 'tpu' is not measured"),
        (["silu", "--device", "cuda:99"], 2, "--device cuda:99: torch finds "),
        (["silu", "--device", f"cuda:{10**17}"], 2, f"--device cuda:{10**17}: torch finds "),
        (["silu", "--device", "cuda:" + 5000 * "9"], 2, " is not measured"),
        ([""], 2, "'' is not an activation"),
        (["silu", "--out", "/proc/absent/found.jsonl"], 1, "/proc/absent"),
    ],
)
def test_misuse_is_told_before_anything_is_measured(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = zip(TINY[:-1:2], TINY[1::2], strict=True)
    usual = [part for pair in pairs if pair[0] not in words for part in pair]
    assert main(["bench", "activations", *usual, TINY[-1], *words]) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


@pytest.mark.parametrize(("name", "passes"), [("silu", PLAIN), ("swiglu", GATED)])
def test_traffic_is_that_of_the_fused_passes(name: str, passes: Sequence[Any]) -> None:
    kernel = kernel_of(catalog.get(name))
    graphs = [graph_of(each, kernel, (), torch.float32) for each in passes]
    forward, backward = (graph.inputs + len(graph.outputs) for graph in graphs)
    moved = tensors_moved(graphs[0].inputs)
    assert moved == {"forward": forward, "forward_backward": forward + backward}


def test_default_entries_exist_and_have_rivals_to_compile() -> None:
    names = {name: [arm.name for arm in _arms(name, compiled=True)] for name in ENTRIES}
    assert all(arms[:2][0] == "stamm" for arms in names.values())
    assert f"compiled {XIELU}" in names["xielu"]
    assert f"compiled {XIELU} * up" in names["xielu_glu"]
    assert names["swiglu"] == ["stamm", "F.silu * up", "compiled F.silu * up"]
    assert "torch.nn:PReLU" in names["prelu"]
    assert not any(a.startswith("compiled") for a in [b.name for b in _arms("xielu")])


def _arms(name: str, *, compiled: bool = False) -> list[BenchmarkArm]:
    return arms_of(catalog.get(name), torch.bfloat16, CPU, compiled=compiled)[0]


def _measure(*arms: BenchmarkArm, rounds: int = 3, inputs: int = 1) -> ArmTimings:
    shape = (5, 7)
    return measure(arms, inputs=inputs, shape=shape, dtype=torch.float32, device=CPU, rounds=rounds)


class _Slots:
    """A clock for which a call takes as long as its place in the round says."""

    def __init__(self) -> None:
        self.rounds: list[list[Callable[[], object]]] = []

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        self.rounds.append([call for _, call in calls])
        return [float(place) for place in range(len(calls))]


def test_the_order_rotates_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = _Slots()
    monkeypatch.setattr(measuring, "clock_of", lambda device: slots)
    found = _measure(BenchmarkArm(name="relu", call=torch.relu), rounds=4)
    first, *others = [calls for calls in slots.rounds if len(calls) == 4]
    for turn, calls in enumerate(others, start=1):
        assert calls == first[turn:] + first[:turn]
    assert len(others) == 3
    # Everything stood once in every place.
    spreads = [*[q for s in found.steps.values() for q in s.values()], *found.copies.values()]
    assert [(q.p20, q.p50, q.p80) for q in spreads] == [pytest.approx((0.6, 1.5, 2.4))] * 4


class _Destroying(torch.autograd.Function):
    """The identity, with a backward pass that writes over its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x
        return x.clone()

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.kept.data.fill_(float("nan"))
        return weight


def test_who_destroys_its_inputs_gets_new_ones() -> None:
    seen: list[bool] = []

    def destroying(x: Tensor) -> Tensor:
        seen.append(bool(x.isfinite().all()))
        result: Tensor = _Destroying.apply(x)
        return result

    def watching(x: Tensor) -> Tensor:
        seen.append(bool(x.isfinite().all()))
        return x.clone()

    own = BenchmarkArm(name="own", call=watching)
    _measure(own, BenchmarkArm(name="destroying", call=destroying, overwrites=True))
    assert len(seen) > 20
    assert all(seen)


def test_a_compiler_that_fails_is_told_and_our_own_failure_is_not_hidden() -> None:
    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("no compiler\nat all")

    own = BenchmarkArm(name="own", call=torch.relu)
    found = _measure(own, BenchmarkArm(name="compiled", call=failing, compiled=True))
    assert found.refused == {"compiled": "RuntimeError: no compiler"}
    assert set(found.steps["forward"]) == {"own"}
    with pytest.raises(RuntimeError, match="no compiler"):
        _measure(own, BenchmarkArm(name="eager", call=failing))


def test_the_yardstick_need_not_compute_the_same() -> None:
    own, other = (
        BenchmarkArm(name="own", call=torch.relu),
        BenchmarkArm(name="tanh", call=torch.tanh),
    )
    found = _measure(
        own, other, BenchmarkArm(name="silu", call=torch.nn.functional.silu, same=False)
    )
    assert set(found.steps["forward"]) == {"own", "silu"}
    assert found.refused["tanh"].startswith("it computes another function")


def test_time_of_other_processes_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", stat)
    assert Load().others() is None
    stat.write_text("cpu  100 0 50 9000 10 0 0 0 0 0\ncpu0 1 2\n")
    load = Load()
    stat.write_text("cpu  100 0 50 999000 99910 0 0 0 0 0\ncpu0 1 2\n")
    assert load.others() == 0.0
    stat.write_text("cpu  900100 0 50 999000 99910 0 0 0 0 0\ncpu0 1 2\n")
    others = load.others()
    assert others is not None
    assert others > 100


def test_the_kernels_that_serve_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "unavailable_reason", lambda: None)
    assert kernels_text(1, torch.bfloat16, CPU) == "fused"
    assert kernels_text(1, torch.float64, CPU) == "eager: no fused kernels for float64"
    monkeypatch.setattr(build, "unavailable_reason", lambda: "no compiler")
    assert kernels_text(1, torch.bfloat16, CPU) == "eager: no compiler"


def test_env_says_of_each_backend_whether_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "unavailable_reason", lambda: None)
    monkeypatch.setattr(gpu, "unavailable_reason", lambda: "torch finds no GPU")
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["cpu kernels"], facts["gpu kernels"]) == ("ready", "torch finds no GPU")
    assert main(["env"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["cpu", "kernels", "ready"] in lines
    assert ["gpu", "kernels", "torch finds no GPU"] in lines
