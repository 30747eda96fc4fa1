"""Derive the kernel of a user's activation and check its accuracy, before anything is trained with it.

Reads    nothing: the spec is in the configuration
Leaves   spec.json (for `stamm show`, `check` and `derive`), accuracy.json (largest errors by dtype)
"""

from __future__ import annotations

from stamm.activations.catalog.registry import STORED
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.acceptance import accepted, accuracy_texts, check_formulas
from stamm.base.config import to_plain
from stamm.base.files import write_json
from stamm.base.schema import write_record
from stamm.pretrain.activation_check_config import ActivationCheckConfig
from stamm.pretrain.records import AccuracyFile
from stamm.runs.job import Workspace

ACCURACY = "accuracy.json"


def run(config: ActivationCheckConfig, workspace: Workspace) -> None:
    """Check the spec of `config` as `stamm derive` does, on fewer float32 inputs.

    Raises   ConfigError when the gradient cannot be integrated; DataError when an error budget is
             exceeded.
    """
    spec, progress = config.spec, workspace.progress
    progress.begin(f"activation {spec.name}", 3, "stages")
    kernel_of(spec)
    progress.advance(1, "kernel derived")
    check_formulas(spec)
    progress.advance(2, "compared with the integral of the gradient")
    verdict = accepted(spec, count=config.inputs)
    write_json(workspace.folder / STORED, to_plain(spec))
    accuracy = {
        "name": spec.name,
        "content_hash": spec.content_hash,
        "accuracy": accuracy_texts(verdict),
    }
    write_record(workspace.folder / ACCURACY, AccuracyFile, accuracy)
    progress.end(f"errors within budget, content hash {spec.content_hash[:12]}")
