"""Screen one candidate: derive it, certify it, compare it with the catalogue, check its accuracy.

Reads    nothing: the spec is in the configuration
Leaves   screen.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stamm.activations.cache import register_kernel_source, store_kernel_source
from stamm.activations.certificates.certificate import certify
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.conformance.acceptance import accepted, check_formulas
from stamm.activations.derivation.derive import derive
from stamm.activations.describe import cost, operations_text
from stamm.activations.equivalence.compare import rediscover
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import write_record
from stamm.runs.job import Workspace
from stamm.search.config import CandidateConfig, ScreenLimits
from stamm.search.records import SCREENED, CandidateFile

NUM_INPUTS = 10_000  # of float32, as in the check before a training run


def run(config: CandidateConfig, workspace: Workspace) -> None:
    """Write what the screen finds about the candidate; one that fails raises nothing."""
    progress = workspace.progress
    progress.begin(f"candidate {config.name}", 1, "candidate")
    if config.spec is None:
        candidate = CandidateFile(name=config.name, reasons=(config.refused,))
    else:
        candidate = screened(config.spec, config.screen)
    write_record(workspace.folder / SCREENED, CandidateFile, vars(candidate))
    progress.end("; ".join(candidate.reasons) or "passed")


def screened(spec: Spec, screen: ScreenLimits) -> CandidateFile:
    """The facts about `spec`, and the limits of `screen` that it does not keep.

    Checked   tests/unit/search/test_screen.py
    """
    gradient = tuple(f"{piece.where}: {piece.formula}" for piece in spec.pieces)
    parameters = tuple(parameter.constraint for parameter in spec.parameters)
    try:
        derived = derive(spec)
        kernel = kernel_source(derived, "stamm search")
        certificate = certify(derived)
    except (ConfigError, DataError) as error:
        return CandidateFile(
            name=spec.name,
            content_hash=spec.content_hash,
            gradient=gradient,
            parameters=parameters,
            reasons=(error.line(),),
        )
    register_kernel_source(spec.content_hash, kernel)
    store_kernel_source(spec.content_hash, kernel)
    findings = [finding for finding in rediscover(spec) if finding.always]
    same = [x for x in findings if x.kind in ("same spec", "same function") and not x.freed]
    reasons = list(broken_limits(certificate, screen))
    if same and not screen.known:
        reasons.append(f"known: {same[0].sentence(spec.name)}")
    if not reasons:
        reasons += _inaccuracy(spec)
    moments = certificate["gaussian"]["moments"]
    bounds, operations = certificate["bounds"], cost(spec, kernel)
    return CandidateFile(
        name=spec.name,
        content_hash=spec.content_hash,
        gradient=gradient,
        parameters=parameters,
        reasons=tuple(reasons),
        known=tuple(finding.sentence(spec.name) for finding in findings),
        growth=(bounds["growth_left"]["claim"], bounds["growth_right"]["claim"]),
        nonlinearity=moments.get("nonlinearity_index"),
        gain=moments.get("gain"),
        chi=moments.get("chi"),
        operations=tuple(operations_text(operations[step]) for step in ("forward", "backward")),
    )


def _inaccuracy(spec: Spec) -> list[str]:
    """Why its kernel could not be trained with: the check that every comparison begins with."""
    try:
        check_formulas(spec)
        accepted(spec, count=NUM_INPUTS)
    except (ConfigError, DataError) as error:
        return [f"accuracy: {error.line()}"]
    return []


def _exceeds(growth: Mapping[str, Any], degree: float) -> bool:
    """Whether f grows faster than |x|**degree: x**2 log x does, for a degree of 2."""
    if growth["kind"] == "exponential":
        return True
    growth_degree = growth["degree"] or 0.0
    logarithmic = growth["kind"] == "power and logarithm" and growth["logs"] > 0
    return bool(growth_degree > degree or (growth_degree == degree and logarithmic))


def broken_limits(certificate: Mapping[str, Any], screen: ScreenLimits) -> Iterator[str]:
    """Limits that a certificate does not keep, one sentence each."""
    for side in ("left", "right"):
        growth = certificate["bounds"][f"growth_{side}"]
        if growth["status"] != "proved":
            yield f"growth: {growth['claim']}: {growth['reason']}"
        elif _exceeds(growth, screen.degree):
            yield f"growth: {growth['claim']}, which is more than |x|^{screen.degree:g}"
    zeros = certificate["shape"]["zeros_of_slope"]
    if zeros["status"] != "proved":
        yield f"flat: {zeros['claim']}: {zeros.get('reason', zeros['status'])}"
    elif zeros["flat"] and not screen.flat:
        yield f"flat: {zeros['claim']}"
    moments = certificate["gaussian"]["moments"]
    if moments["status"] != "measured":
        yield f"signal propagation: {moments['claim']}: {moments['reason']}"
        return
    low, high = screen.gain
    if not low <= moments["gain"] <= high:
        yield f"gain: {moments['gain']:.3g} under N(0, 1), outside [{low:g}, {high:g}]"
    if moments["chi"] is None:
        yield "signal propagation: E[f'(z)^2] under N(0, 1) is not finite"
    if moments["nonlinearity_index"] < screen.nonlinearity:
        yield (
            f"nonlinearity: {moments['nonlinearity_index']:.3g} under N(0, 1), below "
            f"{screen.nonlinearity:g}"
        )
