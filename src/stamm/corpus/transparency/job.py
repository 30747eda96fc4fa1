"""The evidence job: writes the data card and the EU's public summary of a finished corpus.

Reads    corpus, and pack where there is one
Outputs  datacard.md; training_summary.md and .json; domains.jsonl
"""

from __future__ import annotations

from stamm.base.files import remove_leftovers, sha256_file, write_json, write_text
from stamm.base.markdown import escape_markdown
from stamm.corpus.packed_dataset import MANIFEST
from stamm.corpus.query import opened
from stamm.corpus.summary import SUMMARY
from stamm.corpus.tables import parts
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.corpus.transparency.datacard import data_card
from stamm.corpus.transparency.facts import check_contradictions, read_facts, write_domains
from stamm.corpus.transparency.template import (
    LONGEST_TEXT,
    as_json,
    as_markdown,
    unanswered_questions,
)
from stamm.corpus.transparency.training_summary import TEMPLATE, training_summary
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores

DATA_CARD = "datacard.md"
DOMAINS = "domains.jsonl"
TRAINING_SUMMARY = "training_summary"
_SCHEMA = 1


def evidence(config: EvidenceConfig, workspace: Workspace) -> None:
    """Write the data card, the public summary of training content and the list of domains.

    Raises   ConfigError when the ledger contradicts a claim; DataError when ledger, summary and
             manifests cannot be read or differ.
    Checked  tests/unit/corpus/transparency/test_evidence.py
    """
    folder, corpus = workspace.folder, workspace.inputs["corpus"]
    pack = workspace.inputs.get("pack")
    remove_leftovers(folder)
    workspace.progress.begin("evidence", 1, "corpus")
    listed = folder / DOMAINS
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(corpus, "ledger"), union=True)
        facts = read_facts(query, config, corpus, pack)
        check_contradictions(config, facts)
        domains = write_domains(query, config, listed)
    sections = training_summary(config, facts, domains, listed)
    unanswered = unanswered_questions(sections)
    read = {f"corpus/{SUMMARY}": sha256_file(corpus / SUMMARY)}
    if pack is not None:
        read[f"pack/{MANIFEST}"] = sha256_file(pack / MANIFEST)
    write_json(
        folder / f"{TRAINING_SUMMARY}.json",
        {
            "schema": _SCHEMA,
            **TEMPLATE,
            "version": config.version or None,
            "updated": config.updated or None,
            "read": read,
            "unanswered": len(unanswered),
            "sections": as_json(sections),
        },
    )
    write_text(
        folder / f"{TRAINING_SUMMARY}.md",
        _page(config, read, as_markdown(sections), len(unanswered)),
    )
    write_text(folder / DATA_CARD, data_card(config, facts, domains, listed, unanswered))
    workspace.progress.end(f"{len(unanswered)} questions are open")


def _page(config: EvidenceConfig, read: dict[str, str], body: str, unanswered: int) -> str:
    """The public summary with header and footer."""
    head = [
        f"# {TEMPLATE['title']}",
        f"{TEMPLATE['law']}. Template: {TEMPLATE['template']}.",
        f"Version of the summary: {escape_markdown(config.version, LONGEST_TEXT) or 'not stated (`evidence.version=...`)'}. "
        f"Last update: {escape_markdown(config.updated, LONGEST_TEXT) or 'not stated (`evidence.updated=...`)'}.",
    ]
    if unanswered:
        head.append(f"> {unanswered} questions are open: this is a draft.")
    hashes = [f"- `{name}`: SHA-256 `{value}`" for name, value in read.items()]
    end = ["---", "Counted from the ledger of the corpus, and from these files:", "\n".join(hashes)]
    return "\n\n".join([*head, body, *end]) + "\n"
