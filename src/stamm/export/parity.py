"""Parity of an exported model: differences of its logits from the original's.

Letters: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.runs.model_outputs import KEY
from stamm.runs.schemas.export import LogitDifference

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
    found: Sequence[LogitDifference], tolerance: float, candidate: str, sha256: str
) -> dict[str, Any]:
    """The content of parity.json.

    candidate   engine and class of the exported model ("transformers 5.1.0 ApertusForCausalLM")
    sha256      of the weights of the original model

    Dtypes    both in float32. Float64 shows no smaller difference: transformers computes RMSNorm,
              rotary angles and the softmax of eager attention in float32 whatever its weights are.
              With these in float64 it agrees with ours to 1e-13 of the largest logit.
    Checked   tests/unit/models/test_golden_logits.py::test_in_float64_only_what_theirs_keeps_in_float32_differs
    """
    return {
        KEY: sha256,
        "reference": "stamm, float32",
        "candidate": f"{candidate}, float32",
        "measure": "largest |difference| of any logit, and its share of the largest |logit|",
        "tolerance": tolerance,
        "passed": all(one.within(tolerance) for one in found),
        "comparisons": [asdict(one) for one in found],
    }


def require(found: Sequence[LogitDifference], tolerance: float) -> None:
    """Check that every difference is within `tolerance`.

    Raises   ExportError with the largest difference.
    """
    for one in found:
        if not one.within(tolerance):
            raise ExportError(
                f"the exported model does not agree with the original on {one.text}: logits differ "
                f"by {one.max_absolute:.3g}, {one.max_relative:.3g} of the largest, and "
                f"{one.argmax_agreement:.1%} of the most likely tokens agree; tolerance is "
                f"{tolerance:g}",
                where="export.tolerance",
                fix="The export folder was not written. A difference above 0.001 is a wrong "
                "formula or a wrong tensor; below it, rounding: then raise export.tolerance",
            )
