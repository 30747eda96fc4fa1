"""The conformance board: every installed library and every emitted target against the true values."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.board.carried import carried
from stamm.activations.board.gpu_targets import gpu_runs
from stamm.activations.board.library import Library, LibraryFunction
from stamm.activations.board.measure import Inputs, beyond, errors_at, inputs_of, short_row
from stamm.activations.board.records import (
    BoardRecord,
    FunctionRow,
    PrimitiveRow,
    RuntimeRecord,
    ShortRow,
    TargetRow,
)
from stamm.activations.board.rounded import correctly_rounded
from stamm.activations.board.targets import RUNS, Case, Outcome, TargetRun, each
from stamm.activations.conformance.exact import (
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    exact_quantities,
    log_uniform_inputs,
    parameter_slope,
)
from stamm.activations.conformance.implementations import raised
from stamm.activations.conformance.judge import DTYPES
from stamm.activations.conformance.ulp import dtype_name
from stamm.activations.conformance.verdict import errors_of
from stamm.activations.emitters.program import SHORT, Program, program_of
from stamm.activations.emitters.syntax import EmissionTarget
from stamm.activations.fused.graph import Graph, Node
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import StammError
from stamm.base.processor import cpu_capability, cpu_name
from stamm.version import VERSION

QUICK = ("xielu", "gelu", "elu", "swiglu", "softplus", "swish_beta")  # entries of the short form
ROUNDED, UNPAIRED = "rounded", "rounded, without pairs"
_COMMON = 2**14
_SAMPLED = 8  # every eighth input is compared with what functions err
_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)
PRIMITIVES = (
    "exp", "log", "log1p", "tanh", "erf", "erfc", "sqrt", "sin", "cos", "atan", "asinh", "sinh", "cosh",
)  # fmt: skip
_TOGETHER = 48  # entries whose inputs of 16 bits are held at a time
SHORT_DTYPES = (torch.bfloat16, torch.float16)
_OF_TWO = ("pow", "atan2")
_POSITIVE = ("log", "log1p", "sqrt")


def measure_board(
    libraries: Mapping[str, Callable[[], Library]],
    targets: Mapping[str, EmissionTarget],
    *,
    entries: Sequence[str],
    count: int,
    compiled: bool,
    log: Callable[[str], None],
) -> BoardRecord:
    """Measure libraries and targets.

    libraries   by name, what returns the library or raises an error where it is missing or broken
    targets     by name, targets of `stamm emit`
    entries     of the catalogue
    count       float32 inputs of all magnitudes, beside those that the judge always takes
    compiled    compare results of the libraries' compilers, too
    log         is called with a line for each library and target
    """
    versions: list[RuntimeRecord] = []
    functions: list[FunctionRow] = []
    for name, load in libraries.items():
        try:
            library = load()
        except Exception as error:  # a broken installation raises errors of every kind
            versions.append(RuntimeRecord(name=name, problem=_line(error)))
            log(f"{name}: {_line(error)}")
            continue
        versions.append(RuntimeRecord(name=name, version=library.version))
        rows = list(_library_rows(name, library, entries, count, compiled=compiled))
        functions += rows
        log(f"{name} {library.version}: {len(rows)} functions and dtypes")
    board = _Targets([catalog.get(name) for name in entries], count)
    runtimes: list[RuntimeRecord] = []
    target_rows: list[TargetRow] = []
    short: list[tuple[EmissionTarget, TargetRun]] = []
    primitives: list[PrimitiveRow] = []
    runs = {run.target: run for run in (*RUNS, *gpu_runs())}
    for target in (ROUNDED, *targets):
        runtime, measured_rows, measured = board.of(target, targets.get(target), runs.get(target))
        runtimes.append(runtime)
        target_rows += measured_rows
        primitives += measured
        if runtime.version and target in targets and runs[target].has_short:
            short.append((targets[target], runs[target]))
        log(f"{target}: {runtime.problem or f'{len(measured_rows)} entries, {runtime.version}'}")
    _, unpaired, _ = board.of(UNPAIRED, None, None)
    short_rows = sorted(
        board.short(short), key=lambda row: [run.target for _, run in short].index(row.target)
    )
    log(f"16 bits: {len(short_rows)} entries and dtypes")
    return BoardRecord(
        stamm_version=VERSION,
        processor=f"{cpu_name()}, {cpu_capability() or 'unknown'} vectors",
        entries=len(entries),
        inputs=len(board.x),
        libraries=tuple(versions),
        functions=tuple(functions),
        targets=tuple(runtimes),
        target_rows=tuple(target_rows),
        unpaired=tuple(unpaired),
        short_rows=tuple(short_rows),
        primitives=tuple(primitives),
    )


def _library_rows(
    name: str, library: Library, entries: Sequence[str], count: int, *, compiled: bool
) -> Iterator[FunctionRow]:
    for dtype in DTYPES[::-1]:
        try:
            functions = library.functions(dtype)
        except Exception as error:  # as above
            yield FunctionRow(
                library=name, entry="", name="", dtype=dtype_name(dtype), problem=_line(error)
            )
            continue
        common = _common_inputs(dtype)
        for function in functions:
            if function.entry in entries:
                yield _function_row(name, function, dtype, count, common if compiled else None)


def _common_inputs(dtype: torch.dtype) -> Tensor:
    """Inputs for all functions of a library: every finite one, in float32 a sample of all magnitudes."""
    if dtype == torch.float32:
        return log_uniform_inputs(_COMMON)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return every[torch.isfinite(every)]


def _function_row(
    library: str, function: LibraryFunction, dtype: torch.dtype, count: int, common: Tensor | None
) -> FunctionRow:
    spec = catalog.get(function.entry)
    values = spec.initial_values() | dict(function.values or {})
    row = FunctionRow(
        library=library, entry=spec.name, name=function.name, dtype=dtype_name(dtype),
        remark=function.remark,
    )  # fmt: skip
    measured = inputs_of(spec, dtype, values, count=count)
    try:
        results = {FUNCTION: function.value(*measured.given)}
        if function.slopes is not None:
            slopes = function.slopes(*measured.given)
            results |= dict(zip((SLOPE, UP_SLOPE), slopes, strict=False))
    except Exception as error:  # libraries raise errors of every kind
        return replace(row, problem=_line(error))
    errors = tuple(errors_at(measured, name, result) for name, result in results.items())
    if common is None or function.compiled is None:
        return replace(row, errors=errors)
    assert function.slopes is not None
    try:
        fused = function.compiled(common)
    except Exception as error:  # and their compilers
        return replace(row, errors=errors, problem=_line(error))
    eager = (function.value(common), *function.slopes(common))
    differs = tuple(
        (name, _share_of_other_bits(left, right))
        for name, left, right in zip((FUNCTION, SLOPE), eager, fused, strict=True)
    )
    return replace(row, errors=errors, differs=differs)


def _line(error: Exception) -> str:
    return error.line() if isinstance(error, StammError) else raised(error)


def _share_of_other_bits(left: Tensor, right: Tensor) -> float:
    same = (left == right) & (torch.signbit(left) == torch.signbit(right))
    same |= torch.isnan(left) & torch.isnan(right)
    return 1.0 - same.double().mean().item()


class _Targets:
    """The entries with their inputs and true values, which all targets share."""

    def __init__(self, specs: Sequence[Spec], count: int) -> None:
        self.specs = specs
        self.programs = [program_of(spec) for spec in specs]
        self.parameters = [
            {p.name: float(torch.tensor(p.initial)) for p in spec.trainable} for spec in specs
        ]
        self.measured = [
            inputs_of(spec, torch.float32, spec.initial_values() | own, count=count)
            for spec, own in zip(specs, self.parameters, strict=True)
        ]
        self.x = inputs_of(catalog.get("tanh"), torch.float32, count=count).x

    def of(
        self, name: str, target: EmissionTarget | None, run: TargetRun | None
    ) -> tuple[RuntimeRecord, list[TargetRow], list[PrimitiveRow]]:
        """The runtime of a target, a row for each entry, and its elementary functions."""
        if name in (ROUNDED, UNPAIRED):
            graphs = torch.float32 if name == ROUNDED else SHORT
            run = TargetRun(
                name,
                lambda: "",
                "float32, every operation of the graph correctly rounded: what the formula loses",
                each(lambda case: correctly_rounded(case, graphs)),
            )
        if run is None:
            problem = "not run: the board has no interpreter of this language"
            rows = [
                TargetRow(target=name, entry=spec.name, problem="not run") for spec in self.specs
            ]
            return RuntimeRecord(name=name, problem=problem), rows, []
        try:
            runtime = RuntimeRecord(name=name, version=run.version(), how=run.how)
        except Exception as error:  # as of a library
            rows = [
                TargetRow(target=name, entry=spec.name, problem="not installed")
                for spec in self.specs
            ]
            return RuntimeRecord(name=name, problem=_line(error), how=run.how), rows, []
        primitives = [] if target is None else list(self._primitives(target, run))
        return runtime, list(self._rows(name, target, run)), primitives

    def _rows(
        self, name: str, target: EmissionTarget | None, run: TargetRun
    ) -> Iterator[TargetRow]:
        cases: list[Case | StammError] = []
        for program, measured, own in zip(
            self.programs, self.measured, self.parameters, strict=True
        ):
            special = torch.tensor(_SPECIAL)
            given = [torch.cat([measured.x, special])]
            if measured.up is not None:
                given.append(torch.cat([measured.up, torch.ones_like(special)]))
            try:
                cases.append(Case(program, _text(program, target), tuple(given), (*own.values(),)))
            except StammError as error:
                cases.append(error)
        outcomes = run.run([case for case in cases if isinstance(case, Case)])
        rows: list[TargetRow] = []
        wrong: list[tuple[int, Case, list[Tensor]]] = []  # more than correct rounding
        for index, case in enumerate(cases):
            spec = self.specs[index]
            outcome: Outcome = case if isinstance(case, StammError) else next(outcomes)
            if isinstance(outcome, StammError):
                rows.append(TargetRow(target=name, entry=spec.name, problem=outcome.line()))
                continue
            values = spec.initial_values() | self.parameters[index]
            rows.append(_target_row(name, spec, self.measured[index], values, outcome))
            if isinstance(case, Case) and rows[-1].ulp > 1:
                wrong.append((index, case, outcome))
        sampled = [
            replace(case, given=tuple(x[: len(self.measured[index].x)][::_SAMPLED] for x in case.given))
            for index, case, _ in wrong
        ]  # fmt: skip
        allowed = carried(sampled, lambda given: _own(target, run, given))
        for (index, _, outcome), results in zip(wrong, allowed, strict=True):
            most = max(
                beyond(self.measured[index], error.quantity, result, own, _SAMPLED)
                for error, result, own in zip(rows[index].errors, outcome, results, strict=True)
            )
            rows[index] = replace(rows[index], beyond=most)
        yield from rows

    def short(self, ran: Sequence[tuple[EmissionTarget, TargetRun]]) -> Iterator[ShortRow]:
        """A row for each target, entry and dtype of 16 bits."""
        for dtype, first in itertools.product(SHORT_DTYPES, range(0, len(self.specs), _TOGETHER)):
            indices = range(first, min(first + _TOGETHER, len(self.specs)))
            inputs = {index: self._short_inputs(index, dtype) for index in indices}
            for target, run in ran:
                yield from self._short_rows(target, run, dtype, inputs)

    def _short_inputs(self, index: int, dtype: torch.dtype) -> Inputs:
        """Every finite number of the dtype."""
        spec, own = self.specs[index], self.parameters[index]
        return inputs_of(spec, dtype, spec.initial_values() | own, count=0)

    def _short_rows(
        self,
        target: EmissionTarget,
        run: TargetRun,
        dtype: torch.dtype,
        inputs: Mapping[int, Inputs],
    ) -> Iterator[ShortRow]:
        cases: dict[int, Case] = {}
        for index, measured in inputs.items():
            program, own = self.programs[index], self.parameters[index]
            with suppress(StammError):  # refused, as its row in float32 states
                text = _text(program, target)
                cases[index] = Case(program, text, measured.given, (*own.values(),))
        for index, outcome in zip(cases, run.run(list(cases.values())), strict=True):
            entry = self.specs[index].name
            row = ShortRow(target=run.target, entry=entry, dtype=dtype_name(dtype))
            if isinstance(outcome, StammError):
                yield replace(row, problem=outcome.line())
            else:
                yield short_row(row, inputs[index], outcome)

    def _primitives(self, target: EmissionTarget, run: TargetRun) -> Iterator[PrimitiveRow]:
        cases, names = [], []
        for function in PRIMITIVES:
            program = _program_of(function)
            x = self.x[self.x > 0] if function in _POSITIVE else self.x
            try:
                cases.append(Case(program, _text(program, target), (x,), ()))
            except StammError:
                continue
            names.append(function)
        for function, case, outcome in zip(names, cases, run.run(cases), strict=True):
            if isinstance(outcome, StammError):
                continue
            x = case.given[0]
            true = getattr(torch, function)(x.double())
            errors, finite = errors_of(outcome[0], true)
            normal = (x.abs() >= 2.0**-100) & ((true == 0) | (true.abs() >= 2.0**-100)) & finite
            errors = torch.where(normal, errors, -1.0)
            worst = int(errors.argmax())
            yield PrimitiveRow(
                target=run.target,
                function=function,
                ulp=errors[worst].item(),
                at=x[worst].item(),
                lowered=_is_lowered(case, function),
            )


def _own(
    target: EmissionTarget | None, run: TargetRun, given: Mapping[str, Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Results of a runtime's functions, by name; `rounded` has correctly rounded ones."""
    if target is None:
        return {
            name: getattr(torch, name)(*(u.double() for u in operands)).float()
            for name, operands in given.items()
        }
    cases: dict[str, Case] = {}
    for name, operands in given.items():
        program = _program_of(name)
        with suppress(StammError):  # refused: no entry has it then
            cases[name] = Case(program, _text(program, target), tuple(operands), ())
    outcomes = zip(cases, run.run(list(cases.values())), strict=True)
    return {name: outcome[0] for name, outcome in outcomes if not isinstance(outcome, StammError)}


def _is_lowered(case: Case, function: str) -> bool:
    """Whether the text has no call of the function, under the names that languages give it."""
    names = {"asinh": ("asinh", "arcsinh"), "atan": ("atan", "arctan")}.get(function, (function,))
    text = case.text.decode(errors="replace").replace(case.name, "")
    called = any(re.search(rf"(?<![a-z]){name}f?\(", text) for name in names)
    return not called and function.capitalize() not in text  # an operator of ONNX


def _text(program: Program, target: EmissionTarget | None) -> bytes:
    if target is None:
        return b""
    content = target.write(program)
    return content if isinstance(content, bytes) else content.encode()


def _program_of(function: str) -> Program:
    """A program that is one elementary function; its gradients are the function again."""
    program = copy.copy(program_of(catalog.get("identity")))
    inputs = ("x", "exponent") if function in _OF_TWO else ("x",)
    graphs: dict[str, dict[torch.dtype, Graph]] = {"forward": {}, "backward": {}}
    for dtype in (SHORT, torch.float32, torch.float64):
        for name, weights in (("forward", 0), ("backward", 1)):
            graph = Graph(
                dtype=torch.float32 if dtype == SHORT else dtype, inputs=weights + len(inputs)
            )
            read = [graph.add(Node("input", number=k)).place for k in range(graph.inputs)]
            index = graph.add(Node(function, tuple(read[weights:]))).place
            graph.outputs = (index,) * (len(inputs) if weights else 1)
            graphs[name][dtype] = graph
    # Its own graphs in index of those of a spec.
    vars(program).update(name=f"only_{function}_", inputs=inputs, **graphs)
    return program


def _target_row(
    target: str,
    spec: Spec,
    measured: Inputs,
    values: Mapping[str, float],
    results: Sequence[Tensor],
) -> TargetRow:
    count = len(measured.x)
    gated = [UP_SLOPE] if isinstance(spec.arity, Gated) else []
    names = [FUNCTION, SLOPE, *gated, *(parameter_slope(p.name) for p in spec.trainable)]
    by_name = dict(zip(names, results, strict=True))
    errors = tuple(errors_at(measured, n, result[:count]) for n, result in by_name.items())
    x = torch.tensor(_SPECIAL)
    up = torch.ones(len(x), dtype=torch.float64) if gated else None
    exact = exact_quantities(spec, values, x.double(), up)
    special = tuple(
        f"{label}({_SPECIAL[k]:g})"
        for label, quantity in (("f", FUNCTION), ("f'", SLOPE))
        for k in _unlike(by_name[quantity][count:], exact[quantity], signed=quantity == FUNCTION)
        if quantity == FUNCTION or not (spec.jumps and _SPECIAL[k] == 0)
    )
    return TargetRow(target=target, entry=spec.name, errors=errors, special=special)


def _unlike(result: Tensor, exact: ExactValues, *, signed: bool) -> list[int]:
    """Where a result is not the true value: within 16 units; NaN, infinities and the sign of 0 exactly."""
    true = exact.values
    errors, finite = errors_of(result, true)
    same = finite & (errors <= 16)
    if signed:
        same &= (true != 0) | (torch.signbit(result) == torch.signbit(true))
    same |= torch.isnan(result) & torch.isnan(true)
    same |= torch.isinf(true) & (result.double() == true)
    return torch.nonzero(~same).flatten().tolist()
