"""The bill of materials follows the published schema of CycloneDX 1.6."""

from __future__ import annotations

import json
from pathlib import Path

import cyclonedx.schema
import jsonschema
import pytest
import referencing
import referencing.jsonschema

from stamm.release.bom import bill_of_materials
from tests.unit.release.conftest import HOSTILE, facts_of

SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    """Of bom-1.6, with the schemas that it refers to."""
    loaded = {
        name: json.loads((SCHEMAS / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    registry = referencing.Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}.SNAPSHOT.schema.json", resource)
        for name, content in loaded.items()
        for resource in [referencing.jsonschema.DRAFT7.create_resource(content)]
    )
    return jsonschema.Draft7Validator(loaded["bom-1.6"], registry=registry)


def test_the_bill_of_materials_is_valid(arm: Path, validator: jsonschema.Draft7Validator) -> None:
    facts = facts_of(arm, provider="Someone")
    sources = [(HOSTILE, "CC0-1.0", 3, 100), ("plain", "", 1, 10)]
    found = bill_of_materials(facts, sources)
    validator.validate(found)
    model = found["metadata"]["component"]
    assert model["hashes"] == [{"alg": "SHA-256", "content": facts.record.model_sha256}]
    assert model["supplier"] == {"name": "Someone"}
    assert "torch" in {one["name"] for one in found["components"]}
    assert "duckdb" not in {one["name"] for one in found["components"]}, "it was not installed"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**found, "components": [{"type": "model", "name": "x"}]})
