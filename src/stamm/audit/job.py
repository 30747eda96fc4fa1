"""Audit one trained decoder for memorization of planted passages and canaries.

Reads    model (a stored decoder), tokenizer, corpus (its probes.json)
Leaves   memorization.json, continuations.jsonl (passages of books), canaries.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from stamm.audit.canaries import (
    Drawing,
    Exposure,
    by_kind,
    exposures,
    rival_costs,
)
from stamm.audit.config import AuditConfig
from stamm.audit.interval import LEVEL
from stamm.audit.memorization import (
    Continuation,
    Passage,
    by_repeats,
    check_context,
    continuations,
    metrics,
    prompts,
)
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_text
from stamm.base.schema import write_record
from stamm.corpus.canaries.config import Kind
from stamm.corpus.canaries.random_text import MADE_UP
from stamm.corpus.special_tokens import BEGIN_ID
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.models.determinism import set_determinism
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside, weights_sha256
from stamm.runs.schemas.evaluation import MemorizationFile

CORPUS_SCHEMA = 1
OUTPUTS = ("memorization.json", "continuations.jsonl", "canaries.jsonl")
PROBES = "probes.json"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Passages and canaries planted in a corpus.

    passages    of books, control included, sorted by repeats and identifier
    canaries    by kind, in the corpus' order of kinds, sorted likewise
    drawing     how the made-up ones were drawn; None if not recorded
    withdrawn   probes and canaries that a replay removed, which are not measured
    """

    passages: list[Passage]
    canaries: Mapping[Kind, list[Passage]]
    drawing: Drawing | None
    withdrawn: int


def run(config: AuditConfig, workspace: Workspace) -> None:
    """Continue every planted text, rank the made-up ones, then write the results.

    Nothing is written before all texts are measured, so a failure keeps the earlier results; those
    of other weights are moved to a folder beside.
    """
    planted = read_planted(workspace.inputs["corpus"])
    set_determinism(config.threads)
    decoder = load_decoder(workspace.inputs["model"])
    check_context(config, decoder)
    tokenizer = Tokenizer.load(workspace.inputs["tokenizer"])
    cut = prompts(config, tokenizer.encode, planted.passages)
    if not cut:
        raise _too_short(config, tokenizer.encode, planted.passages)
    progress = workspace.progress
    progress.begin("planted passages", 1 + len(planted.canaries), "kinds")
    passages = continuations(config, decoder, BEGIN_ID, cut)
    progress.advance(1)
    given: dict[Kind, list[Continuation]] = {}
    costs: dict[Kind, list[float]] = {}
    for number, (kind, texts) in enumerate(planted.canaries.items(), start=2):
        cut = prompts(config, tokenizer.encode, texts)
        given[kind] = continuations(config, decoder, BEGIN_ID, cut)
        if cut and planted.drawing is not None and kind in MADE_UP:
            costs[kind] = rival_costs(
                config, decoder, tokenizer.encode, BEGIN_ID, kind, planted.drawing
            )
        progress.advance(number)
    exposed = exposures(given, costs)
    skipped = {kind: len(texts) - len(given[kind]) for kind, texts in planted.canaries.items()}
    left_out = len(planted.passages) - len(passages)
    sha256 = weights_sha256(workspace.inputs["model"])
    set_aside(workspace.folder, sha256)
    report: dict[str, Any] = {
        KEY: sha256,
        **to_plain(config),
        "interval": f"Student's t over passages, {LEVEL:.0%}; differences by Welch",
        "passages": len(passages),
        "skipped": left_out,
        "withdrawn": planted.withdrawn,
        "buckets": by_repeats(passages),
        "canaries": by_kind(given, passages, exposed, skipped),
    }
    text = "".join(_line(one, tokenizer) for one in passages)
    write_text(workspace.folder / "continuations.jsonl", text)
    text = "".join(
        _line(one, tokenizer, {"kind": kind, **_exposure_fields(exposed.get(one.passage.probe_id))})
        for kind, group in given.items()
        for one in group
    )
    write_text(workspace.folder / "canaries.jsonl", text)
    write_record(workspace.folder / "memorization.json", MemorizationFile, report)
    notes = [
        f"{len(passages) + sum(map(len, given.values()))} continued",
        *([f"{n} too short" for n in [left_out + sum(skipped.values())] if n]),
        *([f"{planted.withdrawn} withdrawn from the corpus"] if planted.withdrawn else []),
    ]
    progress.end(", ".join(notes))


def read_planted(corpus: Path) -> Planted:
    """The passages and canaries planted in a corpus.

    Raises   DataError when it has no passages, or its list of them is malformed.
    """
    path = corpus / PROBES
    stored = read_json(path)
    try:
        if stored["schema"] != CORPUS_SCHEMA:
            raise DataError(
                f"{path} has schema {stored['schema']!r}, this audit reads {CORPUS_SCHEMA}",
                fix="Run the corpus step again with this version",
            )
        canaries: dict[Kind, list[Passage]] = {}
        for row in stored.get("canaries", []):
            canaries.setdefault(_kind(row["kind"]), []).append(_passage(row))
        made_up = stored.get("made_up")
        found = Planted(
            passages=_sorted(map(_passage, stored["probes"])),
            canaries={kind: _sorted(group) for kind, group in canaries.items()},
            drawing=None
            if made_up is None
            else Drawing(
                seed=int(stored["seed"]),
                words=int(made_up["words"]),
                vocabulary=tuple(made_up["vocabulary"]),
            ),
            withdrawn=len(stored.get("withdrawn", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is not a list of planted passages: {type(error).__name__}: {error}",
            fix="Run the corpus step again",
        ) from None
    if not found.passages:
        gone = f" ({found.withdrawn} were withdrawn)" if found.withdrawn else ""
        raise DataError(
            f"{path} lists no planted passage{gone}: there is nothing to audit",
            fix="Set corpus.probes=ProbesConfig, or run without audit",
        )
    return found


def _passage(row: Any) -> Passage:
    name, repeats, text = row["probe_id"], row["repeat"], row["text"]
    if not (isinstance(name, str) and isinstance(repeats, int) and isinstance(text, str)):
        raise TypeError("probe_id and text must be strings, repeat an integer")
    return Passage(probe_id=name, repeats=repeats, text=text)


def _kind(name: str) -> Kind:
    if name not in get_args(Kind):
        raise ValueError(f"{name!r} is not a kind of canary")
    kind: Kind = name  # type: ignore[assignment]  # checked above
    return kind


def _sorted(passages: Any) -> list[Passage]:
    return sorted(passages, key=lambda passage: (passage.repeats, passage.probe_id))


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


def _line(given: Continuation, tokenizer: Tokenizer, more: Mapping[str, Any] | None = None) -> str:
    """One continuation as a line of JSON. Its texts come from documents and a model: untrusted."""
    record = {
        "probe_id": given.passage.probe_id,
        **(more or {}),
        "repeats": given.passage.repeats,
        "prefix": tokenizer.decode(given.prefix),
        "truth": tokenizer.decode(given.truth),
        "produced": tokenizer.decode(given.produced),
        **metrics(given),
    }
    return json.dumps(record, ensure_ascii=False) + "\n"
