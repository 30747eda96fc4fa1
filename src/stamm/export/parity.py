"""Parity of an exported model: differences of its logits from the original's.

Letters: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from stamm.base.errors import ExportError, visible
from stamm.export.records import (
    BitsAgreement,
    GreedyAgreement,
    LogitDifference,
    TokenAgreement,
)
from stamm.runs.model_outputs import KEY

Logits = Callable[[Tensor], Tensor]


@torch.no_grad()
def difference(
    text: str, ours: Logits, theirs: Logits, tokens: Sequence[Tensor]
) -> LogitDifference:
    """The logit differences of two models on `tokens`, one sequence at a time.

    text   name of the tokens for the report

    Edge     two logits closer than max_absolute may swap their order: argmax_agreement can be
             below 1 for a correct export, so it is reported and not checked.
    """
    absolute = largest = 0.0
    agreed = positions = 0
    for tokens_T in tokens:
        ours_TV, theirs_TV = ours(tokens_T[None])[0], theirs(tokens_T[None])[0]
        if ours_TV.shape != theirs_TV.shape:
            raise ExportError(
                f"the exported model gives logits of shape {tuple(theirs_TV.shape)}, the original "
                f"{tuple(ours_TV.shape)}"
            )
        # torch's maximum keeps a NaN, Python's max may lose it
        apart = torch.tensor([absolute, float((ours_TV - theirs_TV).abs().max())])
        absolute = float(apart.max())
        largest = max(largest, float(ours_TV.abs().max()))
        agreed += int((ours_TV.argmax(dim=-1) == theirs_TV.argmax(dim=-1)).sum())
        positions += len(tokens_T)
    return LogitDifference(
        text=text,
        sequences=len(tokens),
        positions=positions,
        max_absolute=absolute,
        max_relative=absolute / largest if largest else absolute,
        argmax_agreement=agreed / positions,
    )


def random_tokens(vocab_size: int, rows: int, length: int, seed: int) -> list[Tensor]:
    """`rows` sequences of `length` token ids, drawn uniformly from the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randint(vocab_size, (rows, length), generator=generator))


def report(
    differences: Sequence[LogitDifference],
    tolerance: float,
    candidate: str,
    sha256: str,
    *,
    bits_tolerance: float | None = None,
    held_out: str = "",
    measured: bool = True,
    remarks: Sequence[str] = (),
    tokens: Sequence[TokenAgreement] = (),
    bits: Sequence[BitsAgreement] = (),
    greedy: GreedyAgreement | None = None,
) -> dict[str, Any]:
    """The content of parity.json.

    candidate        engine and class of the exported model ("transformers 5.1.0 ApertusForCausalLM")
    sha256           of the weights of the original model
    bits_tolerance   gate of rounded weights, checked by `require_bits`; None: `tolerance` is the gate
    held_out         what the held-out text is
    measured         False: rounded weights whose gate was not applied
    remarks          sentences about the written weights
    tokens, bits, greedy   as in `stamm.export.held_out`

    Dtypes    both in float32. Float64 shows no smaller difference: transformers computes RMSNorm,
              rotary angles and the softmax of eager attention in float32 whatever its weights are.
              With these in float64 it agrees with ours to 1e-13 of the largest logit.
    Checked   tests/unit/models/test_golden_logits.py::test_in_float64_only_what_theirs_keeps_in_float32_differs
    """
    return {
        KEY: sha256,
        "reference": "stamm, float32",
        "candidate": candidate if bits_tolerance or not measured else f"{candidate}, float32",
        "measure": "largest |difference| of any logit, and its share of the largest |logit|",
        "tolerance": tolerance,
        "passed": measured
        and (
            bits_tolerance is not None
            or all(difference.within(tolerance) for difference in differences)
        ),
        "comparisons": [asdict(difference) for difference in differences],
        "bits_tolerance": bits_tolerance,
        "held_out": held_out,
        "measured": measured,
        "remarks": list(remarks),
        "tokens": [asdict(agreement) for agreement in tokens],
        "bits": [asdict(agreement) for agreement in bits],
        "greedy": None if greedy is None else asdict(greedy),
    }


def require_tokens(agreements: Sequence[TokenAgreement], limit: float) -> None:
    """Check that at most the share `limit` of the tokens of all languages differs.

    Raises   ExportError with the languages and their numbers.
    """
    wrong = sorted(
        (agreement for agreement in agreements if agreement.differing),
        key=lambda agreement: -agreement.differing / agreement.tokens,
    )
    if sum(agreement.differing for agreement in wrong) > limit * sum(
        agreement.tokens for agreement in agreements
    ):
        listed = ", ".join(
            f"{visible(agreement.language, 40)} {agreement.differing} of {agreement.tokens}"
            for agreement in wrong[:20]
        )
        raise ExportError(
            f"the exported tokenizer gives other ids for held-out text: {listed} tokens",
            fix="The export folder was not written: the engine cannot represent this tokenizer",
        )


def require_bits(agreements: Sequence[BitsAgreement], tolerance: float) -> None:
    """Check that held-out bits per byte increase by at most the share `tolerance`.

    Raises   ExportError with both numbers, and without held-out text.
    """
    if not agreements:
        raise ExportError(
            "rounded weights are checked by bits per byte, and the held-out text has no document of two tokens",
            where="export.held_out",
            fix="Set held_out=FILE with more text",
        )
    whole = agreements[0]
    increase = whole.exported / whole.original - 1 if whole.original else 0.0
    if not increase <= tolerance:  # also for a NaN
        raise ExportError(
            f"held-out text needs {whole.exported:.4g} bits per byte in the exported model and "
            f"{whole.original:.4g} in the original, {increase:.2%} more; {tolerance:.2%} are allowed",
            where="export.bits_tolerance",
            fix="The export folder was not written. Choose a finer export.quantization",
        )


def require_finite(differences: Sequence[LogitDifference]) -> None:
    """Check that the logits of the exported model are finite, whatever its gate is.

    Raises   ExportError for an infinite logit or a NaN
    """
    for difference in differences:
        if not math.isfinite(difference.max_absolute):
            raise ExportError(
                f"the exported model gives logits that are infinite or NaN on {difference.text}",
                where="export.quantization",
                fix="The export folder was not written. Choose another type: its range, or that of the"
                " engine's arithmetic with it, is too small for this model",
            )


def require(differences: Sequence[LogitDifference], tolerance: float) -> None:
    """Check that every difference is within `tolerance`.

    Raises   ExportError with the largest difference.
    """
    for difference in differences:
        if not difference.within(tolerance):
            raise ExportError(
                f"the exported model does not agree with the original on {difference.text}: logits differ "
                f"by {difference.max_absolute:.3g}, {difference.max_relative:.3g} of the largest, and "
                f"{difference.argmax_agreement:.1%} of the most likely tokens agree; tolerance is "
                f"{tolerance:g}",
                where="export.tolerance",
                fix="The export folder was not written. A difference above 0.001 is a wrong "
                "formula or a wrong tensor; below it, rounding: then raise export.tolerance",
            )
