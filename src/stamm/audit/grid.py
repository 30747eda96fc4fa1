"""Memorization over prefix length x offset x repeats x language, by greedy and sampled continuations.

One forward pass over a passage, from an offset on, gives the key-value cache, the first logits and the
true tokens' log-probabilities of all its prefix lengths. Greedy and sampled continuations both start
from that cache.

Source   the grid of swiss-ai/apertus_memorization
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from stamm.audit.config import AuditConfig, GridConfig
from stamm.audit.extraction import chance_within, samples_needed, token_statistics
from stamm.audit.memorization import NEVER, Passage
from stamm.audit.rouge import longest_common_span, type_token_ratio
from stamm.base.console import Progress
from stamm.base.rouge import rouge_l
from stamm.models.attention import KVCache
from stamm.models.decode_step import PromptStates
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.models.sampling import Start, sample_from
from stamm.models.sampling_config import SamplingConfig
from stamm.statistics.estimates import difference_estimate, mean_estimate, share_estimate

_SLOTS = 128  # continued at once
_BUCKET = 3  # repeats that the published loader rejects
_LOW_RATIO = 0.4
TRIALS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
CHANCES = (0.5, 0.9)
ALL_LANGUAGES = ""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A passage and its token ids, without <s>."""

    passage: Passage
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A passage at a point of the grid: the model sees `prefix` tokens after `offset` skipped ones.

    number   of its random numbers, in the whole grid
    truth    true continuation, token ids
    """

    encoded: Encoded
    prefix: int
    offset: int
    number: int
    truth: list[int]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The continuations of a point and their costs.

    nll_nats         mean negative log-likelihood of a token of the truth
    log_p            log-probability, nats, that a sample begins with the first match_tokens of the
                     truth, under the sampling settings
    greedy, sampled  continuations, token ids
    """

    point: Point
    nll_nats: float
    log_p: float
    greedy: list[int]
    sampled: list[int]


def points(
    config: GridConfig, new_tokens: int, room: int, given: Sequence[Encoded]
) -> tuple[list[Point], int]:
    """The points of the grid that fit into passage and context, and the number that do not.

    room   tokens of the context, <s> not counted
    """
    selected: list[Point] = []
    left_out = 0
    places = itertools.product(config.offsets, config.prefixes)
    for number, ((offset, prefix), encoded) in enumerate(itertools.product(places, given)):
        truth = encoded.tokens[offset + prefix : offset + prefix + new_tokens]
        if (
            len(truth) < new_tokens
            or prefix + new_tokens > room
            or _dropped(config, encoded)
            or ("offset_bucket" in config.as_published and offset and _repeats(encoded) == _BUCKET)
            or (
                "low_type_token_ratio" in config.as_published
                and type_token_ratio(truth) < _LOW_RATIO
            )
        ):
            left_out += 1
        else:
            selected.append(
                Point(encoded=encoded, prefix=prefix, offset=offset, number=number, truth=truth)
            )
    return selected, left_out


def _dropped(config: GridConfig, encoded: Encoded) -> bool:
    return encoded.passage.probe_id in config.excluded


def _repeats(encoded: Encoded) -> int:
    return encoded.passage.repeats


@torch.no_grad()
def outcomes(
    config: AuditConfig,
    grid: GridConfig,
    decoder: Decoder,
    begin: Sequence[int],
    given: Sequence[Point],
    progress: Progress,
) -> list[Outcome]:
    """The outcome of each point; points of one passage and offset share a forward pass.

    begin   ids before every prefix, such as <s>
    """
    decoder = decoder.merged()
    rows: dict[tuple[str, int], list[Point]] = {}
    for point in given:
        rows.setdefault((point.encoded.passage.probe_id, point.offset), []).append(point)
    measured: list[Outcome] = []
    progress.begin("grid", len(given), "points")
    groups = list(rows.values())
    lengths = [_length(row, len(begin)) for row in groups]
    for batch in length_batches(lengths, config.batch_tokens):
        measured += _batch(config, grid, decoder, begin, [groups[number] for number in batch])
        progress.advance(len(measured))
    progress.end(f"{len(measured)} points")
    return measured


def _length(row: Sequence[Point], begin: int) -> int:
    return begin + max(point.prefix + len(point.truth) for point in row)


def _batch(
    config: AuditConfig,
    grid: GridConfig,
    decoder: Decoder,
    begin: Sequence[int],
    rows: Sequence[Sequence[Point]],
) -> list[Outcome]:
    first = len(begin)
    lengths = [_length(row, first) for row in rows]
    shown = (row[0].encoded.tokens[row[0].offset :] for row in rows)
    tokens_BT, _ = padded(
        [[*begin, *ids[: length - first]] for ids, length in zip(shown, lengths, strict=True)]
    )
    caches = [KVCache() for _ in decoder.model.layers]
    hidden_BTD = decoder.model(tokens_BT[:, :-1], caches=caches)
    costs: list[tuple[float, float]] = []
    starts: list[Start] = []
    flat = [point for row in rows for point in row]
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        stats = token_statistics(
            decoder, hidden_BTD[index, : length - 1], tokens_BT[index, 1:length], grid
        )
        for point in row:
            end = first + point.prefix  # the position of the first token of the truth
            truth = slice(end - 1, end - 1 + len(point.truth))
            match = slice(end - 1, end - 1 + min(grid.match_tokens, len(point.truth)))
            costs.append((-float(stats.log_prob[truth].mean()), float(stats.drawn[match].sum())))
            logits_PV = decoder.lm_head(hidden_BTD[index, end - 1]).expand(len(rows), -1)
            states = PromptStates.of(caches, logits_PV, [end] * len(rows))
            starts.append(Start(len(starts), point.number, states, index))
    produced = _continued(decoder, grid, starts, config.new_tokens)
    return [
        Outcome(point=point, nll_nats=nll, log_p=log_p, greedy=greedy, sampled=sampled)
        for point, (nll, log_p), (greedy, sampled) in zip(flat, costs, produced, strict=True)
    ]


def _continued(
    decoder: Decoder, grid: GridConfig, starts: Sequence[Start], new_tokens: int
) -> list[tuple[list[int], list[int]]]:
    """The greedy and the sampled continuation from each start."""
    drawn = SamplingConfig(
        temperature=grid.temperature,
        top_k=grid.top_k,
        top_p=grid.top_p,
        seed=grid.seed,
        max_new_tokens=new_tokens,
        slots=_SLOTS,
    )
    greedy, sampled = (
        {
            done.request: done.tokens
            for done in sample_from(decoder, starts, len(starts), config, frozenset())
        }
        for config in (replace(drawn, temperature=0.0), drawn)
    )
    return [(greedy[start.request], sampled[start.request]) for start in starts]


def measures(config: GridConfig, given: Outcome) -> dict[str, dict[str, float]]:
    """Measures of the greedy and of the sampled continuation of a point."""
    truth = given.point.truth
    match = min(config.match_tokens, len(truth))
    return {
        name: {
            "rouge_l": rouge_l(produced, truth),
            "longest_common_span_share": longest_common_span(produced, truth) / len(truth),
            "exact_match": float(produced[:match] == truth[:match]),
            "type_token_ratio": type_token_ratio(produced),
        }
        for name, produced in (("greedy", given.greedy), ("sampled", given.sampled))
    }


def point_row(given: Outcome, measured: Mapping[str, Any]) -> dict[str, Any]:
    """A point as a line of grid_points.jsonl: numbers alone."""
    point, passage = given.point, given.point.encoded.passage
    return {
        "probe_id": passage.probe_id,
        "language": passage.language,
        "repeats": passage.repeats,
        "prefix_tokens": point.prefix,
        "offset_tokens": point.offset,
        "nll_nats": given.nll_nats,
        "log_p": max(given.log_p, -1e9),  # JSON has no infinity
        "samples_for_half": samples_needed(given.log_p, 0.5),
        "samples_for_nine_tenths": samples_needed(given.log_p, 0.9),
        "true_type_token_ratio": type_token_ratio(point.truth),
        **measured,
    }


def cells(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means with intervals over passages by prefix, offset, repeats and language.

    A cell of all languages has language ""; where passages are of one language alone there are no
    others. Differences are to the control of the same prefix, offset and language.
    """
    rows = list(rows)
    languages = {row["language"] for row in rows}
    groups: dict[tuple[int, int, str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        named = {ALL_LANGUAGES, row["language"]} if len(languages) > 1 else {ALL_LANGUAGES}
        for language in sorted(named):
            key = (row["prefix_tokens"], row["offset_tokens"], language, row["repeats"])
            groups.setdefault(key, []).append(row)
    return [
        {
            "prefix_tokens": prefix,
            "offset_tokens": offset,
            "language": language,
            "repeats": repeats,
            "passages": len(group),
            "nll_nats": asdict(mean_estimate([row["nll_nats"] for row in group])),
            "true_type_token_ratio": asdict(
                mean_estimate([row["true_type_token_ratio"] for row in group])
            ),
            **{
                name: {
                    key: asdict(
                        (share_estimate if key == "exact_match" else mean_estimate)(
                            [row[name][key] for row in group]
                        )
                    )
                    for key in group[0][name]
                }
                for name in ("greedy", "sampled")
            },
            **_minus_control(group, groups.get((prefix, offset, language, NEVER)), repeats),
        }
        for (prefix, offset, language, repeats), group in sorted(groups.items())
    ]


def _minus_control(
    group: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]] | None, repeats: int
) -> dict[str, Any]:
    if not control or repeats == NEVER:
        return {"nll_minus_control": None, "rouge_l_minus_control": None}
    nll = [[row["nll_nats"] for row in side] for side in (group, control)]
    rouge = [[row["greedy"]["rouge_l"] for row in side] for side in (group, control)]
    return {
        "nll_minus_control": asdict(difference_estimate(*nll)),
        "rouge_l_minus_control": asdict(difference_estimate(*rouge)),
    }


def extraction_rates(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Share of passages that n samples contain with a chance of at least p, by repeats.

    Of the points with the shortest prefix and offset alone.
    """
    if not rows:
        return []
    prefix = min(row["prefix_tokens"] for row in rows)
    offset = min(row["offset_tokens"] for row in rows)
    groups: dict[int, list[float]] = {}
    for row in rows:
        if (row["prefix_tokens"], row["offset_tokens"]) == (prefix, offset):
            groups.setdefault(row["repeats"], []).append(row["log_p"])
    return [
        {
            "repeats": repeats,
            "samples": n,
            "chance": chance,
            "passages": len(group),
            "share": asdict(share_estimate([float(chance_within(p, n) >= chance) for p in group])),
        }
        for repeats, group in sorted(groups.items())
        for n in TRIALS
        for chance in CHANCES
    ]
