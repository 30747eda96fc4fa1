"""Probes of an implementation: what a training run relies on besides exact values.

The same probes for stamm's own module and for another implementation. They differ where stamm's
module must meet more: equal bits for every thread count and split of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from stamm.activations.conformance.calls import channels, device, modes, repeated, saved
from stamm.activations.conformance.exact import (
    FUNCTION,
    SLOPE,
    exact_quantities,
    knots,
    mixed_ups,
    parameter_slope,
)
from stamm.activations.conformance.implementations import (
    Bound,
    Implementation,
    StammImplementation,
    called,
    parameter_gradients,
    raised,
)
from stamm.activations.conformance.judge import exact_stored, judge, near_knots
from stamm.activations.conformance.ulp import budget, dtype_name, neighbours, rounded
from stamm.activations.conformance.verdict import CheckResult, errors_of, finding
from stamm.activations.module.activation import module_of
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import StammError

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_SHORT = (torch.bfloat16, torch.float16)
_STORED = (torch.bfloat16, torch.float32)
_REACH = 6.0
_AWAY = 0.02  # difference quotients stay this far from the knots
_ROWS, _WIDTH = 96, 1024
_EXTREMES = (0.0, 1e-45, 1e-38, 1e-8, 1.0, 20.0, 89.0, 745.0, 65504.0, 1e19, 3e38)
_FAR = (1e150, 1e300)  # float64 inputs between which a limit at infinity has been reached
_FLOAT64_INPUTS = 2000
_FLOAT64_ULP = 2.0**20  # arithmetic in float32 is 2**28 ulp of float64 off
_SUM_SHAPE = (4096, 64)
_SUM_ERROR = {
    torch.float32: 2.0**-13,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-10,
}  # of the sum of magnitudes


def probe(spec: Spec, implementation: Implementation | None = None) -> list[CheckResult]:
    """Every probe of an implementation of the spec, at its initial values; None: stamm's module.

    Checked  tests/unit/activations/test_conformance_probes.py, and against wrong implementations
             tests/unit/activations/test_wrong_implementations.py
    """
    own = implementation is None
    judged = StammImplementation() if implementation is None else implementation
    probes: dict[str, Callable[[Spec, Implementation], tuple[bool, str]]] = {
        "gradients in float64": _gradcheck,
        "double backward": _twice,
        "float64 is computed in float64": _float64,
        "no NaN at the extremes": _extremes,
        "limits at infinity": _infinities,
        "NaN in, NaN out": _nan,
        "slope at the knots": _at_knots,
        "shapes, strides and odd lengths": _layouts,
        "inputs are not written": _unchanged,
        "sums of parameter gradients": _sums,
        "same results for every thread count": _threads,
        "same results for every split of rows": _rows,
        "same results in every mode": modes,
        "same results of every call": repeated,
        "gradients after tensors are written": saved,
        "device of the result": device,
    }
    if not own:
        probes["parameters of one value a channel"] = channels
    if own:
        probes["parameters stay float32"] = _width
    before = "" if own else f"{judged.name}: "
    return [
        finding(before + name, partial(_tried, run, spec, judged)) for name, run in probes.items()
    ]


def _tried(
    run: Callable[[Spec, Implementation], tuple[bool, str]], spec: Spec, judged: Implementation
) -> tuple[bool, str]:
    try:
        return run(spec, judged)
    except StammError:
        raise
    except (Exception, SystemExit) as error:  # someone else's code may raise anything
        if isinstance(judged, StammImplementation):
            raise
        return False, f"raises {raised(error)}"


def _gradcheck(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    bound, leaves, inputs = _case(spec, judged)
    if spec.surrogate:
        # Declared as no derivative: it is compared with its formula instead.
        return _surrogate(spec, bound, inputs)
    worst = 0.0
    for tensors, slopes in _quotients(judged.name, bound, leaves, inputs):
        worst = max(worst, _gap(tensors, slopes))
    count = len(inputs[0])
    described = f"{count} inputs, {len(leaves)} parameters, largest difference {worst:.2g}"
    return worst < 1e-6, described + " from difference quotients"


def _twice(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    bound, leaves, inputs = _case(spec, judged)
    names = list(leaves)
    first = called(judged.name, bound, *inputs)
    # It requires a gradient: a function that can be differentiated once raises for no other one.
    weight = torch.ones_like(first).requires_grad_()
    try:
        (slope,) = torch.autograd.grad(first, inputs[:1], weight, create_graph=True)
        if slope.requires_grad:
            # All of the graph, also what does not lead to the inputs.
            slope.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except RuntimeError as error:  # second derivatives are not offered: not a wrong result
        return True, f"not offered: {str(error).splitlines()[0]}"
    passed = torch.autograd.gradgradcheck(
        lambda *t: bound.function(dict(zip(names, t[: len(names)], strict=True)), *t[len(names) :]),
        (*leaves.values(), *inputs),
        raise_exception=False,
        atol=1e-5,
        rtol=1e-4,
    )
    return passed, f"{len(inputs[0])} inputs, {len(names)} parameters, against difference quotients"


def _float64(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """stamm's module: within the budget. Others: f and f' beyond the accuracy of float32."""
    own = isinstance(judged, StammImplementation)
    wanted = None if own else (FUNCTION, SLOPE)
    verdict = judge(spec, judged, dtypes=(torch.float64,), quantities=wanted, count=_FLOAT64_INPUTS)
    (in_float64,) = verdict.dtypes
    allowed = in_float64.budget_ulp if own else _FLOAT64_ULP
    worst = max(
        (q.worst.largest for q in in_float64.quantities if q.worst is not None), default=0.0
    )
    described = f"{in_float64.inputs:,} inputs, {worst:.3g} of {allowed:g} ulp"
    return (verdict.passed if own else worst <= allowed), described


def _extremes(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    bad = []
    count = 0
    for dtype in _DTYPES:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        top = torch.finfo(dtype)
        half = torch.tensor([*_EXTREMES, top.max, top.tiny], dtype=torch.float64).to(dtype)
        reach = budget(
            spec.name, dtype_name(dtype)
        ).reach  # the verdict reports it where it is finite
        half = half[torch.isfinite(half) & (half <= reach)]
        x = torch.cat([half, -half]).requires_grad_()
        y = called(judged.name, bound, x, *_ups(spec, x))
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
        wrong = torch.isnan(y) | (torch.isnan(slope) & ~_at_singular_knots(spec, bound, x))
        count += len(x)
        bad += [f"{dtype_name(dtype)} at x = {at:g}" for at in x[wrong].tolist()]
    return not bad, ", ".join(bad[:3]) or f"{count} inputs of {len(_DTYPES)} dtypes"


def _infinities(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """f at an infinity is its limit there, where float64 shows one and stamm's own module has it.

    Products of an infinity and 0, as in x * sigmoid(x), are NaN in torch's own functions as well.
    """
    checked, wrong, own_nan = 0, [], 0
    for dtype in _DTYPES:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        own = StammImplementation().bind(spec, spec.initial_values(), dtype)
        infinite = torch.tensor([-torch.inf, torch.inf], dtype=dtype)
        ups = _ups(spec, infinite)
        y = called(judged.name, bound, infinite, *ups).double()
        offered = ~torch.isnan(own(infinite, *ups))
        for side, value, known in zip((-1.0, 1.0), y.tolist(), offered.tolist(), strict=True):
            if not known:
                own_nan += 1
                continue
            far = torch.tensor([side * size for size in _FAR], dtype=torch.float64)
            values = exact_quantities(spec, bound.values, far, _ones(far, _ups(spec, far)))
            near, limit = values[FUNCTION].values.tolist()
            settled = (
                abs(near - limit) <= 1e-9 * abs(limit) or abs(limit) > abs(near) >= _FAR[0] / 1e6
            )
            if near != near or limit != limit or not settled:
                continue
            expected = rounded(values[FUNCTION].values[1:], dtype).item()
            if abs(limit) > abs(near):
                expected = torch.copysign(torch.tensor(torch.inf), torch.tensor(limit)).item()
            checked += 1
            same = value == expected or abs(value - expected) <= 4 * torch.finfo(dtype).eps * abs(
                expected
            )
            if not same:
                wrong.append(
                    f"f({side * torch.inf:g}) is {value:g} in {dtype_name(dtype)}, not {expected:g}"
                )
    described = f"{checked} limits in {len(_DTYPES)} dtypes"
    described += f", {own_nan} not judged: stamm returns NaN" if own_nan else ""
    return not wrong, "; ".join(wrong[:3]) or described


def _nan(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    kept = []
    for dtype in _DTYPES:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        # Alone, and between numbers, in lengths that fill vectors and leave a tail.
        for length in (2, 67):
            x = torch.ones(length, dtype=dtype)
            x[::3] = torch.nan
            y = called(judged.name, bound, x, *_ups(spec, x))
            if not torch.equal(torch.isnan(y), torch.isnan(x)):
                kept.append(f"{dtype_name(dtype)} ({length} inputs)")
            if isinstance(spec.arity, Gated):
                y = called(judged.name, bound, torch.full_like(x, 1.5), x)
                if not torch.equal(torch.isnan(y), torch.isnan(x)):
                    kept.append(f"{dtype_name(dtype)} (up)")
            # A loss that is NaN reaches the layers below, wherever the slope is not 0.
            leaf = torch.full((length,), 1.5, dtype=dtype).requires_grad_()
            weight = torch.where(torch.isnan(x), torch.nan, torch.ones_like(x))
            y = called(judged.name, bound, leaf, *_ups(spec, leaf))
            (slope,) = torch.autograd.grad(y, leaf, weight)
            there = torch.isnan(slope) == torch.isnan(x)
            if not (there | (slope == 0)).all():
                kept.append(f"{dtype_name(dtype)} (gradients)")
    kept = list(dict.fromkeys(kept))
    return not kept, f"lost or spread in {', '.join(kept)}" if kept else f"{len(_DTYPES)} dtypes"


def _at_knots(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """The slope that comes back lies between the gradients on both sides of the knot."""
    checked, wrong, infinite = 0, [], 0
    for dtype in _DTYPES:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        points = torch.tensor(knots(spec, bound.values), dtype=torch.float64)
        x = points.to(dtype).requires_grad_()
        if not len(x):
            return True, "there are none"
        ups = _ups(spec, x)
        y = called(judged.name, bound, x, *ups)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
        at = x.detach()
        around = neighbours(neighbours(at)).double()
        sides = exact_quantities(spec, bound.values, around, _ones(around, ups))[SLOPE].values
        grouped = sides.reshape(len(x), -1)
        low, high = grouped.min(-1).values, grouped.max(-1).values
        slack = 4 * torch.finfo(dtype).eps * torch.maximum(low.abs(), high.abs())
        inside = (slope.double() >= low - slack) & (slope.double() <= high + slack)
        known = torch.isfinite(low) & torch.isfinite(high)
        infinite += int((~known).sum())
        checked += len(x)
        wrong += [f"{dtype_name(dtype)} at x = {k:g}" for k in at[known & ~inside].tolist()]
    described = f"{checked} slopes lie between those on both sides"
    described += f", {infinite} of them at an infinite gradient" if infinite else ""
    return not wrong, f"outside: {', '.join(wrong[:3])}" if wrong else described


def views(dtype: torch.dtype, *, factors: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Tensors of moderate numbers in the shapes and memory layouts that networks use, named.

    factors   powers of two of both signs instead: the up of a gated spec
    """

    def numbers(count: int) -> Tensor:
        share = mixed_ups(count, torch.float64)
        if factors:
            return (share.sign() * torch.where(share.abs() > 1.4, 2.0, 1.0)).flip(0).to(dtype)
        # Magnitudes from 1e-3 to 8, so that no tail of the function is the same everywhere.
        return (share.sign() * 2.0 ** (13 * share.abs() - 23)).to(dtype)

    for length in (0, 1, 2, 3, 7, 15, 17, 31, 33, 1023, 1025, 32_771):
        yield f"{length:,} elements", numbers(length)
    yield "0-d", numbers(1).reshape(())
    for shape in ((7, 13), (1, 40), (3, 1025), (257, 131), (0, 5), (4, 9, 16), (2, 3, 5, 7)):
        yield " x ".join(map(str, shape)), numbers(torch.Size(shape).numel()).reshape(shape)
    yield "every second element", numbers(2050)[::2]
    yield "every second of many elements", numbers(66_000)[::2]
    yield "from the second element on", numbers(1026)[1:]
    yield "a column", numbers(7 * 300).reshape(300, 7)[:, 3]
    yield "transposed", numbers(33 * 129).reshape(33, 129).T
    yield "transposed, large", numbers(257 * 131).reshape(257, 131).T
    channels = numbers(2 * 5 * 64 * 64).reshape(2, 5, 64, 64)
    yield "channels_last", channels.contiguous(memory_format=torch.channels_last)
    yield "expanded", numbers(33).expand(5, 33)


def _weights(view: Tensor) -> Iterator[Tensor]:
    """Incoming gradients in several layouts: powers of two, by which slopes are multiplied exactly."""
    yield torch.ones((), dtype=view.dtype).expand(view.shape)
    signed = torch.tensor([1.0, -2.0, 0.5, -1.0, 4.0], dtype=view.dtype)
    yield signed.repeat(view.numel() // 5 + 1)[: view.numel()].reshape(view.shape)
    if view.dim() > 1:
        # In the reverse order of memory.
        turned = signed.repeat(view.numel() // 5 + 1)[: view.numel()]
        yield turned.reshape(view.shape[::-1]).permute(*reversed(range(view.dim())))


def _layouts(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """Values and slopes of every view, the slopes for incoming gradients of several layouts."""
    checked, wrong = 0, []
    for dtype in _STORED:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        allowed = budget(spec.name, dtype_name(dtype))
        for (name, view), (_, factor) in zip(views(dtype), views(dtype, factors=True), strict=True):
            ups = [factor] if isinstance(spec.arity, Gated) else []
            wide = [t.double().reshape(-1) for t in (view, *ups)]
            exact = exact_quantities(spec, bound.values, *wide)
            before = view.clone()
            slopes = []
            for weight in _weights(view):
                leaf = view.detach().requires_grad_()
                y = called(judged.name, bound, leaf, *ups)
                slopes.append(torch.autograd.grad(y, leaf, weight)[0] / weight)
            with torch.no_grad():
                alone = called(judged.name, bound, view, *ups)
            if not torch.equal(before, view):
                wrong.append(f"the input is written: {name}, {dtype_name(dtype)}")
                continue
            _, ambiguous = near_knots(spec, bound.values, view.reshape(-1))
            checked += 1
            for what, result, quantity in (
                ("f", y.detach(), FUNCTION),
                ("f without gradients", alone, FUNCTION),
                *(("f'", slope, SLOPE) for slope in slopes),
            ):
                judged_at = exact[quantity].well_conditioned & ~ambiguous
                errors, finite = errors_of(
                    result.reshape(-1), exact[quantity].values, room=allowed.room
                )
                bad = judged_at & (~finite | (errors > allowed.ulp))
                if bad.any():
                    at = int(bad.nonzero()[0])
                    wrong.append(
                        f"{what} of {name}, {dtype_name(dtype)}: {int(bad.sum())} of {len(bad)}, "
                        f"first at x = {view.reshape(-1)[at].item():g}"
                    )
                    break
    return not wrong, "; ".join(wrong[:2]) or f"{checked} tensors of {len(_STORED)} dtypes"


def _unchanged(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """Inputs and incoming gradients keep their bits, with and without gradients."""
    changed = []
    for dtype in _STORED:
        bound = judged.bind(spec, spec.initial_values(), dtype)
        for count in (67, 40_000):
            x = mixed_ups(count, dtype) * 2
            ups = [mixed_ups(count, dtype)] if isinstance(spec.arity, Gated) else []
            weight = mixed_ups(count, dtype)
            before = [t.clone() for t in (x, *ups, weight)]
            with torch.no_grad():
                called(judged.name, bound, x, *ups)
            given = [t.detach().requires_grad_() for t in (x, *ups)]
            # Not a leaf, as in a network: a leaf would refuse to be written.
            y = called(judged.name, bound, *(t.view_as(t) for t in given))
            torch.autograd.grad(y, given, weight)
            names = ["x", *(["up"] if ups else []), "the incoming gradient"]
            changed += [
                f"{name} ({dtype_name(dtype)}, {count:,} elements)"
                for name, now, then in zip(names, (x, *ups, weight), before, strict=True)
                if not torch.equal(now, then)
            ]
    return not changed, f"written: {', '.join(changed[:3])}" if changed else "4 calls"


def _sums(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """Gradients of parameters over many inputs, against the sum of the exact ones in float64."""
    worst, where = 0.0, ""
    for dtype in (torch.float16, *_STORED):
        bound = judged.bind(spec, spec.initial_values(), dtype)
        if not bound.leaves:
            return True, "there are none" if not spec.trainable else "not offered"
        for share in (1.0, 0.37, 2.9):
            count = torch.Size(_SUM_SHAPE).numel()
            x = (mixed_ups(count, torch.float64) * share).to(dtype)
            up = mixed_ups(count, dtype) if isinstance(spec.arity, Gated) else None
            exact = exact_stored(spec, bound, x.double(), None if up is None else up.double())
            leaves = {n: leaf.detach().clone().requires_grad_() for n, leaf in bound.leaves.items()}
            # Once alone, as in a layer whose input needs no gradient, then with it.
            given = [
                t.reshape(_SUM_SHAPE).requires_grad_(share != 1.0) for t in (x, up) if t is not None
            ]
            y = bound.function(leaves, *given)
            # Small enough that the sum fits a parameter that is stored in float16.
            weight = torch.full(_SUM_SHAPE[1:], 2.0**-8 if dtype == torch.float16 else 1.0)
            weight[::3] *= 1.0 if share == 1.0 else -0.5
            weight = weight.to(dtype).expand(_SUM_SHAPE)
            needed = {**leaves, **({"x": given[0]} if share != 1.0 else {})}
            gradients = parameter_gradients(judged.name, y, needed, weight)[: len(leaves)]
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
                terms = exact[parameter_slope(name)].values * weight.reshape(-1)
                allowed = _SUM_ERROR.get(leaf.dtype, _SUM_ERROR[torch.float32])
                size = terms.abs().sum().item()
                error = abs(gradient.double().sum().item() - terms.sum().item())
                if size and error / size / allowed > worst:
                    worst = error / size / allowed
                    where = f"{name}, {dtype_name(dtype)} inputs, {count:,} terms"
    return worst <= 1, f"{worst:.2g} of the allowed error" + (f" in {where}" if where else "")


def _threads(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    before = torch.get_num_threads()
    counts = (1, 2, 3)
    runs = []
    try:
        for count in counts:
            torch.set_num_threads(count)
            runs.append([part for dtype in _STORED for part in _step(spec, judged, dtype)])
    finally:
        torch.set_num_threads(before)
    same = all(_agree(runs[0], other, judged, spec) for other in runs[1:])
    described = (
        f"{len(runs[0])} results of {_ROWS}x{_WIDTH} inputs, {', '.join(map(str, counts))} threads"
    )
    return same, described


def _rows(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    """Rows computed separately have the same outputs and input gradients as together."""
    parts = (1, 7, _ROWS)
    same = True
    for dtype in _STORED:
        runs = []
        for size in parts if dtype == torch.bfloat16 else parts[1:]:
            slices = [_step(spec, judged, dtype, i, i + size)[:2] for i in range(0, _ROWS, size)]
            runs.append([torch.cat(column) for column in zip(*slices, strict=True)])
        same &= all(_agree(runs[0], other, judged, spec) for other in runs[1:])
    return same, f"{_ROWS} rows in parts of {', '.join(map(str, parts))}"


def _agree(
    left: Sequence[Tensor], right: Sequence[Tensor], judged: Implementation, spec: Spec
) -> bool:
    """Equal bits of stamm's module; others may differ by two roundings and the order of a sum."""
    if isinstance(judged, StammImplementation):
        return all(map(torch.equal, left, right))
    return all(
        torch.allclose(
            a.double(),
            b.double(),
            rtol=2 * budget(spec.name, dtype_name(a.dtype)).ulp * torch.finfo(a.dtype).eps,
            atol=1e-3 * max(a.abs().max().item(), 1e-6) if a.numel() == 1 else 1e-6,
            equal_nan=True,
        )
        for a, b in zip(left, right, strict=True)
    )


def _width(spec: Spec, judged: Implementation) -> tuple[bool, str]:
    if not spec.trainable:
        return True, "there are none"
    kept = True
    for dtype in _SHORT:
        module: nn.Module = nn.Sequential(module_of(spec)).to(dtype)
        kept &= all(p.dtype == torch.float32 for p in module.parameters())
    return kept, f"{len(spec.trainable)} under .bfloat16() and .half()"


def _case(
    spec: Spec, judged: Implementation
) -> tuple[Bound, dict[str, Tensor], tuple[Tensor, ...]]:
    """The implementation in float64, and inputs between the knots."""
    bound = judged.bind(spec, spec.initial_values(), torch.float64)
    # In float64 also where a module keeps its parameters in float32: quotients need the digits.
    leaves = {n: leaf.double().requires_grad_() for n, leaf in bound.leaves.items()}
    x = torch.linspace(-_REACH, _REACH, 25, dtype=torch.float64) + 0.0137
    points = torch.tensor(knots(spec, bound.values), dtype=torch.float64)
    x = x[((x[:, None] - points).abs() > _AWAY).all(-1)]
    inputs = [x.requires_grad_()]
    if isinstance(spec.arity, Gated):
        inputs.append(mixed_ups(len(x), torch.float64).requires_grad_())
    return bound, leaves, tuple(inputs)


def _quotients(
    name: str, bound: Bound, leaves: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each leaf and input the gradient of a weighted sum, and its difference quotient."""
    weight = mixed_ups(len(inputs[0]), torch.float64)
    tensors = [*leaves.values(), *inputs]
    names = list(leaves)

    def total(parts: list[Tensor]) -> Tensor:
        held = dict(zip(names, parts[: len(names)], strict=True))
        return bound.function(held, *parts[len(names) :]) * weight

    y = total(tensors)
    given = {**leaves, **dict(zip(("x", "up"), inputs, strict=False))}
    gradients = parameter_gradients(name, y, given, torch.ones_like(y))
    with torch.no_grad():
        for i, gradient in enumerate(gradients):
            step = 1e-5
            moved = []
            for side in (step, -step):
                parts = [t + side if j == i else t for j, t in enumerate(tensors)]
                moved.append(total(parts))
            quotient = (moved[0] - moved[1]) / (2 * step)
            yield gradient, quotient if i >= len(names) else quotient.sum().reshape(gradient.shape)


def _surrogate(spec: Spec, bound: Bound, inputs: tuple[Tensor, ...]) -> tuple[bool, str]:
    y = bound(*inputs)
    (slope,) = torch.autograd.grad(y, inputs[0], torch.ones_like(y))
    up = inputs[1].detach() if len(inputs) > 1 else None
    stated = exact_quantities(spec, bound.values, inputs[0].detach(), up)[SLOPE].values
    worst = _gap(slope, stated)
    return worst < 1e-12, f"the declared surrogate, largest difference {worst:.2g}"


def _step(
    spec: Spec, judged: Implementation, dtype: torch.dtype, start: int = 0, stop: int = _ROWS
) -> list[Tensor]:
    """Output, input gradients and parameter gradients of some rows of one fixed input."""
    bound = judged.bind(spec, spec.initial_values(), dtype)
    leaves = {n: leaf.detach().clone().requires_grad_() for n, leaf in bound.leaves.items()}
    every = mixed_ups(3 * _ROWS * _WIDTH, torch.float64).reshape(3, _ROWS, _WIDTH)
    x, up, weight = (every[i, start:stop].to(dtype) for i in range(3))
    x.requires_grad_()
    y = bound.function(leaves, *((x, up) if isinstance(spec.arity, Gated) else (x,)))
    return [y.detach(), *parameter_gradients(judged.name, y, {"x": x, **leaves}, weight)]


def _at_singular_knots(spec: Spec, bound: Bound, x: Tensor) -> Tensor:
    points = knots(spec, bound.values) if spec.continuity == "singular" else []
    return torch.isin(x.detach().double(), torch.tensor(points, dtype=torch.float64))


def _gap(given: Tensor, true: Tensor) -> float:
    return ((given - true).abs() / (1 + true.abs())).max().item()


def _ups(spec: Spec, x: Tensor) -> list[Tensor]:
    """The second input of a gated spec: ones."""
    return [torch.ones_like(x)] if isinstance(spec.arity, Gated) else []


def _ones(x: Tensor, ups: list[Tensor]) -> Tensor | None:
    return torch.ones_like(x) if ups else None
