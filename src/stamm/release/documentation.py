"""The model documentation form of the EU's code of practice, as far as the run folder knows it.

Sections and items follow the form of the Transparency chapter; the wording is ours. The form also
marks who receives each answer (AI Office, authorities, downstream providers); those marks are not
repeated here.

Source   General-Purpose AI Code of Practice, Transparency chapter, Model Documentation Form,
         10 July 2025; Regulation (EU) 2024/1689, Annexes XI and XII
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.base.markdown import escape_markdown
from stamm.base.schema import read_record_if_present
from stamm.base.units import flops_text, seconds_text
from stamm.chat.records import ImportFile
from stamm.models.config import GatedFFN, PlainRope
from stamm.models.flops import count_parameters
from stamm.release.facts import ReleaseFacts
from stamm.runs.model_outputs import DECODER, weights_sha256

_LONGEST = 10_000
_TITLE = "Model documentation"
_SECTIONS = {
    "1": "General information",
    "2": "Model properties",
    "3": "Distribution and licences",
    "4": "Use",
    "5": "Training process",
    "6": "Data for training, testing and validation",
    "7": "Compute of training",
    "8": "Energy",
}
# Upper bounds of the form's bands of size, in parameters.
_BANDS = (
    (500e6, "1 to 500 million"), (5e9, "500 million to 5 billion"), (15e9, "5 to 15 billion"),
    (50e9, "15 to 50 billion"), (100e9, "50 to 100 billion"), (500e9, "100 to 500 billion"),
    (1e12, "500 billion to 1 trillion"), (float("inf"), "over 1 trillion"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DocumentedItem:
    """An item of the form. `answer` None: open; `origin`: "run", "provider" or ""."""

    number: str
    asks: str
    answer: str | None
    origin: str


def documented_items(facts: ReleaseFacts, answers: Mapping[str, str]) -> list[DocumentedItem]:
    """All items, answered from the run or else by the provider.

    answers   the provider's, by number

    Raises   ConfigError for an unknown number, or one that the run answers.
    """
    items = []
    for number, (asks, known) in _items(facts).items():
        if known and number in answers:
            raise ConfigError(
                f"item {number} ({asks}) is answered by the run: {known[:80]!r}",
                where="answers",
                fix="Remove it from the file",
            )
        given = answers.get(number, "")
        origin = "run" if known else "provider" if given else ""
        items.append(
            DocumentedItem(number=number, asks=asks, answer=known or given or None, origin=origin)
        )
    if unknown := sorted(set(answers) - {item.number for item in items}):
        raise ConfigError(
            f"{unknown[0]!r} is not an item of the model documentation",
            where="answers",
            fix=f"Items are {items[0].number} to {items[-1].number}",
        )
    return items


def read_answers(path: str) -> dict[str, str]:
    """The provider's answers by number; {} for "".

    Raises   DataError when the file is not JSON; ConfigError when it holds anything but texts.
    """
    if not path:
        return {}
    plain = read_json(Path(path))
    texts = isinstance(plain, dict) and all(
        isinstance(answer, str) and len(answer) <= _LONGEST for answer in plain.values()
    )
    if not texts:
        raise ConfigError(
            f"{path} is not an object of texts of at most {_LONGEST:,} characters",
            where="answers",
            fix='Such as {"4.1": "https://example.org/acceptable-use"}',
        )
    return dict(plain)


def documentation_markdown(items: list[DocumentedItem]) -> str:
    """model_documentation.md."""
    still_open = sum(item.answer is None for item in items)
    parts = [
        f"# {_TITLE}",
        "After the Model Documentation Form of the General-Purpose AI Code of Practice"
        f" (Transparency chapter). {still_open} of {len(items)} items are open.",
    ]
    section = ""
    for item in items:
        chapter = item.number.partition(".")[0]
        if chapter != section:
            section = chapter
            parts.append(f"## {chapter}. {_SECTIONS[chapter]}")
        parts.append(f"**{item.number} {item.asks}**")
        if item.answer is None:
            parts.append(
                "> Open: the run folder does not know it. The provider can answer in the file of"
                f' `answers=`: {{"{item.number}": "..."}}'
            )
        else:
            parts.append(f"{escape_markdown(item.answer, _LONGEST)} ({item.origin})")
    return "\n\n".join(parts) + "\n"


def documentation_json(items: list[DocumentedItem]) -> dict[str, Any]:
    """model_documentation.json."""
    return {
        "schema": 1,
        "title": _TITLE,
        "open": sum(item.answer is None for item in items),
        "items": [
            {"number": i.number, "asks": i.asks, "answer": i.answer, "origin": i.origin or None}
            for i in items
        ],
    }


def _items(facts: ReleaseFacts) -> dict[str, tuple[str, str]]:
    """Item and the run's answer by number; "" where the run has none."""
    listed = [*_general(facts), *_training(facts)]
    numbers = [number for number, _, _ in listed]
    assert all(re.fullmatch(r"[1-8]\.[0-9]+", number) for number in numbers)
    return {number: (asks, known) for number, asks, known in listed}


def _general(facts: ReleaseFacts) -> Iterator[tuple[str, str, str]]:
    record, config, said = facts.record, facts.decoder, facts.evidence
    total = count_parameters(config).total
    rope = config.rope
    scaling = "" if isinstance(rope, PlainRope) else f", Llama 3 scaling by {rope.factor:g}"
    ffn = "gated" if isinstance(config.ffn, GatedFFN) else "plain"
    design = (
        f"{config.num_layers} layers of width {config.d_model}, {config.num_heads} attention heads "
        f"({config.num_kv_heads} for keys and values), {ffn} feed-forward of width "
        f"{config.ffn.width} with {config.ffn.spec.name}, rotary positions with theta "
        f"{rope.theta:g}{scaling}, vocabulary of {config.vocab_size} tokens"
    )
    yield "1.1", "Legal name of the provider", said.provider
    yield "1.2", "Name of the model, and of its versions", said.model or record.name
    yield (
        "1.3",
        "Evidence of authenticity",
        f"SHA-256 of the trained weights {record.model_sha256}; SHA256SUMS lists every file",
    )
    yield "1.4", "Date of the first release", ""
    yield "1.5", "Date of placing on the Union market", said.placed
    yield "1.6", "Models that this one was made from", said.dependencies or _start(facts)
    yield "2.1", "Architecture", "Transformer decoder, autoregressive"
    yield "2.2", "Design specifications", design
    yield "2.3", "Input modalities and largest input", f"Text, {config.max_context} tokens"
    yield (
        "2.4",
        "Output modalities and largest output",
        (f"Text, {config.max_context} tokens together with the input"),
    )
    yield "2.5", "Number of parameters", f"{total:,}"
    yield "2.6", "Band of size", next(name for bound, name in _BANDS if total <= bound)
    yield "3.1", "Channels of distribution", ""
    yield "3.2", "Licence", record.licence
    yield (
        "3.3",
        "Other assets that come with the model",
        (
            "Data card and ledger of the corpus where there is one, configuration, metrics, results of "
            "evaluation and audit, exports to " + ", ".join(record.formats)
        ),
    )
    yield "4.1", "Acceptable use policy", ""
    yield "4.2", "Intended or restricted uses", ""
    yield "4.3", "Types of AI systems that it can be integrated into", ""
    yield (
        "4.4",
        "Technical means of integration",
        ("Files for " + "; ".join(f"{name} ({p.candidate})" for name, p in facts.parity.items())),
    )
    yield "4.5", "Hardware needed", ""
    yield "4.6", "Software needed", ", ".join(p.candidate for p in facts.parity.values())


def _training(facts: ReleaseFacts) -> Iterator[tuple[str, str, str]]:
    summary, timing, corpus = facts.training, facts.timing, facts.summary
    process = f"{summary.steps} steps over {summary.trained_tokens} tokens" if summary else ""
    if process and timing and timing.optimizer:
        process += f" with {timing.optimizer}, weights in {timing.precision}"
    if process and facts.alignment:
        process += f"; {len(facts.alignment)} stages of alignment"
    counts = ", ".join(
        f"{name}: {split.documents} documents, {split.tokens} tokens"
        for name, split in sorted(facts.packed.splits.items())
    ) if facts.packed else ""  # fmt: skip
    languages = ", ".join(list(facts.languages)[:40])
    if len(facts.languages) > 40:
        languages += f" and {len(facts.languages) - 40} more"
    dropped = (
        f"{corpus.n_dropped} of {corpus.n_in} documents were dropped: "
        + ", ".join(f"{reason} {n.documents}" for reason, n in corpus.dropped_by_reason.items())
        if corpus and corpus.n_dropped
        else ""
    )
    yield "5.1", "Stages and methods of training", process
    yield "5.2", "Key decisions of design, and why", ""
    yield "6.1", "Type and modality of the data", "Text" if facts.packed or corpus else ""
    yield "6.2", "Provenance of the data", _provenance(facts)
    yield "6.3", "How the data was obtained and selected", facts.evidence.crawler_behaviour
    yield "6.4", "Number of data points", counts
    yield "6.5", "Scope and main characteristics", f"Languages: {languages}" if languages else ""
    yield "6.6", "Methods of curation", dropped
    yield "6.7", "Measures against unsuitable sources", facts.evidence.illegal_content
    yield "6.8", "Measures against identifiable biases", ""
    yield "7.1", "Time of training", seconds_text(timing.seconds) if timing else ""
    yield "7.2", "Amount of computation", flops_text(summary.flops) if summary else ""
    yield (
        "7.3",
        "Method of this figure",
        (
            "Matrix products counted from the shapes, three times those of the forward pass per token"
            if summary
            else ""
        ),
    )
    yield "8.1", "Energy used in training", ""
    yield "8.2", "Method of this figure", ""
    yield "8.3", "Computation of inference on a stated benchmark", ""
    yield "8.4", "Method of this figure", ""


def _provenance(facts: ReleaseFacts) -> str:
    said = facts.evidence
    kinds = {
        "publicly available datasets": said.public,
        "licensed datasets": said.licensed,
        "other private datasets": said.private,
        "crawled from the web": said.crawled,
        "from users": said.user,
        "from services of the provider": said.service,
        "synthetic": said.synthetic,
        "other": said.other,
    }
    return ", ".join(name for name, used in kinds.items() if used)


def _start(facts: ReleaseFacts) -> str:
    """The model that this one started from or is, by folder and weights; "" when none is known."""
    imported = read_record_if_present(ImportFile, facts.arm / "import.json")
    if imported is not None:
        types = f" ({imported.quantization})" if imported.quantization else ""
        return f"imported from {imported.folder}{types}, weights {imported.weights_sha256}"
    inputs = facts.manifest.inputs if facts.manifest else {}
    model = facts.arm / inputs["start"].path if "start" in inputs else None
    known = model is not None and (model / DECODER).is_file()
    return f"weights {weights_sha256(model)}" if model and known else ""
