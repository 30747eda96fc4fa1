"""README.md of a release: front matter for the Hub, the card of the export, results, open questions.

Everything is read from the run folder; what it does not know is listed as unknown. Names of tasks,
languages, sources and licences are untrusted and escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stamm.base.markdown import escape_markdown
from stamm.base.receipts import check_file
from stamm.base.units import count_text, flops_text, seconds_text
from stamm.corpus.language.codes import to_iso639_1
from stamm.evaluate.records import (
    MemorizationFile,
    TaskFile,
)
from stamm.export.card_table import LONGEST_CELL, card_table
from stamm.export.records import ParityFile
from stamm.pretrain.forget.results import COLUMNS, Forgetting, summary_lines
from stamm.release.checksums import SUMS
from stamm.release.evaluations import dataset_name, finite_metrics, model_index
from stamm.release.facts import ReleaseFacts
from stamm.release.layout import ACTIVATION, BOM, CARD, EVIDENCE, RECORD, RUN, export_folder
from stamm.statistics.estimates import MeanInterval

_DATASET = re.compile(r"https://huggingface\.co/datasets/([\w.-]+/[\w.-]+)/?", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}")


def release_card(facts: ReleaseFacts, unanswered: int) -> str:
    """The content of README.md.

    unanswered   open questions in the model documentation
    """
    folder = next(iter(facts.exports.values()))
    card = folder / CARD
    check_file(card)
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    body = text.split("\n---\n", 1)[-1].strip() if text.startswith("---\n") else text.strip()
    parts = [
        _front_matter(facts),
        body or f"# {facts.record.name}",
        *_training(facts),
        *evaluation(facts.tasks),
        *memorization(facts.memorization),
        *_forgotten(facts.forgetting),
        *_contents(facts),
        *_unknown(facts, unanswered),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: ReleaseFacts) -> str:
    """YAML; each value is written as JSON, which YAML contains."""
    codes = {to_iso639_1(tag.partition("_")[0]) for tag in facts.languages}
    links = (_DATASET.fullmatch(source.link) for source in facts.evidence.sources)
    values: dict[str, Any] = {
        "license": facts.record.licence,
        "language": sorted(code for code in codes if _LANGUAGE.fullmatch(code) and code != "und"),
        "library_name": "transformers" if "transformers" in facts.exports else "",
        "pipeline_tag": "text-generation",
        "datasets": sorted({link[1] for link in links if link}),
        "tags": sorted({"stamm", facts.decoder.ffn.spec.name, *facts.exports}),
        "model-index": model_index(facts.record.name, facts.tasks),
    }
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value
    ]
    return "\n".join(["---", *lines, "---"])


def _training(facts: ReleaseFacts) -> Iterator[str]:
    yield "## Training"
    summary = facts.training
    if summary is None:
        yield "How this model was trained is not known here."
        return
    rows = [
        ("recipe", facts.record.recipe or "not stated"),
        ("steps", str(summary.steps)),
        ("tokens", str(summary.trained_tokens)),
        ("tokens in the loss", str(summary.learned_tokens)),
        ("epochs", f"{summary.epochs:.4g}"),
        ("compute", flops_text(summary.flops)),
    ]
    if summary.final_loss_nats is not None:
        rows.append(("final training loss", f"{summary.final_loss_nats:.4f} nats per token"))
    if timing := facts.timing:
        devices = ", ".join(f"{count} x {name}" for name, count in timing.devices.items())
        rows += [("processors", devices or timing.device), ("time", seconds_text(timing.seconds))]
    if summary.goldfish is not None:
        rate = f"{summary.goldfish.rate:.4%} of the labels left out"
        rows.append(("Goldfish loss", rate))
    yield card_table(("what", "value"), rows)


def evaluation(tasks: Mapping[str, TaskFile]) -> Iterator[str]:
    """Headline, table of all finite metrics by the name of the task's file, and what qualifies them."""
    yield "## Evaluation"
    rows = [
        (
            dataset_name(task, tasks[task].num_items),
            name,
            f"{metric.value:.5g}",
            "" if metric.standard_error is None else f"{metric.standard_error:.2g}",
            "" if metric.chance is None else f"{metric.chance:.4g}",
            _without_model(tasks[task], name),
            str(tasks[task].num_items),
        )
        for task, name, metric in finite_metrics(tasks)
    ]
    if not rows:
        yield "This model was not evaluated."
        return
    columns = ("task", "metric", "value", "standard error", "chance", "without a model", "items")
    yield card_table(columns, rows)
    if any(row[5] for row in rows):
        yield "Without a model: the best baseline that does not read the questions."
    notes = [
        f"- {escape_markdown(task, LONGEST_CELL)}: {'; '.join(qualifications)}"
        for task, result in tasks.items()
        if (qualifications := _qualified(result))
    ]
    if notes:
        yield "\n".join(notes)


def _without_model(result: TaskFile, metric: str) -> str:
    """The strongest blind baseline of a task, beside its main metric: "0.55 (unigram)"."""
    best = result.blind.get(result.strongest_blind)
    if best is None or metric != (result.metric or next(iter(result.metrics))):
        return ""
    return f"{best.value:.4g} ({result.strongest_blind.replace('_', ' ')})"


def _qualified(result: TaskFile) -> list[str]:
    """Facts that qualify the scores of a task, as texts."""
    counted = (
        (
            result.truncated,
            f"the context of {result.truncated} of {result.num_items} items was cut",
        ),
        (result.unanswered, f"{result.unanswered} items without an answer in time count as wrong"),
        (sum(result.rejected.values()), f"{sum(result.rejected.values())} rows were not asked"),
        (result.contaminated, f"{result.contaminated} items are in the training text"),
        (result.limit is not None, f"{result.num_items} items, chosen by hash"),
        (result.shots, f"{result.shots} examples before each question"),
        (result.chat, "asked in the chat format"),
    )
    said = [text for holds, text in counted if holds]
    return [*said, *([escape_markdown(result.warning, 300)] if result.warning else [])]


def memorization(audit: MemorizationFile | None) -> Iterator[str]:
    """Headline and table of the memorization audit."""
    yield "## Memorization audit"
    if audit is None:
        yield "This model was not audited for memorization."
        return
    yield (
        f"Passages planted in the training data, continued after {audit.prefix_tokens} tokens of"
        f" prefix for {audit.new_tokens} tokens. 0 repeats: the control, never trained on."
        f" Intervals: {escape_markdown(audit.interval, 200)}."
    )
    yield card_table(
        ("repeats", "passages", "reproduced exactly", "ROUGE-L", "longest common span, tokens"),
        (
            (
                str(bucket.repeats),
                str(bucket.passages),
                "not counted" if bucket.extracted is None else str(bucket.extracted),
                _interval(bucket.rouge_l),
                _interval(bucket.longest_common_span_tokens),
            )
            for bucket in audit.buckets
        ),
    )


def _interval(value: MeanInterval) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.3g}"
    return f"{value.mean:.3g} ({value.low:.3g} to {value.high:.3g})"


def _forgotten(forgetting: Forgetting | None) -> Iterator[str]:
    if forgetting is None:
        return
    yield "## Forgotten documents"
    yield " ".join(summary_lines(forgetting.record))
    yield card_table(COLUMNS, forgetting.rows)


def _contents(facts: ReleaseFacts) -> Iterator[str]:
    yield "## Files"
    rows = [
        (export_folder(name) or "this folder", f"export to {name}, parity.json beside it")
        for name in facts.exports
    ]
    rows += [
        (f"{RUN}/", "the run folder: configuration, manifests, metrics, trained weights, results"),
        (f"{EVIDENCE}/", "model documentation; where there is a corpus: data card, public summary"
         " of training content, ledger of kept documents"),
        (f"{ACTIVATION}/", "page of the activation, golden vectors at the learned parameters"),
        (BOM, "bill of materials, CycloneDX 1.6"),
        (RECORD, "the hashes that everything here was made from"),
        (SUMS, "SHA-256 of every file"),
    ]  # fmt: skip
    yield card_table(("path", "content"), rows)
    yield "Parity of the exports with the trained model:"
    yield parity_table(facts.parity)
    yield (
        "`stamm verify .` checks all hashes, and that evaluation, audit, exports and the tables of this"
        " card agree with the records of these weights; without a signature it cannot show that they"
        f" were not all changed together. `sha256sum --check {SUMS}` checks the hashes alone."
    )


def parity_table(parity: Mapping[str, ParityFile]) -> str:
    """A row for each export."""
    return card_table(
        ("export", "engine", "logits", "bits per byte", "other ids"),
        [(name, file.candidate, *_parity(file)) for name, file in parity.items()],
    )


def _parity(parity: ParityFile) -> tuple[str, str, str]:
    """Largest difference of logits, change of bits per byte, differing token ids; "" if not measured."""
    apart = max((comparison.max_relative for comparison in parity.comparisons), default=None)
    bits = parity.bits[0] if parity.bits and parity.bits[0].original else None
    wrong = sum(sample.differing for sample in parity.tokens)
    return (
        "" if apart is None else f"{apart:.1e}",
        ("" if parity.measured else "not measured")
        if bits is None
        else f"{bits.exported / bits.original - 1:+.3%}",
        f"{wrong} of {sum(sample.tokens for sample in parity.tokens)}" if parity.tokens else "",
    )


def _unknown(facts: ReleaseFacts, unanswered: int) -> Iterator[str]:
    known = {
        "the licence of the model": bool(facts.record.licence),
        "the languages of the training data": bool(facts.languages),
        "the corpus": facts.corpus is not None,
        "results of evaluation": bool(facts.tasks),
        "memorization": facts.memorization is not None,
        "how it was trained": facts.training is not None,
    }
    gaps = [name for name, is_known in known.items() if not is_known]
    yield "## Open questions"
    if gaps:
        yield f"Not known here: {', '.join(gaps)}."
    yield (
        f"{count_text(unanswered)} questions of `{EVIDENCE}/model_documentation.md` have no answer:"
        " intended uses and limits among them, if the provider did not state them."
    )
