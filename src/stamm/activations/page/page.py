"""The page of one activation: formulas, figures, certificate, use and origin in one file, no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from stamm.activations.describe import operations_text
from stamm.activations.page.figures import figures_of_activation, spectrum_figure
from stamm.activations.page.live import live_parts
from stamm.activations.spec import Spec
from stamm.pages import mathml
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import MINUS, percent
from stamm.pages.frame import fill
from stamm.pages.text import one_line
from stamm.version import VERSION

TEMPLATE, PACKAGE = "activation.html", "stamm.activations.page"
_LONGEST_EVIDENCE = 240
_SECTIONS = {
    "arity": "Inputs",
    "bounds": "Range and growth",
    "shape": "Shape",
    "asymptotes": "Far out",
    "symmetry": "Symmetry",
    "kind": "Kind",
    "gaussian": "Under a normal input",
    "numerics": "Overflow and conditioning",
    "for_all_parameters": "For every value of the parameters",
}
_SHARES = ("energies", "hermite_energies", "hermite_shares", "shares")


@dataclass(frozen=True, kw_only=True)
class Equation:
    """A set formula, and the same as text for a reader without MathML."""

    key: str
    title: str
    math: Markup
    text: str


@dataclass(frozen=True, kw_only=True)
class CertificateClaim:
    """One line of a certificate."""

    section: str
    claim: str
    status: str
    evidence: str

    @property
    def rank(self) -> str:
        """The class that colours the status: "proved", "measured" or "open"."""
        return {"proved": "proved", "measured": "measured"}.get(self.status, "open")


def activation_page(
    spec: Spec,
    description: Mapping[str, Any],
    *,
    certificate: Mapping[str, Any] | None = None,
    verdict: Mapping[str, Any] | None = None,
    findings: Sequence[str] | None = None,
    command: str = "",
) -> str:
    """The page about an activation as HTML text.

    description   from `describe` or `describe_spec`; with "cost", a cost section is added
    certificate   from `certify`
    verdict       a conformance verdict in plain form
    findings      sentences on equal known activations
    command       command that writes the page
    Edge          sections without data are left out; every text is escaped.
    Checked       tests/unit/activations/test_activation_page.py
    """
    figures = figures_of_activation(spec, command)
    shares = _spectrum(certificate) if certificate else None
    claims = claims_of(certificate) if certificate else []
    warnings = certificate.get("warnings", []) if certificate else []
    accuracy = tuple(_accuracy(verdict)) if verdict else ()
    sections = [
        ("use", "When to use it", True),
        ("formulas", "Formulas", True),
        ("curves", "Curves", True),
        ("parameters", "Parameters", bool(description["parameters"])),
        ("certificate", "Certificate", bool(claims)),
        ("accuracy", "Accuracy", bool(accuracy)),
        ("known", "Known as", findings is not None),
        ("cost", "Cost", "cost" in description),
        ("origin", "Origin", True),
    ]
    context: dict[str, Any] = {
        "description": description,
        "facts": _facts(description),
        "contents": [(key, title) for key, title, shown in sections if shown],
        "advice": when_to_use(description, certificate),
        "equations": _equations(description),
        "curvature": Equation(
            key="curvature",
            title="Curvature",
            math=mathml.piecewise("f''(x)", description["curvature"]),
            text=_spoken("f''(x)", description["curvature"]),
        ),
        "figures": figures,
        "spectrum": _spectrum_figure(shares, command),
        "parameters": _parameters(description),
        "claims": [(name, [c for c in claims if c.section == name]) for name in _names(claims)],
        "warnings": [str(text) for text in warnings],
        "accuracy": accuracy,
        "judged": str(verdict.get("judged_where", "")) if verdict else "",
        "findings": findings,
        "cost": _cost(description["cost"]) if "cost" in description else None,
        "origin": _origin(description, command),
        "version": VERSION,
        **live_parts(spec),
    }
    return str(fill(TEMPLATE, context, PACKAGE))


def claims_of(certificate: Mapping[str, Any]) -> list[CertificateClaim]:
    """Every claim of a certificate, section by section; what does not apply is left out."""
    claims = [
        CertificateClaim(section=_SECTIONS.get(key, key.replace("_", " ").capitalize()), **claim)
        for key, value in certificate.items()
        for claim in _claims(value)
    ]
    return [claim for claim in claims if claim.status != "not applicable"]


def _names(claims: Sequence[CertificateClaim]) -> list[str]:
    return list(dict.fromkeys(claim.section for claim in claims))


def _facts(description: Mapping[str, Any]) -> list[str]:
    trained = [p["name"] for p in description["parameters"] if p["trainable"]]
    gated = description.get("gated")
    return [
        f"two inputs, order {gated['order']}: {description['output']}" if gated else "one input",
        f"trains {', '.join(trained)}" if trained else "nothing to train",
        {"continuous": "continuous gradient", "jump": "gradient jumps"}.get(
            description["continuity"], "gradient infinite at a knot"
        ),
        f"identity {description['content_hash'][:12]}",
    ]


def _equations(description: Mapping[str, Any]) -> list[Equation]:
    parts = [
        ("gradient", "Gradient, as stated", "f'(x)", description["gradient"]),
        (
            "function",
            f"Function, its integral with {description['anchor']}",
            "f(x)",
            description["function"],
        ),
        *(
            (f"slope-{name}", f"Gradient in {name}", f"df/d{name}", pieces)
            for name, pieces in description["parameter_slopes"].items()
        ),
    ]
    if description.get("surrogate"):
        title = "The declared surrogate, which the backward pass uses instead of the gradient"
        parts.append(("surrogate", title, "s(x)", description["surrogate"]))
    if description.get("up"):
        title = f"The function h of up, as its gradient, with {description['up']['anchor']}"
        parts.append(("up", title, "h'(x)", description["up"]["gradient"]))
    return [
        Equation(
            key=f"{key}-formula",
            title=title,
            math=mathml.piecewise(left_side, pieces),
            text=_spoken(left_side, pieces),
        )
        for key, title, left_side, pieces in parts
    ]


def _spoken(left: str, pieces: Sequence[Mapping[str, str]]) -> str:
    return "; ".join(f"{left} = {p['formula']} for {p['where']}" for p in pieces)


def _parameters(description: Mapping[str, Any]) -> DataTable:
    return DataTable(
        columns=("parameter", "how it is held", "initial value", "initial, as stored"),
        rows=tuple(
            (
                str(p["name"]),
                mathml.alone(p["constraint"]) if p["trainable"] else "fixed",
                number(p["initial"]),
                number(p["initial_raw"]) if p["trainable"] else "not stored",
            )
            for p in description["parameters"]
        ),
        words=2,
    )


def number(value: Any, digits: int = 8) -> str:
    """A number with at most `digits` significant digits, or the value unchanged."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    return f"{value:.{digits}g}".replace("-", MINUS)


def _cost(cost: Mapping[str, Any]) -> DataTable:
    elements = cost["saved_inputs"]
    return DataTable(
        columns=("what", "of one element"),
        rows=(
            ("forward", operations_text(cost["forward"])),
            ("backward", operations_text(cost["backward"])),
            (
                "kept for backward",
                f"{cost['saved']}: {2 * elements} bytes in bfloat16, {4 * elements} in float32",
            ),
            ("trained numbers", str(cost["parameters"])),
        ),
        words=2,
    )


def _origin(description: Mapping[str, Any], command: str) -> DataTable:
    rows = [
        ("source", description["source"]),
        ("also called", ", ".join(description["aliases"])),
        ("notes", description["notes"]),
        ("same function elsewhere", ", ".join(description.get("peers") or [])),
        ("output", description["output"]),
        ("anchor", description["anchor"]),
        (
            "jumps of f",
            "; ".join(f"by {j['by']} at {j['at']}" for j in description.get("jumps", ())),
        ),
        ("content hash", description["content_hash"]),
        ("made by", command),
    ]
    return DataTable(
        columns=("what", "text"), rows=tuple((k, str(v)) for k, v in rows if v), words=2
    )


def _claims(value: Any) -> Iterator[dict[str, str]]:
    """Every mapping with a claim and a status, outer ones first."""
    if isinstance(value, Mapping):
        if "claim" in value and "status" in value:
            yield {
                "claim": str(value["claim"]),
                "status": str(value["status"]),
                "evidence": _evidence(value),
            }
        for inner in value.values():
            yield from _claims(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _claims(inner)


def _evidence(claim: Mapping[str, Any]) -> str:
    parts = []
    for key, value in claim.items():
        simple = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if key in ("claim", "status") or not simple or value == "":
            continue
        parts.append(str(value) if key in ("evidence", "reason") else f"{key} {number(value)}")
    return one_line("; ".join(parts).replace("_", " "), _LONGEST_EVIDENCE)


def _spectrum(certificate: Any) -> tuple[float, ...] | None:
    """The shares of the Hermite polynomials, wherever the certificate keeps them."""
    if not isinstance(certificate, Mapping):
        return None
    for key, value in certificate.items():
        numbers = isinstance(value, (list, tuple)) and len(value) > 2
        if key in _SHARES and numbers and all(isinstance(v, (int, float)) for v in value):
            return tuple(map(float, value))
        shares = _spectrum(value)
        if shares:
            return shares
    return None


def _spectrum_figure(shares: tuple[float, ...] | None, command: str) -> Figure | None:
    return spectrum_figure(shares, command) if shares else None


def _accuracy(verdict: Mapping[str, Any]) -> Iterator[tuple[str, DataTable]]:
    """One table a dtype: the largest error of each quantity where the budget holds."""
    for dtype_verdict in verdict["dtypes"]:
        rows = []
        for measured in dtype_verdict["quantities"]:
            judged = [row for row in measured["rows"] if row["judged"]]
            if not judged:
                continue
            worst = max(judged, key=lambda row: float(row["largest"]))
            rows.append(
                (
                    str(measured["quantity"]).replace("slope_in_", "slope in "),
                    f"{sum(row['count'] for row in judged):,}",
                    number(max(row["p99"] for row in judged), 3),
                    number(worst["largest"], 3),
                    number(worst["worst_at"], 6),
                    percent(max(row["wrong_sign"] for row in judged), 2),
                )
            )
        yield (
            f"{dtype_verdict['dtype']}, budget {number(dtype_verdict['budget_ulp'])} units in the last place",
            DataTable(
                columns=(
                    "quantity", "inputs", "99th percentile, ulp", "largest, ulp", "found at x",
                    "wrong sign",
                ),
                rows=tuple(rows),
                note="; ".join(str(text) for text in dtype_verdict.get("problems", [])),
            ),
        )  # fmt: skip


def when_to_use(
    facts: Mapping[str, Any], certificate: Mapping[str, Any] | None
) -> tuple[tuple[str, str], ...]:
    """Headings and sentences on where the activation fits, and what to mind.

    facts         what `describe` returns
    certificate   what `certify` returned; None leaves out what is read from it
    Checked       tests/unit/activations/test_activation_page.py
    """
    return (
        ("Block", _block(facts)),
        ("Shape", _shape(facts)),
        *_sparsity(facts),
        *_growth(certificate or {}),
        *_backward(facts),
        ("Runtimes", _runtimes(facts)),
        (
            "Which one is better",
            "That depends on model, text and length of training, and differences between good "
            "activations are often smaller than those between seeds. Measure it on your own text, "
            "at equal parameters and with equal tuning: stamm compare activations.",
        ),
    )


def _block(facts: Mapping[str, Any]) -> str:
    if facts.get("gated"):
        return (
            f"For the gated feed-forward block, whose hidden value is {facts['output']}. It has "
            "three matrices: at equal parameters it is two thirds as wide as a plain block."
        )
    return (
        "For the plain feed-forward block, down(f(up(x))), with two matrices: at equal parameters "
        "it is one and a half times as wide as a gated block."
    )


def _shape(facts: Mapping[str, Any]) -> str:
    trained = [parameter["name"] for parameter in facts["parameters"] if parameter["trainable"]]
    if not trained:
        return "Nothing to train: it can replace another fixed activation without new parameters."
    return (
        f"It learns {' and '.join(trained)} with the weights, one set for each layer: use it where "
        "layers may need different shapes. Start a trained model with it from the same stored "
        "values, or from a checkpoint that has them."
    )


def _sparsity(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    zeros = [piece["where"] for piece in facts["function"] if piece["formula"] == "0"]
    if zeros:
        yield (
            "Sparsity",
            f"Exactly 0 for {' and '.join(zeros)}: hidden values are sparse, which saves work at "
            "inference where a runtime uses it. The gradient is 0 there as well, so a unit whose "
            "inputs all fall there stops learning.",
        )


def _growth(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sides = certificate.get("bounds", {})
    degree = max((sides.get(f"growth_{side}", {}).get("degree") or 0) for side in ("left", "right"))
    reach = certificate.get("numerics", {}).get("function_overflow", {}).get("finite_up_to", {})
    ends = [
        f"x {'<' if side == 'left' else '>'} {end:.4g}".replace("-", MINUS)
        for side in ("left", "right")
        if (end := reach.get("fp16", {}).get(side)) is not None
    ]
    if degree > 1:
        said = (
            f"It grows like |x|^{degree:g}, so large inputs become much larger: keep a "
            "normalisation before the block, clip gradients, and prefer bfloat16 to float16"
        )
        yield "Growth", said + (f", where it overflows for {' and '.join(ends)}." if ends else ".")
    elif sides.get("function", {}).get("low") is not None and (
        sides["function"].get("high") is not None
    ):
        yield (
            "Growth",
            "It is bounded: activations cannot explode, and large inputs get little or no "
            "gradient, so deep stacks of it learn slowly without residual connections.",
        )


def _backward(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if facts.get("surrogate"):
        yield (
            "Backward pass",
            "The backward pass uses a declared surrogate, not the gradient of the function: use "
            "it for hard gates and quantised activations, and do not check it by finite "
            "differences.",
        )
    elif facts["continuity"] != "continuous":
        how = "jumps" if facts["continuity"] == "jump" else "is infinite"
        yield (
            "Backward pass",
            f"The gradient {how} at a knot. Training by first-order optimizers works as with ReLU; "
            "methods that use the curvature do not see it there.",
        )


def _runtimes(facts: Mapping[str, Any]) -> str:
    peers = facts.get("peers") or []
    if peers:
        return (
            f"The same function exists as {', '.join(peers)}: models can be exchanged with code "
            "that uses it. Accuracy and parameter layout may differ; the notes under Origin name "
            "known differences."
        )
    return (
        "No library in the catalogue's list has the same function: a model with it needs stamm's "
        "generated module, or an export that carries the code."
    )
