"""Membership scores of passages, and how well each separates them from controls.

A score is higher for a text that the model is likelier to have seen:

loss        mean log-probability of a token
min_k       mean over the share min_k of the least likely tokens
min_k_pp    the same of (log p - mean) / deviation, both over the vocabulary at that position
zlib        log-probability of the text, per byte of the text compressed by zlib
reference   log-probability of the text minus that under a reference model, per byte of text

Source   Yeom et al. 2018 (loss); Shi et al. 2024, arXiv 2310.16789 (min-k %); Zhang et al. 2025,
         arXiv 2404.02936 (min-k %++); Carlini et al. 2021, arXiv 2012.07805 (zlib and reference)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from stamm.audit.config import AuditConfig, GridConfig
from stamm.audit.extraction import token_statistics
from stamm.audit.grid import Encoded
from stamm.audit.memorization import NEVER
from stamm.models.generate import nats_of_sequences
from stamm.models.loading import OpenModel
from stamm.statistics.estimates import LEVEL, MeanInterval

SCORES = ("loss", "min_k", "min_k_pp", "zlib", "reference")
_SHORTEST = 2  # tokens of a text that has scores


@torch.no_grad()
def scores(
    config: AuditConfig,
    model: OpenModel,
    given: Sequence[Encoded],
    reference: OpenModel | None = None,
) -> list[dict[str, Any]]:
    """The membership scores of each passage that has at least two tokens, as lines of a file.

    Edge   a passage longer than the context is cut at its end; one that does not fit into the
           reference model's context has no "reference"
    """
    rows = []
    room = model.decoder.config.max_context - len(model.prefix)
    for sequence in given:
        tokens = sequence.tokens[:room]
        if len(tokens) < _SHORTEST:
            continue
        text = (
            sequence.passage.text
            if len(tokens) == len(sequence.tokens)
            else model.tokenizer.decode(tokens)
        )
        ids = torch.tensor([[*model.prefix, *tokens]])
        hidden_BTD = model.decoder.model(ids[:, :-1])
        stats = token_statistics(model.decoder, hidden_BTD[0], ids[0, 1:], GridConfig())
        lowest = max(round(config.min_k * len(stats.log_prob)), 1)
        # A token with probability 1 has deviation 0, and its centred log-probability is 0, too.
        standard = (stats.log_prob - stats.mean) / stats.deviation.clamp_min(1e-6)
        total, size = float(stats.log_prob.sum()), len(text.encode())
        rows.append(
            {
                "probe_id": sequence.passage.probe_id,
                "language": sequence.passage.language,
                "group": sequence.passage.group,
                "repeats": sequence.passage.repeats,
                "loss": float(stats.log_prob.mean()),
                "min_k": float(stats.log_prob.sort().values[:lowest].mean()),
                "min_k_pp": float(standard.sort().values[:lowest].mean()),
                "zlib": total / len(zlib.compress(text.encode())),
                "reference": _against(config, reference, text, total, size),
            }
        )
    return rows


def _against(
    config: AuditConfig, reference: OpenModel | None, text: str, total: float, size: int
) -> float | None:
    if reference is None:
        return None
    ids = [*reference.prefix, *reference.tokenizer.encode(text)]
    if not 1 < len(ids) <= reference.decoder.config.max_context:
        return None
    nats = nats_of_sequences(reference.decoder, [ids], config.batch_tokens)[0]
    return (total + float(nats.double().sum())) / size


def areas(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """AUC of each score: planted passages of each number of repeats, and of all, against controls.

    Passages are compared within their group, or else within their language.
    """
    planted = sorted({row["repeats"] for row in rows} - {NEVER})
    auc_rows = []
    for name in SCORES:
        for repeats in (*planted, None):
            kept = [row for row in rows if row[name] is not None]
            wanted = planted if repeats is None else [repeats]
            area = auc(
                _by_stratum((row for row in kept if row["repeats"] in wanted), name),
                _by_stratum((row for row in kept if row["repeats"] == NEVER), name),
            )
            if area is not None:
                auc_rows.append({"score": name, "repeats": repeats, "auc": asdict(area)})
    return auc_rows


def _by_stratum(rows: Iterable[Mapping[str, Any]], name: str) -> dict[tuple[str, str], list[float]]:
    strata: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        key = (row["group"], "") if row["group"] else ("", row["language"])
        strata.setdefault(key, []).append(row[name])
    return strata


def auc(
    planted: Mapping[Any, Sequence[float]], control: Mapping[Any, Sequence[float]]
) -> MeanInterval | None:
    """Share of pairs of one stratum in which the planted text has the higher score; ties are half.

    The interval solves |area - x| = z sqrt(V(x)) for x, so that an area of 0 or 1 has one, too;
    V is that of Newcombe, with the mean number of texts of a stratum and the number of pairs.

    Returns  None when no stratum has both
    Source   Newcombe 2006, Statistics in Medicine 25 (method 5); Hanley and McNeil 1982
    """
    wins, pairs, spread = 0.0, 0, 0.0
    for key, values in planted.items():
        others = np.sort(np.array(control.get(key, ())))
        count = len(values) * len(others)
        below = np.searchsorted(others, values, "left").sum()
        wins += float(below + np.searchsorted(others, values, "right").sum()) / 2
        spread += count * ((len(values) + len(others)) / 2 - 1)
        pairs += count
    if not pairs:
        return None
    area, extra = wins / pairs, spread / pairs
    ends = [_end(area, edge, extra, pairs) for edge in (0.0, 1.0)]
    return MeanInterval(mean=area, low=min(ends[0], area), high=max(ends[1], area))


def _end(area: float, edge: float, extra: float, pairs: int) -> float:
    """Where |area - x| = z sqrt(V(x)), between `area` and `edge`."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    inside, outside = area, edge
    for _ in range(60):
        x = (inside + outside) / 2
        variance = x * (1 - x) * (1 + extra * ((1 - x) / (2 - x) + x / (1 + x))) / pairs
        if abs(area - x) <= z * math.sqrt(variance):
            inside = x
        else:
            outside = x
    return inside
