"""Audit one trained decoder for memorization of planted passages and canaries.

Reads    model (a stored decoder or a Hugging Face folder), tokenizer, and corpus (its probes.json),
         passages (a file of an earlier step) or the passages of the configuration; reference and reference_tokenizer where there are
Leaves   memorization.json, continuations.jsonl (passages of books), canaries.jsonl, grid.json,
         grid_points.jsonl, membership.json, membership_scores.jsonl; safety.json where asked for
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stamm.audit.canaries import Exposure, by_kind, exposures, rival_costs
from stamm.audit.config import AuditConfig, GridConfig
from stamm.audit.grid import Encoded, cells, extraction_rates, measures, outcomes, point_row, points
from stamm.audit.membership import areas, scores
from stamm.audit.memorization import (
    NEVER,
    Continuation,
    Passage,
    by_repeats,
    check_context,
    continuations,
    metrics,
    prompts,
)
from stamm.audit.passages import read_own, read_planted
from stamm.audit.records import GridFile, MembershipFile, SafetyFile
from stamm.audit.safety import read_answers, refusals, toxicity
from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.files import json_line, write_text
from stamm.base.hashing import redacted
from stamm.base.schema import write_record
from stamm.corpus.canaries.random_text import MADE_UP
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.corpus.config import Kind
from stamm.evaluate.records import MemorizationFile
from stamm.models.decoder import check_finite
from stamm.models.determinism import set_determinism
from stamm.models.loading import OpenModel, open_model
from stamm.models.model_source import ModelSource
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside
from stamm.statistics.estimates import LEVEL

SAFETY = "safety.json"
GRID_FILES = ("grid.json", "grid_points.jsonl")
OUTPUTS = (
    "memorization.json",
    "continuations.jsonl",
    "canaries.jsonl",
    "membership.json",
    "membership_scores.jsonl",
    *GRID_FILES,
)


def run(config: AuditConfig, workspace: Workspace) -> None:
    """Continue every planted text, rank the made-up ones, then write the results.

    Nothing is written before all texts are measured, so a failure keeps the earlier results; those
    of other weights are moved to a folder beside.
    """
    inputs, progress = workspace.inputs, workspace.progress
    own = inputs.get("passages") or (Path(config.passages) if config.passages else None)
    planted = read_own(own) if own else read_planted(inputs["corpus"])
    set_determinism(config.threads)
    model = _open(inputs, "model", "tokenizer")
    check_finite(dict(model.decoder.named_parameters()))
    check_context(config, model.decoder, len(model.prefix))
    cut = prompts(config, model.tokenizer.encode, planted.passages)
    if not cut:
        raise _too_short(config, model.tokenizer.encode, planted.passages)
    reference = _open(inputs, "reference", "reference_tokenizer") if "reference" in inputs else None
    progress.begin("planted passages", 1 + len(planted.canaries), "kinds")
    passages = continuations(config, model.decoder, model.prefix, cut)
    progress.advance(1)
    given: dict[Kind, list[Continuation]] = {}
    costs: dict[Kind, list[float]] = {}
    for number, (kind, texts) in enumerate(planted.canaries.items(), start=2):
        cut = prompts(config, model.tokenizer.encode, texts)
        given[kind] = continuations(config, model.decoder, model.prefix, cut)
        if cut and planted.drawing is not None and kind in MADE_UP:
            costs[kind] = rival_costs(
                config, model.decoder, model.tokenizer.encode, model.prefix, kind, planted.drawing
            )
        progress.advance(number)
    exposed = exposures(given, costs)
    skipped = {kind: len(texts) - len(given[kind]) for kind, texts in planted.canaries.items()}
    left_out = len(planted.passages) - len(passages)
    notes = [
        f"{len(passages) + sum(map(len, given.values()))} continued",
        *([f"{n} too short" for n in [left_out + sum(skipped.values())] if n]),
        *([f"{planted.withdrawn} withdrawn from the corpus"] if planted.withdrawn else []),
    ]
    progress.end(", ".join(notes))
    encoded = [
        Encoded(passage=p, tokens=list(model.tokenizer.encode(p.text))) for p in planted.passages
    ]
    membership = scores(config, model, encoded, reference)
    grid = _grid(config, config.grid, model, encoded, progress) if config.grid else None
    safety = _safety(config, model, passages)
    folder = workspace.folder
    set_aside(folder, model.sha256)
    settings = {name: value for name, value in to_plain(config).items() if name in _RECORDED}
    report: dict[str, Any] = {
        KEY: model.sha256,
        **settings,
        "interval": f"Student's t over passages, {LEVEL:.0%}; differences by Welch",
        "passages": len(passages),
        "skipped": left_out,
        "withdrawn": planted.withdrawn,
        "buckets": by_repeats(passages),
        "canaries": by_kind(given, passages, exposed, skipped),
    }
    lines = [_line(config, continuation, model) for continuation in passages]
    write_text(folder / "continuations.jsonl", "".join(lines))
    lines = [
        _line(
            config,
            continuation,
            model,
            {"kind": kind, **_exposure_fields(exposed.get(continuation.passage.probe_id))},
        )
        for kind, group in given.items()
        for continuation in group
    ]
    write_text(folder / "canaries.jsonl", "".join(lines))
    _write_membership(config, workspace, model, reference, membership)
    for name in (*(GRID_FILES if grid is None else ()), SAFETY):
        (folder / name).unlink(missing_ok=True)
    if safety is not None:
        write_record(folder / SAFETY, SafetyFile, safety)
    if grid is not None:
        write_text(folder / "grid_points.jsonl", "".join(map(json_line, grid[1])))
        write_record(folder / "grid.json", GridFile, grid[0])
    write_record(folder / "memorization.json", MemorizationFile, report)


def _open(inputs: Mapping[str, Path], model: str, tokenizer: str) -> OpenModel:
    return open_model(ModelSource(model=inputs[model], tokenizer=inputs[tokenizer]))


_RECORDED = ("prefix_tokens", "new_tokens", "batch_tokens", "threads", "candidates")


def _grid(
    config: AuditConfig,
    grid: GridConfig,
    model: OpenModel,
    encoded: Sequence[Encoded],
    progress: Progress,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """grid.json and the lines of grid_points.jsonl."""
    room = model.decoder.config.max_context - len(model.prefix)
    wanted, left_out = points(grid, config.new_tokens, room, encoded)
    measured = outcomes(config, grid, model.decoder, model.prefix, wanted, progress)
    rows = [point_row(outcome, measures(grid, outcome)) for outcome in measured]
    rows.sort(key=lambda row: (row["prefix_tokens"], row["offset_tokens"], row["probe_id"]))
    report = {
        KEY: model.sha256,
        "new_tokens": config.new_tokens,
        "match_tokens": min(grid.match_tokens, config.new_tokens),
        "temperature": grid.temperature,
        "top_k": grid.top_k,
        "top_p": grid.top_p,
        "seed": grid.seed,
        "as_published": list(grid.as_published),
        "excluded": len(set(grid.excluded) & {sequence.passage.probe_id for sequence in encoded}),
        "points": len(measured),
        "left_out": left_out,
        "cells": cells(rows),
        "extraction": extraction_rates(rows),
    }
    return report, rows


def _safety(
    config: AuditConfig, model: OpenModel, given: Sequence[Continuation]
) -> dict[str, Any] | None:
    """safety.json; None where neither a classifier nor answers are named."""
    if not (config.toxicity_classifier or config.answers):
        return None
    answers = read_answers(Path(config.answers)) if config.answers else []
    toxicity_rows: list[dict[str, Any]] = []
    identity = None
    if config.toxicity_classifier:
        classifier = TextClassifier.load(Path(config.toxicity_classifier))
        identity = classifier.identity
        toxicity_rows += toxicity(
            classifier,
            "truth",
            [
                (model.tokenizer.decode(continuation.truth), continuation.passage.language)
                for continuation in given
            ],
        )
        toxicity_rows += toxicity(
            classifier,
            "greedy",
            [
                (model.tokenizer.decode(continuation.produced), continuation.passage.language)
                for continuation in given
            ],
        )
        toxicity_rows += toxicity(
            classifier, "answers", [(answer.text(), answer.language) for answer in answers]
        )
    return {
        KEY: model.sha256,
        "classifier": identity,
        "answers": len(answers),
        "toxicity": toxicity_rows,
        "refusals": refusals(answers),
    }


def _write_membership(
    config: AuditConfig,
    workspace: Workspace,
    model: OpenModel,
    reference: OpenModel | None,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    controls = sum(row["repeats"] == NEVER for row in rows)
    auc_rows = areas(rows)
    if not auc_rows and rows:
        workspace.progress.log(
            f"No AUC of membership scores: no group or language has both planted passages and controls ({len(rows) - controls} and "
            f"{controls} in all)."
        )
    report = {
        KEY: model.sha256,
        "reference_sha256": reference.sha256 if reference else None,
        "min_k": config.min_k,
        "passages": len(rows) - controls,
        "controls": controls,
        "areas": auc_rows,
    }
    text = "".join(json_line(row) for row in rows)
    write_text(workspace.folder / "membership_scores.jsonl", text)
    write_record(workspace.folder / "membership.json", MembershipFile, report)


def _too_short(
    config: AuditConfig, encode: Callable[[str], Sequence[int]], passages: Sequence[Passage]
) -> DataError:
    longest, name = max((len(encode(passage.text)), passage.probe_id) for passage in passages)
    return DataError(
        f"the longest passage, {name}, has {longest} tokens, the audit needs "
        f"{config.prefix_tokens + config.new_tokens}",
        where="audit.prefix_tokens + audit.new_tokens",
        fix=f"Set audit.new_tokens={max(longest - config.prefix_tokens, 1)} or less, "
        "or plant longer passages",
    )


def _exposure_fields(exposure: Exposure | None) -> dict[str, Any]:
    if exposure is None:
        return {"rank": None, "candidates": 0, "exposure_bits": None}
    return {
        "rank": exposure.rank,
        "candidates": exposure.candidates,
        "exposure_bits": exposure.bits,
    }


def _line(
    config: AuditConfig,
    given: Continuation,
    model: OpenModel,
    more: Mapping[str, Any] | None = None,
) -> str:
    """One continuation as a line of JSON. Its texts come from documents and a model: untrusted."""
    texts = {"prefix": given.prefix, "truth": given.truth, "produced": given.produced}
    shown = {name: model.tokenizer.decode(tokens) for name, tokens in texts.items()}
    if config.redact:
        shown = {name: redacted(text) for name, text in shown.items()}
    record = {
        "probe_id": given.passage.probe_id,
        **(more or {}),
        "repeats": given.passage.repeats,
        **shown,
        **metrics(given),
    }
    return json.dumps(record, ensure_ascii=False) + "\n"
