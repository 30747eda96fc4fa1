"""The folder of a derivation: everything that `stamm.derive` writes about an activation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from stamm.activations import catalog, derived_folder
from stamm.activations.cache import register_kernel_source, store_kernel_source
from stamm.activations.catalog.registry import STORED
from stamm.activations.certificates.certificate import certify
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.codegen.write import texts
from stamm.activations.conformance.acceptance import accepted, accuracy_texts, check_formulas
from stamm.activations.conformance.golden import write_golden as write_vectors
from stamm.activations.conformance.judge import table_sentences
from stamm.activations.cpu_limit import cpu_limit
from stamm.activations.derivation.derive import derive as derive_formulas
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import refused_in_one_line
from stamm.activations.describe import cost, describe_spec
from stamm.activations.equivalence import compare
from stamm.activations.page.page import activation_page
from stamm.activations.spec import Spec
from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import ConfigError, visible
from stamm.base.files import write_json, write_text
from stamm.models.torch_module import torch_source


class _Stages:
    """Progress of a derivation: one numbered line per stage."""

    TOTAL = 7

    def __init__(self, name: str) -> None:
        self._log, self._name, self._done = Console().log, name, 0

    def next(self, stage: str) -> None:
        """Report the next stage."""
        self._done += 1
        self._log(f"[{self._done}/{self.TOTAL}] {self._name}: {stage}")


def derive_into(
    folder: Path, spec: Spec, known: str | None, command: str, seconds: int
) -> dict[str, Any]:
    """Derive `spec` and write the folder of the derivation; its receipt.

    known     name of the catalogue entry with the same definition
    command   that repeats it
    seconds   of CPU time after which it is given up

    Raises    ConfigError for a gradient that cannot be derived, or not in that time
    """
    stages = _Stages(spec.name)
    stated = "; ".join(f"{piece.where}: {piece.formula}" for piece in spec.pieces)
    too_long = ConfigError(
        f"{visible(stated, 200)!r} was not derived in {seconds:,} s of CPU time, and nothing is written",
        where=spec.where,
        fix="State the gradient in another form, on two pieces, or with its known integral; "
        f"or allow more time: --cpu-seconds {10 * seconds}",
    )
    with cpu_limit(seconds, too_long), refused_in_one_line(spec, "derived"):
        stages.next("integrate the gradient")
        exact_formulas(spec)
        stages.next("find numerically stable forms")
        derived = derive_formulas(spec)
        kernel = kernel_source(derived, "stamm derive")
        register_kernel_source(spec.content_hash, kernel)
        stages.next("compare with the integral at every exponent of float32")
        check_formulas(spec)
        stages.next("measure the accuracy in bfloat16, float16 and float32")
        verdict = accepted(spec)
        store_kernel_source(spec.content_hash, kernel)
        stages.next("certify")
        certificate = certify(derived)
        stages.next(f"compare with {len(catalog.ENTRIES)} known activations")
        findings = compare.rediscover(spec)
        sentences = [finding.sentence(spec.name) for finding in findings]
        facts = {
            **describe_spec(spec, texts(derived)),
            "table": list(table_sentences(derived)),
            "cost": cost(spec, kernel),
            "certificate": certificate,
        }
        receipt = {
            "content_hash": spec.content_hash,
            "command": command,
            "known": known,
            "facts": facts,
            "accuracy": accuracy_texts(verdict),
            "findings": [
                {**dataclasses.asdict(f), "sentence": f.sentence(spec.name)} for f in findings
            ],
        }
    with refused_in_one_line(spec, "derived"):
        stages.next("write the page, the module and the golden vectors")
        with derived_folder.replaced(folder, receipt) as part:
            write_json(part / STORED, to_plain(spec))
            write_text(part / derived_folder.KERNEL, kernel)
            write_text(part / f"{spec.name}.py", derived_folder.module_source(spec, kernel))
            write_text(part / f"{spec.name}_torch.py", torch_source(spec, kernel))
            write_json(part / derived_folder.CERTIFICATE, certificate)
            page = activation_page(
                spec,
                facts,
                certificate=certificate,
                verdict=to_plain(verdict),
                findings=sentences,
                command=command,
            )
            write_text(part / f"{spec.name}.html", page)
            write_text(part / derived_folder.README, derived_folder.readme_text(spec, command))
            write_vectors(spec, part / derived_folder.GOLDEN)
        return receipt
