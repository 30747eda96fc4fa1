"""When to use an activation: advice that follows from its spec and its certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stamm.reports.formatting import MINUS


def when_to_use(
    facts: Mapping[str, Any], certificate: Mapping[str, Any] | None
) -> tuple[tuple[str, str], ...]:
    """Headings and sentences on where the activation fits, and what to mind.

    facts         what `describe` returns
    certificate   what `certify` returned; None leaves out what is read from it
    Checked       tests/unit/reports/test_activation_page.py
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
    trained = [one["name"] for one in facts["parameters"] if one["trainable"]]
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
