"""Loss mask of packed documents: document borders, padding and Goldfish.

Letters of a packed text: b begin, e end of a document, x a token, p padding. A target is predicted
from the token before it. Masked targets, by rule:

  tokens       b x x e b x e p p
  "stamm"      . . . .[b]. .[p p]    the first token of a document, and padding
  "released"   . . . .[b]. .[p p]    what is predicted from an e, and padding
  "report"     . . .[e]b .[e][p p]   e itself, and padding

Goldfish masks further targets; the masks are combined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.losses.config import Goldfish, Rule
from stamm.losses.goldfish import keep_mask


@dataclass(frozen=True, kw_only=True)
class MaskTokenIds:
    """Token ids that the rules need.

    end   ends a document
    pad   fills a sequence behind its last document; None: nothing is padded
    """

    end: int | None = None
    pad: int | None = None


def loss_targets(
    rule: Rule,
    tokens: NDArray[np.int64],
    document: NDArray[np.int64],
    special: MaskTokenIds,
    goldfish: Goldfish | None = None,
) -> NDArray[np.bool_]:
    """Loss mask: True where the target tokens[i + 1], predicted from tokens[i], has a loss; shape (n - 1,).

    rule       "stamm": the first token of a document follows from nothing, whatever its id. With
               Goldfish(hash="stamm") a target's mask depends on its document alone.
               "released": as the code of Apertus does. What is predicted from the end token, which
               is the next document's begin token; a document cut off without an end token is not
               seen to end. Padding counts as id 0 where Goldfish hashes it.
               "report": as in the report of Apertus: the loss on the end token is masked. The
               model then never learns to stop, and learns to begin a document after another.
    tokens     of one sequence; for Goldfish(hash="stamm") with the h - 1 tokens before it, whose
               targets the caller leaves away
    document   a number per token, equal within a document; padding belongs to the last one

    Edge     targets equal to special.pad are masked even where no sequence is padded: do not pass an
             id that has other uses
    Raises   ConfigError when a rule needs the id of the end token and has none.
    Source   swiss-ai/Megatron-LM, megatron/core/datasets/gpt_dataset.py at 040b00b, whose loss mask
             under --eod-mask-loss is 0 where the input is the end token; arXiv 2509.14233 for the
             report
    Checked  tests/unit/losses/test_loss_mask.py
    """
    inputs, labels = tokens[:-1], tokens[1:]
    keep: NDArray[np.bool_]
    if rule == "stamm":
        keep = document[1:] == document[:-1]
    elif special.end is None:
        raise ConfigError(
            f"the rule {rule!r} masks at the end token, and none is known",
            fix='Pass MaskTokenIds(end=...), or use the rule "stamm"',
        )
    else:
        keep = (inputs if rule == "released" else labels) != special.end
    if special.pad is not None:
        padding = labels == special.pad
        keep &= ~padding
        if rule == "released":
            labels = np.where(padding, 0, labels)
    if goldfish is not None:
        keep &= keep_mask(goldfish, labels, document[1:])
    return keep
