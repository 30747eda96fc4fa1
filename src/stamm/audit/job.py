"""Audit one trained decoder for memorization of planted passages and canaries.

Reads    model (a stored decoder or a Hugging Face folder), tokenizer, and corpus (its probes.json) or
         the passages of the configuration; reference and reference_tokenizer where there are
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
from stamm.audit.interval import LEVEL
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
from stamm.audit.safety import read_answers, refusals, toxicity
from stamm.audit.text_model import AuditedModel, load_audited
from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.files import json_line, write_text
from stamm.base.hashing import redacted
from stamm.base.schema import write_record
from stamm.corpus.canaries.config import Kind
from stamm.corpus.canaries.random_text import MADE_UP
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.models.decoder import check_finite
from stamm.models.determinism import set_determinism
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside
from stamm.runs.schemas.audit import GridFile, MembershipFile, SafetyFile
from stamm.runs.schemas.evaluation import MemorizationFile

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
    planted = read_own(Path(config.passages)) if config.passages else read_planted(inputs["corpus"])
    set_determinism(config.threads)
    model = load_audited(inputs["model"], inputs["tokenizer"])
    check_finite(model.decoder)
    check_context(config, model.decoder, len(model.begin))
    cut = prompts(config, model.encode, planted.passages)
    if not cut:
        raise _too_short(config, model.encode, planted.passages)
    reference = (
        load_audited(inputs["reference"], inputs["reference_tokenizer"])
        if "reference" in inputs
        else None
    )
    progress.begin("planted passages", 1 + len(planted.canaries), "kinds")
    passages = continuations(config, model.decoder, model.begin, cut)
    progress.advance(1)
    given: dict[Kind, list[Continuation]] = {}
    costs: dict[Kind, list[float]] = {}
    for number, (kind, texts) in enumerate(planted.canaries.items(), start=2):
        cut = prompts(config, model.encode, texts)
        given[kind] = continuations(config, model.decoder, model.begin, cut)
        if cut and planted.drawing is not None and kind in MADE_UP:
            costs[kind] = rival_costs(
                config, model.decoder, model.encode, model.begin, kind, planted.drawing
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
    encoded = [Encoded(passage=p, tokens=list(model.encode(p.text))) for p in planted.passages]
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
    lines = [_line(config, one, model) for one in passages]
    write_text(folder / "continuations.jsonl", "".join(lines))
    lines = [
        _line(
            config,
            one,
            model,
            {"kind": kind, **_exposure_fields(exposed.get(one.passage.probe_id))},
        )
        for kind, group in given.items()
        for one in group
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


_RECORDED = ("prefix_tokens", "new_tokens", "batch_tokens", "threads", "candidates")


def _grid(
    config: AuditConfig,
    grid: GridConfig,
    model: AuditedModel,
    encoded: Sequence[Encoded],
    progress: Progress,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """grid.json and the lines of grid_points.jsonl."""
    room = model.decoder.config.max_context - len(model.begin)
    wanted, left_out = points(grid, config.new_tokens, room, encoded)
    found = outcomes(config, grid, model.decoder, model.begin, wanted, progress)
    rows = [point_row(one, measures(grid, one)) for one in found]
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
        "excluded": len(set(grid.excluded) & {one.passage.probe_id for one in encoded}),
        "points": len(found),
        "left_out": left_out,
        "cells": cells(rows),
        "extraction": extraction_rates(rows),
    }
    return report, rows


def _safety(
    config: AuditConfig, model: AuditedModel, given: Sequence[Continuation]
) -> dict[str, Any] | None:
    """safety.json; None where neither a classifier nor answers are named."""
    if not (config.toxicity_classifier or config.answers):
        return None
    answers = read_answers(Path(config.answers)) if config.answers else []
    found: list[dict[str, Any]] = []
    identity = None
    if config.toxicity_classifier:
        classifier = TextClassifier.load(Path(config.toxicity_classifier))
        identity = classifier.identity
        found += toxicity(
            classifier, "truth", [(model.decode(one.truth), one.passage.language) for one in given]
        )
        found += toxicity(
            classifier,
            "greedy",
            [(model.decode(one.produced), one.passage.language) for one in given],
        )
        found += toxicity(classifier, "answers", [(one.text(), one.language) for one in answers])
    return {
        KEY: model.sha256,
        "classifier": identity,
        "answers": len(answers),
        "toxicity": found,
        "refusals": refusals(answers),
    }


def _write_membership(
    config: AuditConfig,
    workspace: Workspace,
    model: AuditedModel,
    reference: AuditedModel | None,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    controls = sum(row["repeats"] == NEVER for row in rows)
    found = areas(rows)
    if not found and rows:
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
        "areas": found,
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
    model: AuditedModel,
    more: Mapping[str, Any] | None = None,
) -> str:
    """One continuation as a line of JSON. Its texts come from documents and a model: untrusted."""
    texts = {"prefix": given.prefix, "truth": given.truth, "produced": given.produced}
    shown = {name: model.decode(tokens) for name, tokens in texts.items()}
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
