"""Evaluate one trained decoder.

Reads    model (a stored decoder), pack (a packed corpus), tokenizer
Leaves   held_out.json, held_out_documents.jsonl, blimp.json
"""

from __future__ import annotations

import json
from typing import Any

from stamm.base.files import write_json, write_text
from stamm.corpus.pack import PackedSplit
from stamm.corpus.special_tokens import BEGIN_ID
from stamm.corpus.tokenizer import Tokenizer
from stamm.evaluate import blimp, held_out
from stamm.evaluate.config import EvaluateConfig
from stamm.models.decoder import Decoder
from stamm.models.repeatable import settle
from stamm.models.stored import load_decoder
from stamm.runs.job import Workspace

SCHEMA = 1
OUTPUTS = ("held_out.json", "held_out_documents.jsonl", "blimp.json")


def run(config: EvaluateConfig, workspace: Workspace) -> None:
    """Score the held-out documents and the minimal pairs, and write both down."""
    for name in OUTPUTS:  # what an earlier attempt left must not pass for this one's
        (workspace.folder / name).unlink(missing_ok=True)
    settle(config.threads)
    decoder = load_decoder(workspace.inputs["model"])
    _score_held_out(config, decoder, workspace)
    _ask_pairs(config, decoder, workspace)


def _score_held_out(config: EvaluateConfig, decoder: Decoder, workspace: Workspace) -> None:
    context, overlap = held_out.reach(config, decoder)
    split = PackedSplit.open(workspace.inputs["pack"], "held_out")
    costs = held_out.document_costs(config, decoder, split, workspace.progress)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "context": context,
        "overlap": overlap,
        "rule": held_out.RULE,
        "overall": held_out.summarise(costs),
        "languages": held_out.by_language(costs),
    }
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in held_out.lines(costs)]
    write_text(workspace.folder / "held_out_documents.jsonl", "".join(lines))
    write_json(workspace.folder / "held_out.json", report)


def _ask_pairs(config: EvaluateConfig, decoder: Decoder, workspace: Workspace) -> None:
    tokenizer = Tokenizer.load(workspace.inputs["tokenizer"])
    pairs = blimp.shipped_pairs(config.blimp_pairs_per_paradigm)
    given = blimp.answers(
        decoder, tokenizer.encode, BEGIN_ID, pairs, config.batch_tokens, workspace.progress
    )
    report = {
        "schema": SCHEMA,
        "source": "BLiMP (Warstadt et al. 2020), CC-BY-4.0",
        "language": "eng_Latn",
        "pairs_per_paradigm": config.blimp_pairs_per_paradigm,
        **blimp.summarise(given),
    }
    write_json(workspace.folder / "blimp.json", report)
