"""The conformance board: what it measures is there, complete on its pages, and reproduced."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import stamm
from stamm.activations import catalog
from stamm.activations.board import gpu_targets
from stamm.activations.board.board import PRIMITIVES, ROUNDED, _Targets, measure_board
from stamm.activations.board.library import (
    CompiledTogether,
    LibraryFunction,
    TorchFunctions,
    torch_functions,
    transformers_functions,
)
from stamm.activations.board.measure import errors_at, inputs_of
from stamm.activations.board.page import (
    LIBRARIES_PAGE,
    PATCHES,
    TARGETS_PAGE,
    defects,
    pages,
    patches_in,
    target_counts,
)
from stamm.activations.board.records import BoardRecord, Errors
from stamm.activations.board.rounded import correctly_rounded
from stamm.activations.board.targets import RUNS, Case, in_groups
from stamm.activations.catalog import get
from stamm.activations.conformance import verb
from stamm.activations.conformance.exact import FUNCTION, SAMPLED, SLOPE
from stamm.activations.conformance.verb import LIBRARIES, PROGRAMS
from stamm.activations.emitters.program import SHORT, program_of
from stamm.activations.emitters.verb import TARGETS
from stamm.activations.fused.double_float import computed
from stamm.base.errors import ConfigError, RunError
from stamm.cli.main import main
from stamm.models.hub import hub_activations, hub_version
from tests.conftest import ROOT

DOCS = ROOT / "docs"
WIDE = ("numpy", "c", "js")  # targets that compute in float64


def quiet(_: str) -> None:
    pass


def board_of(*targets: str, entries: tuple[str, ...] = ("xielu",), count: int = 500) -> BoardRecord:
    chosen = {name: TARGETS[name] for name in targets}
    return measure_board({}, chosen, entries=entries, count=count, compiled=False, log=quiet)


def errors_with(result: torch.Tensor, name: str = "gelu", quantity: str = FUNCTION) -> Errors:
    return errors_at(inputs_of(get(name), result.dtype, count=500), quantity, result)


def rounded_truth(name: str, quantity: str, dtype: torch.dtype) -> torch.Tensor:
    return inputs_of(get(name), dtype, count=500).exact[quantity].values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_rounded_truth_is_half_a_unit_off_at_most(dtype: torch.dtype) -> None:
    for quantity in (FUNCTION, SLOPE):
        errors = errors_with(rounded_truth("gelu", quantity, dtype), quantity=quantity)
        # float64 goes to 16 bits by way of float32 in torch: two roundings
        assert 0.4 < errors.ulp < 0.51 and errors.stable <= errors.ulp
        assert (errors.wrong_sign, errors.not_finite) == (0, 0)
        assert errors.lost <= (dtype != torch.float32)


def test_each_kind_of_error_is_counted_once() -> None:
    measured = inputs_of(get("gelu"), torch.float32, count=500)
    true = measured.exact[FUNCTION].values.float()
    place = int((measured.x - 0.7).abs().argmin())
    assert measured.judged[FUNCTION][place]

    def with_value(value: float) -> Errors:
        changed = true.clone()
        changed[place] = value
        return errors_at(measured, FUNCTION, changed)

    nan, infinite, turned, zero = map(with_value, (math.nan, math.inf, -true[place].item(), 0.0))
    assert nan.not_finite == infinite.not_finite == 1 and nan.ulp < 1
    assert turned.wrong_sign * turned.inputs == pytest.approx(1)
    assert turned.at == zero.at == measured.x[place].item()
    assert zero.ulp > 2**23 and turned.ulp == pytest.approx(2 * zero.ulp)
    assert zero.lost == 1 and turned.lost == 0
    # Every true value that float32 does not round to 0 is lost, the subnormal ones included.
    nothing = errors_at(measured, FUNCTION, torch.zeros_like(true))
    assert nothing.lost == int((true != 0).sum())
    three = with_value(true[place].item() + 3 * 2.0**-24)  # f is in [1/2, 1)
    assert 2.5 < three.ulp < 3.5
    slope = 1 + float(measured.exact[FUNCTION].condition[place])
    assert three.stable == pytest.approx(max(three.ulp / slope, three.stable)) and three.stable < 3


def test_the_true_values_are_those_of_mpmath() -> None:
    """An independent truth: 40 digits of the formulas of GELU and of the softplus."""
    measured = inputs_of(get("gelu"), torch.float32, count=40)
    soft = inputs_of(get("softplus"), torch.float32, count=40)
    with mpmath.workdps(40):
        for k in range(0, len(measured.x), 4001):
            x = mpmath.mpf(measured.x[k].item())
            for true, value in (
                (x * mpmath.ncdf(x), measured.exact[FUNCTION].values[k].item()),
                (mpmath.ncdf(x) + x * mpmath.npdf(x), measured.exact[SLOPE].values[k].item()),
            ):
                assert abs(value - true) <= abs(true) * 1e-13 + 1e-300
            x = mpmath.mpf(soft.x[k].item())
            true = mpmath.log1p(mpmath.exp(x))
            assert abs(soft.exact[FUNCTION].values[k].item() - true) <= true * 1e-14 + 1e-300


def test_torch_is_measured_in_three_dtypes() -> None:
    record = measure_board(
        {"torch": torch_functions}, {}, entries=("gelu_tanh", "glu", "elu"), count=500,
        compiled=False, log=quiet,
    )  # fmt: skip
    assert len(record.functions) == 9 and not any(row.problem for row in record.functions)
    rows = {(row.entry, row.dtype): row for row in record.functions}
    # The cube overflows, and 0 times infinity is NaN: github.com/pytorch/pytorch, gelu_backward.
    assert rows["gelu_tanh", "bfloat16"].errors[1].not_finite > 10_000
    x = torch.tensor([1e20], requires_grad=True)
    (slope,) = torch.autograd.grad(torch.nn.functional.gelu(x, approximate="tanh"), x)
    assert torch.isnan(slope).all()
    assert rows["gelu_tanh", "float32"] in defects(record)
    assert max(error.ulp for error in rows["elu", "bfloat16"].errors) <= 0.51
    assert [error.quantity for error in rows["glu", "float32"].errors][2] == "up_slope"


def test_transformers_xielu_has_the_wrong_slope_below_zero() -> None:
    makers = {"xielu": hub_activations()["xielu"]}
    record = measure_board(
        {"transformers": lambda: transformers_functions(hub_version(), makers)}, {},
        entries=("xielu",), count=500, compiled=False, log=quiet,
    )  # fmt: skip
    by_dtype = {row.dtype: row for row in record.functions}
    value, slope = by_dtype["bfloat16"].errors
    assert slope.wrong_sign > 0.1 and slope.ulp > 300 and value.ulp > 1e6
    assert defects(record)


def test_compiled_results_are_compared_bit_by_bit() -> None:
    def twice(x: torch.Tensor) -> list[torch.Tensor]:
        y = 1.0 * x
        y[::4] *= 2
        return [y, torch.ones_like(x)]

    class Own:
        version = "1"

        def functions(self, dtype: torch.dtype) -> list[LibraryFunction]:
            return [
                LibraryFunction(
                    "identity", "same", lambda x: x.clone(), lambda x: [torch.ones_like(x)], twice
                )
            ]

    record = measure_board(
        {"own": Own}, {}, entries=("identity",), count=500, compiled=True, log=quiet
    )
    for row in record.functions:
        (_, value), (_, slope) = row.differs
        assert value == pytest.approx(0.25, abs=0.001) and slope == 0  # 2 * 0 is 0
        assert row.errors[0].ulp == 0


def test_a_missing_or_failing_library_does_not_stop_the_others() -> None:
    def missing() -> TorchFunctions:
        raise RunError("this needs apples, which is not installed", fix="Run: pip install apples")

    class Broken:
        version = "2"

        def functions(self, dtype: torch.dtype) -> list[LibraryFunction]:
            if dtype == torch.float16:
                raise RunError("there is no float16")
            return [LibraryFunction("relu", "bad", lambda x: 1 / 0)]

    lines: list[str] = []
    record = measure_board(
        {"apples": missing, "broken": Broken, "torch": torch_functions}, {}, entries=("relu",),
        count=500, compiled=False, log=lines.append,
    )  # fmt: skip
    problems = {lib.name: lib.problem for lib in record.libraries}
    assert "pip install apples" in problems["apples"] and not problems["torch"]
    assert [row.problem for row in record.functions if row.library == "broken"] == [
        "ZeroDivisionError: division by zero", "there is no float16.",
        "ZeroDivisionError: division by zero",
    ]  # fmt: skip
    assert sum(row.library == "torch" for row in record.functions) == 3
    text = pages(record, ["a.diff: torch 1: b | c"])[LIBRARIES_PAGE]
    assert "pip install apples" in text and "division by zero" in text and "b \\| c" in text
    assert any("apples" in line for line in lines)


@pytest.mark.parametrize(
    "error", [ImportError("no symbol"), RuntimeError("no ABI"), OSError("x.so")]
)
def test_a_broken_installation_does_not_stop_the_others(error: Exception) -> None:
    def broken() -> TorchFunctions:
        raise error

    def version() -> str:
        raise error

    class Half:
        version = "1"

        def functions(self, dtype: torch.dtype) -> list[LibraryFunction]:
            raise error

    line = f"{type(error).__name__}: {error}"
    record = measure_board(
        {"broken": broken, "half": Half, "torch": torch_functions}, {}, entries=("relu",),
        count=500, compiled=False, log=quiet,
    )  # fmt: skip
    assert [lib.problem for lib in record.libraries] == [line, "", ""]
    rows = [(row.library, row.problem) for row in record.functions]
    assert rows == [("half", line)] * 3 + [("torch", "")] * 3
    targets = _Targets([get("relu")], 500)
    run = replace(next(run for run in RUNS if run.target == "numpy"), version=version)
    runtime, rows_of_target, _ = targets.of("numpy", TARGETS["numpy"], run)
    assert runtime.problem == line and rows_of_target[0].problem == "not installed"


@pytest.mark.parametrize("numbers", [None, 1, 6])
def test_a_missing_or_short_result_is_the_problem_of_its_entry(numbers: int | None) -> None:
    def run(cases: Sequence[Case], folder: Path) -> None:
        for case in cases:
            count = numbers if case.name == "relu6" else 2 * len(case.given[0])
            if count is not None:
                np.ones(count, np.float32).tofile(folder / f"{case.name}.out")

    x = torch.ones(4)
    cases = [Case(program_of(get(name)), b"", (x,), ()) for name in ("relu", "relu6")]
    right, wrong = in_groups(run)(cases)
    assert isinstance(right, list) and torch.equal(right[1], x)
    assert isinstance(wrong, RunError) and "relu6 raises" in wrong.line()


@pytest.mark.parametrize("target", ["c", "cuda", "metal"])
def test_a_compiler_of_another_name_is_found(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\necho g++ 12\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next(run for run in RUNS if run.target == target).version() == "g++ 12"


def test_a_compiler_that_fails_is_asked_once() -> None:
    asked: list[int] = []

    def run(x: torch.Tensor) -> Sequence[Sequence[torch.Tensor]]:
        asked.append(len(x))
        raise RunError("no compiler")

    together, x = CompiledTogether(run), torch.ones(3)
    for k in range(3):
        with pytest.raises(RunError, match="no compiler"):
            together.of(k)(x)
    assert asked == [3]


def test_a_part_of_the_board_says_so_on_its_pages() -> None:
    made = pages(board_of("numpy"), [])
    assert "one of 1 entries of the catalogue" in made[LIBRARIES_PAGE]
    inputs = round(len(inputs_of(get("tanh"), torch.float32, count=500).x), -3)
    for text in made.values():
        assert f"at about {inputs:,} " in text and "80,000" not in text
    assert "1 entries of the catalogue in each target" in made[TARGETS_PAGE]


def test_targets_in_float64_are_correctly_rounded_and_a_wrong_one_is_not() -> None:
    record = board_of("numpy", "c", entries=("xielu", "swiglu"))
    rows = {(row.target, row.entry): row for row in record.target_rows}
    for target in ("numpy", "c"):
        for entry in ("xielu", "swiglu"):
            row = rows[target, entry]
            assert not row.problem and not row.special and row.ulp <= 0.5001
    assert [e.quantity for e in rows["numpy", "xielu"].errors] == [
        "function", "slope", "slope_in_alpha_p", "slope_in_alpha_n",
    ]  # fmt: skip
    right = TARGETS["numpy"]
    scaled = "return 1.001 * _like("
    wrong = replace(
        right, write=lambda program: str(right.write(program)).replace("return _like(", scaled)
    )
    record = measure_board(
        {}, {"numpy": wrong}, entries=("xielu",), count=500, compiled=False, log=quiet
    )
    (row,) = (row for row in record.target_rows if row.target == "numpy")
    assert 0.001 * 2**23 < row.errors[0].ulp < 0.001 * 2**24 + 2  # but for roundings


def test_special_inputs_are_compared() -> None:
    right = TARGETS["numpy"]
    wrong = replace(
        right, write=lambda program: str(right.write(program)).replace("return _like(", "return 0.0 + _like(")
    )  # fmt: skip
    record = measure_board(
        {}, {"numpy": wrong}, entries=("xielu",), count=500, compiled=False, log=quiet
    )
    (row,) = (row for row in record.target_rows if row.target == "numpy")
    assert row.special == ("f(-0)",) and row.ulp <= 0.5001


def test_a_group_runs_without_the_entry_that_fails() -> None:
    right = TARGETS["c"]

    def write(program: object) -> str:
        text = str(right.write(program))  # type: ignore[arg-type]
        return text.replace("return", "retrn") if "relu6" in text else text

    record = measure_board(
        {}, {"c": replace(right, write=write)}, entries=("relu", "relu6", "silu"), count=500,
        compiled=False, log=quiet,
    )  # fmt: skip
    problems = {row.entry: row.problem for row in record.target_rows if row.target == "c"}
    assert "c++ fails" in problems["relu6"] and not problems["relu"] and not problems["silu"]
    assert target_counts(record)[1][1] == "2"


def test_a_graph_is_computed_with_every_operation_rounded() -> None:
    """Against NumPy's float32 arithmetic, which rounds + - * / correctly."""
    program = program_of(get("square"))
    x = torch.tensor([1.1, -3.3, 1e-20, 7e18])
    value, slope = correctly_rounded(Case(program, b"", (x,), ()))
    assert torch.equal(value, x * x) and torch.equal(slope, 2 * x)
    program = program_of(get("softsign"))
    (value,) = computed(program.forward[SHORT], [x], [])  # the graph without pairs of numbers
    assert torch.equal(value, x / (1 + x.abs()))


def test_a_rounded_graph_keeps_the_sign_of_a_zero() -> None:
    (row,) = board_of(entries=("hard_elish",)).target_rows
    assert row.target == ROUNDED and not row.special and not row.problem


def test_elementary_functions_are_measured_in_each_runtime() -> None:
    record = board_of("numpy", "mlx")
    table = {(row.target, row.function): row for row in record.primitives}
    assert {name for _, name in table} == set(PRIMITIVES)
    for function in PRIMITIVES:
        wide = table["numpy", function]
        assert wide.ulp <= 0.5001 and not wide.lowered
    assert table["mlx", "erf"].lowered and not table["mlx", "exp"].lowered
    assert 0.5 < table["mlx", "exp"].ulp < 100  # a float32 function


def columns(page: str, first: str) -> tuple[list[str], list[list[str]]]:
    """The header and rows of the table whose header begins with `first`."""
    lines = (DOCS / page).read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in (lines[start], *lines[start + 2 :])
        if line.startswith("|")
    ]
    count = next(
        (k for k, line in enumerate(lines[start:]) if not line.startswith("|")), len(lines)
    )
    return rows[0], rows[1 : count - 1]


def test_the_page_has_every_entry_and_every_target() -> None:
    header, rows = columns(TARGETS_PAGE, "entry")
    assert header == ["entry", ROUNDED, *PROGRAMS]
    assert [row[0] for row in rows] == list(catalog.names())
    not_run = {name for name in PROGRAMS if name not in {run.target for run in RUNS}}
    for row in rows:
        for target, cell in zip(header[1:], row[1:], strict=True):
            if target in not_run:
                assert cell == "not run"
            else:
                assert re.fullmatch(r"[\d.e]+ / [\d.e]+( / [\d.e]+)?", cell), (row[0], target)
            if target in WIDE:
                assert set(cell.split(" / ")) <= {".50", "0"} | {f".{k:02}" for k in range(50)}


def test_the_page_names_every_library() -> None:
    _, rows = columns(LIBRARIES_PAGE, "library")
    assert [row[0] for row in rows] == list(LIBRARIES)
    versions = {row[0]: row[1] for row in rows}
    assert versions["torch"].startswith(torch.__version__.split("+")[0])
    for subject in patches_in(DOCS / PATCHES):
        assert f"[{subject.partition(':')[0]}]({PATCHES}/" in (DOCS / LIBRARIES_PAGE).read_text()


@pytest.mark.slow
def test_a_sample_of_the_page_is_reproduced() -> None:
    """Targets in float64 to the digit; others, of which processors differ, within a factor of 2."""
    entries = ("xielu", "gelu", "swiglu")
    record = board_of(*WIDE, "mlx", "onnx", entries=entries, count=SAMPLED)
    made = {row.entry: row for row in record.target_rows if row.target == "numpy"}
    assert set(made) == set(entries)
    header, rows = columns(TARGETS_PAGE, "entry")
    stored = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    fresh_text = pages(record, [])[TARGETS_PAGE].splitlines()
    start = next(k for k, line in enumerate(fresh_text) if line.startswith("| entry |"))
    names = [cell.strip() for cell in fresh_text[start].split("|")[1:-1]]
    for line in fresh_text[start + 2 : start + 2 + len(entries)]:
        cells = dict(zip(names, (c.strip() for c in line.split("|")[1:-1]), strict=True))
        for target in (*WIDE, "mlx", "onnx"):
            before, now = stored[cells["entry"]][target], cells[target]
            if target in WIDE:
                assert before == now
                continue
            for old, new in zip(before.split(" / "), now.split(" / "), strict=True):
                assert 0.5 <= float(new) / float(old) <= 2, (target, before, now)


@pytest.mark.slow
def test_the_command_measures_and_writes_the_pages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stamm", "check", "--board", "--quick", "--out", "pages"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    files = {path.name: path.read_text() for path in (tmp_path / "pages").iterdir()}
    assert set(files) == {LIBRARIES_PAGE, TARGETS_PAGE}
    assert "`stamm check --board --quick --out docs`" in files[TARGETS_PAGE]
    for name in LIBRARIES:
        assert f"| {name} |" in files[LIBRARIES_PAGE] and name in ran.stdout
    assert "file  pages/conformance.md" in ran.stdout and "triton" in ran.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--board", "xielu"], "--board takes --quick and --out only"),
        (["--board", "--all"], "--board takes --quick and --out only"),
        (["--out", "docs", "xielu"], "--out belongs to --board"),
        (["--board", "--out", ""], "is not a folder"),
        (["--board", "--out", "taken"], "is not a folder"),
        (["--board", "--out", "taken/pages"], "cannot be made: Not a directory"),
    ],
)
def test_bad_requests_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["check", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_python_takes_the_same_words() -> None:
    with pytest.raises(ConfigError, match="--board takes"):
        stamm.check("xielu", board=True)
    with pytest.raises(ConfigError, match="the board has no setting 'nonsense'"):
        stamm.check(board=True, nonsense=1)
    with pytest.raises(ConfigError, match="--board takes"):
        stamm.check(None, "rest", board=True)


def test_the_working_folder_takes_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object, **__: object) -> BoardRecord:
        assert Path("new/pages").is_dir() or not made
        return record

    record, made = board_of(entries=("relu",)), []
    monkeypatch.setattr(verb, "measure_board", measured)
    monkeypatch.chdir(tmp_path)
    stamm.check(board=True, out=".")
    made.append("new/pages")
    stamm.check(board=True, out="new/pages")
    for folder in (tmp_path, tmp_path / "new" / "pages"):
        assert {path.name for path in folder.glob("*.md")} == {LIBRARIES_PAGE, TARGETS_PAGE}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_does_not_answer_is_an_error_and_not_zeros() -> None:
    """Would catch results that no kernel wrote."""
    spec = catalog.get("relu")
    program = program_of(spec)
    text = TARGETS["cuda"].write(program)
    case = Case(program, text if isinstance(text, bytes) else text.encode(), (torch.ones(8),), ())
    run = gpu_targets.side_by_side(gpu_targets.run_cuda)
    [outcome] = run([case])
    assert isinstance(outcome, RunError) and "CUDA fails: " in outcome.line()
