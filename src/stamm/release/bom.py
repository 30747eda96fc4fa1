"""A machine-learning bill of materials: bom.cdx.json, CycloneDX 1.6.

Source   CycloneDX 1.6 (ECMA-424), https://cyclonedx.org/schema/bom-1.6.schema.json
Checked  tests/unit/release/test_bom.py, against the schema
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from stamm.base.errors import visible
from stamm.models.config import GatedFFN
from stamm.models.hf_architecture import CLASSES
from stamm.release.evaluations import finite_metrics
from stamm.release.facts import ReleaseFacts
from stamm.version import VERSION

_LONGEST = 500
_MOST_SOURCES = 1_000


def bill_of_materials(
    facts: ReleaseFacts, sources: list[tuple[str, str, int, int]]
) -> dict[str, Any]:
    """The content of bom.cdx.json.

    sources   (source, licence, kept documents, bytes) of the corpus, largest first; untrusted
    """
    record = facts.record
    data = [*corpus_components(sources), *_alignment_data(facts)]
    libraries = [
        {"type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name,
         "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(facts.manifest.libraries.items() if facts.manifest else ())
        if version != "missing"
    ]  # fmt: skip
    reference = f"model-{record.model_sha256[:16]}"
    model: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": reference,
        "name": record.name,
        "version": record.model_sha256[:16],
        "hashes": [{"alg": "SHA-256", "content": record.model_sha256}],
        **_licences(record.licence),
        "modelCard": _model_card(facts, [part["bom-ref"] for part in data]),
    }
    if facts.evidence.provider:
        model["supplier"] = {"name": _text(facts.evidence.provider)}
    components = [*data, *libraries]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, record.model_sha256)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "stamm", "version": VERSION}]},
            "component": model,
        },
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": [part["bom-ref"] for part in components]}],
    }


def _model_card(facts: ReleaseFacts, data: list[str]) -> dict[str, Any]:
    config = facts.decoder
    model_type, architecture = CLASSES[
        isinstance(config.ffn, GatedFFN), config.qk_norm, config.qkv_bias
    ]
    metrics = [
        {"type": f"{task} {name}"[:_LONGEST], "value": f"{metric.value:.6g}"}
        for task, name, metric in finite_metrics(facts.tasks)
    ]
    return {
        "modelParameters": {
            "approach": {"type": "self-supervised"},
            "task": "text-generation",
            "architectureFamily": f"transformer decoder ({model_type})",
            "modelArchitecture": architecture,
            "datasets": [{"ref": reference} for reference in data],
            "inputs": [{"format": "text"}],
            "outputs": [{"format": "text"}],
        },
        **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
        "properties": [
            {"name": "stamm:activation", "value": config.ffn.spec.name},
            {"name": "stamm:activation_content_hash", "value": config.ffn.spec.content_hash},
            {"name": "stamm:tokenizer_sha256", "value": facts.record.tokenizer_sha256},
        ],
    }


def corpus_components(sources: list[tuple[str, str, int, int]]) -> Iterator[dict[str, Any]]:
    """The components of a corpus, by source and licence; `sources` as in `bill_of_materials`."""
    for number, (source, licence, documents, size) in enumerate(sources[:_MOST_SOURCES]):
        yield {
            "type": "data",
            "bom-ref": f"corpus-{number}",
            "name": _text(source) or "not stated",
            **_licences(licence),
            "data": [{"type": "dataset", "description": f"{documents} documents, {size} bytes"}],
        }


def _alignment_data(facts: ReleaseFacts) -> Iterator[dict[str, Any]]:
    for number, summary in enumerate(facts.alignment):
        for file, source in enumerate(summary.files):
            yield {
                "type": "data",
                "bom-ref": f"alignment-{number}-{file}",
                "name": _text(source.name),
                "hashes": [{"alg": "SHA-256", "content": source.sha256}],
                "data": [{"type": "dataset", "description": f"{source.kept} rows kept"}],
            }


def _licences(licence: str) -> dict[str, Any]:
    """The licence by name: identifiers are checked by readers, and data may state any text."""
    return {"licenses": [{"license": {"name": _text(licence)}}]} if licence else {}


def _text(text: str) -> str:
    return visible(" ".join(text.split()), _LONGEST)
