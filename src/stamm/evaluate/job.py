"""Evaluate one trained decoder.

Reads    model (a stored decoder), pack (a packed corpus), tokenizer
Leaves   held_out.json, held_out_documents.jsonl, blimp.json
"""

from __future__ import annotations

import json
from typing import Any

from stamm.base.files import write_json, write_text
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.special_tokens import BEGIN_ID
from stamm.corpus.tokenizer import Tokenizer
from stamm.evaluate import blimp, held_out
from stamm.evaluate.config import EvaluateConfig
from stamm.models.decoder import Decoder
from stamm.models.determinism import settle
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace

SCHEMA = 1
OUTPUTS = ("held_out.json", "held_out_documents.jsonl", "blimp.json")


def run(config: EvaluateConfig, workspace: Workspace) -> None:
    """Score the held-out documents and the minimal pairs, then write both down.

    Nothing is written before all is measured: what an earlier attempt recorded outlives a failure.
    """
    settle(config.threads)
    decoder = load_decoder(workspace.inputs["model"])
    costs, report = _score_held_out(config, decoder, workspace)
    pairs = _ask_pairs(config, decoder, workspace)
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in held_out.lines(costs)]
    write_text(workspace.folder / "held_out_documents.jsonl", "".join(lines))
    write_json(workspace.folder / "held_out.json", report)
    write_json(workspace.folder / "blimp.json", pairs)


def _score_held_out(
    config: EvaluateConfig, decoder: Decoder, workspace: Workspace
) -> tuple[list[held_out.DocumentCost], dict[str, Any]]:
    context, overlap = held_out.reach(config, decoder)
    split = PackedSplit.open(workspace.inputs["pack"], "held_out")
    costs = held_out.document_costs(config, decoder, split, workspace.progress)
    return costs, {
        "schema": SCHEMA,
        "context": context,
        "overlap": overlap,
        "rule": held_out.RULE,
        "overall": held_out.summarise(costs),
        "languages": held_out.by_language(costs),
    }


def _ask_pairs(config: EvaluateConfig, decoder: Decoder, workspace: Workspace) -> dict[str, Any]:
    tokenizer = Tokenizer.load(workspace.inputs["tokenizer"])
    pairs = blimp.shipped_pairs(config.blimp_pairs_per_paradigm)
    given = blimp.answers(
        decoder, tokenizer.encode, BEGIN_ID, pairs, config.batch_tokens, workspace.progress
    )
    return {
        "schema": SCHEMA,
        "source": "BLiMP (Warstadt et al. 2020), CC-BY-4.0",
        "language": "eng_Latn",
        "pairs_per_paradigm": config.blimp_pairs_per_paradigm,
        **blimp.summarise(given),
    }
