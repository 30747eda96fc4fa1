"""stamm's half of bench/corpus.py: the steps of `stamm run`, raw files to token shards, one process.

Everything is on: consent, licences, languages, quality, evaluation texts, personal data, near
duplicates, and what a run does besides (hashes, manifests, ledger). Hosts nobody asked and licences
nobody named pass, as they do in datatrove.
What it took stands in FOLDER/result.json.

Run      python -m bench.corpus_stamm PLAN.json
         {"inputs": folder, "robots": file, "evaluation": file, "drop": bool, "tokenizer": folder or
         null (train one), "folder": where to work}
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stamm.base.console import NoProgress
from stamm.corpus import filter_job
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.corpus_filter import CorpusFilter, FilterDocument, FilterResult
from stamm.corpus.document_filter import DocumentFilter
from stamm.corpus.documents import InputRecord
from stamm.corpus.extract import ExtractedPage
from stamm.corpus.inputs import expand, is_archive
from stamm.corpus.ledger import LedgerRow
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import ReadLimits
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.readers.warc import archived_robots
from stamm.corpus.steps import corpus_steps, token_steps
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.recipes.jobs import job
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Step
from stamm.runs.manifest import RATES
from stamm.runs.run import Run


class Lenient(DocumentFilter):
    """Asks what the filter step asks about every document, and keeps it whatever the answer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._filters = tuple(
            loaded if loaded.name == "length" else replace(loaded, function=_Kept(loaded.function))
            for loaded in self._filters
        )

    def _consents(self, record: InputRecord, row: LedgerRow, words: ConsentPolicies) -> bool:
        return _asked(super()._consents(record, row, words), row)

    def _page_consents(
        self, record: InputRecord, row: LedgerRow, page: ExtractedPage, words: ConsentPolicies
    ) -> bool:
        return _asked(super()._page_consents(record, row, page, words), row)


class _Kept:
    """A filter that drops nothing."""

    def __init__(self, function: CorpusFilter) -> None:
        self.name, self._function = function.name, function

    def __call__(self, document: FilterDocument) -> FilterResult | None:
        found = self._function(document)
        return replace(found, drop=None) if isinstance(found, FilterResult) else None


if missing := [
    name
    for name in vars(Lenient)
    if name[0] == "_" and name[1] != "_" and not hasattr(DocumentFilter, name)
]:
    raise SystemExit(
        f"DocumentFilter has changed, it lacks {', '.join(missing)}: change Lenient, too"
    )


def _asked(_: bool, row: LedgerRow) -> bool:
    row.reason = row.detail = ""
    return True


def config_of(plan: dict[str, Any]) -> CorpusConfig:
    """Every step on; silence allows."""
    evaluation = EvaluationSet(name="evaluation", file=plan["evaluation"], id="")
    return CorpusConfig(
        inputs=(plan["inputs"],),
        consent=ConsentConfig(robots=(plan["robots"],), unknown_host="allow"),
        licences=LicenceConfig(unknown="allow"),
        quality=QualityConfig(),
        contamination=ContaminationConfig(sets=(evaluation,)),
        held_out=0.0,
    )


def main() -> None:
    """Do the plan named on the command line."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder, config = Path(plan["folder"]), config_of(plan)
    steps = [*corpus_steps(config), *token_steps(TokenizerConfig(), PackConfig())]
    if plan["tokenizer"]:
        steps = [step for step in steps if step.name != "tokenizer"]
    if not plan["drop"]:
        filter_job.DocumentFilter = Lenient  # type: ignore[attr-defined,assignment]
    seconds: dict[str, float] = {}
    running: list[tuple[str, float]] = []

    def announce(number: int, count: int, step: Step) -> str:
        now = time.perf_counter()
        for name, began in running[-1:]:
            seconds[name] = now - began
        running.append((step.name, now))
        return ""

    root = folder / "run"
    run = Run(root, "bench", (), {})
    root.mkdir()
    with run.locked():
        run.open()
        (root / "log").mkdir()
        if plan["tokenizer"]:
            (root / "tokenizer").symlink_to(plan["tokenizer"])
        run.execute(steps, job, NoProgress(), announce, LocalExecutor(workers=1))
    ended, cpu_s = time.monotonic(), sum(os.times()[:4])
    seconds[running[-1][0]] = time.perf_counter() - running[-1][1]
    summary = json.loads((root / "corpus" / "summary.json").read_text())
    rates = json.loads((root / "log" / RATES).read_text())
    result = {
        "ended": ended,
        "cpu_s": cpu_s,
        "documents": summary["n_in"],
        "bytes": summary["bytes_in"],
        "kept": summary["n_kept"],
        "dropped": {name: told["documents"] for name, told in summary["dropped_by_reason"].items()},
        "token_bytes": sum(file.stat().st_size for file in (root / "pack").glob("*.bin")),
        "text_bytes": summary["bytes_kept"],
        "steps": seconds,
        "stages": rates["filter"]["worker_seconds"]
        | {name: spent for name, spent in seconds.items() if name != "filter"},
        "asides": _asides(config),
    }
    (folder / "result.json").write_text(json.dumps(result))


def _asides(config: CorpusConfig) -> dict[str, float]:
    """What consent takes outside the filter step's own times: reading the snapshot, and archives' robots.txt."""
    limits = ReadLimits()
    began = time.perf_counter()
    robots = tuple(expand(config.consent.robots, "robots").values())
    load_policies(config.consent, robots, {}, limits)
    read = time.perf_counter()
    for name, path in expand(config.inputs, "inputs").items():
        if is_archive(name):
            sum(1 for _ in archived_robots(path, limits))
    return {"snapshot": read - began, "archived_robots": time.perf_counter() - read}


if __name__ == "__main__":
    main()
