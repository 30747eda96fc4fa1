"""Write a released folder: generated documents, copies of the run's files, checksums, signature.

Everything is written under a hidden name beside the folder and renamed at the end. The same run
gives the same bytes, in any folder; only a signature differs each time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from stamm.base.errors import DataError, RunError
from stamm.base.files import atomic_folder, sha256_file, write_json, write_text
from stamm.base.receipts import check_file, is_covered
from stamm.base.schema import read_record, record, write_record
from stamm.release.activation_files import write_activation
from stamm.release.bom import bill_of_materials
from stamm.release.card import release_card
from stamm.release.checksums import SUMS, list_files, read_sums, write_sums
from stamm.release.config import ReleaseConfig
from stamm.release.consent_receipt import write_receipts
from stamm.release.contents import copied_files, write_forgotten, write_kept_ledger
from stamm.release.documentation import (
    documentation_json,
    documentation_markdown,
    documented_items,
    read_answers,
)
from stamm.release.evaluations import eval_results
from stamm.release.facts import ReleaseFacts
from stamm.release.layout import BOM, CARD, EVIDENCE, RECORD, RELEASED
from stamm.release.records import ReleasedFile, ReleaseFile
from stamm.release.signature import check_key, sign
from stamm.runs.command_receipts import write_command_receipt
from stamm.runs.job import Workspace
from stamm.runs.run import Job

Jobs = Callable[[str], Job]


def write_release(
    config: ReleaseConfig,
    facts: ReleaseFacts,
    out: Path,
    jobs: Jobs,
    key: Path | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> dict[str, str]:
    """Write the release of one arm to `out`, and released.json into the folder of the arm.

    jobs   the function of a kind of job; "evidence" writes the documents about the corpus
    key    a private key that signs; None: no signature
    log    receives warnings: files without a receipt, a run that cannot be written to

    Returns  SHA-256 by name, as in SHA256SUMS
    Raises   RunError when `out` is not a release of the same weights, when the disk is full, or when
             the key cannot sign; ConfigError for answers that do not fit; DataError for a file of the run
             that differs from its receipt. `out` is unchanged then.
    Checked  tests/unit/release/test_write_release.py
    """
    check_destination(out, facts.record.model_sha256, key)
    if config.receipts and Path(config.receipts).resolve().is_relative_to(out.resolve()):
        raise RunError(
            f"receipts={config.receipts} lies in the release, and holds a secret key",
            fix="Choose a folder outside of it that is not published",
        )
    with atomic_folder(out) as part:
        copied = copied_files(config, facts)
        for source in copied.values():
            check_file(source)
        facts = _with_unknown_files(facts, copied)
        if unknown := facts.record.without_receipt:
            log(
                f"No receipt of the run covers {len(unknown)} files, so nothing shows what wrote them: "
                f"{', '.join(unknown[:8])}{', …' * (len(unknown) > 8)}"
            )
        _write_documents(config, facts, part, jobs)
        for name, source in copied.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part / name)
        if key is not None:
            sign(part, key)
        sums = write_sums(part)
    try:
        _note(facts, out, sums, key is not None)
    except (OSError, RunError) as error:
        log(
            f"{facts.arm} could not be written to, so its report will not name this release: {error}"
        )
    return sums


def check_destination(out: Path, model_sha256: str, key: Path | None = None) -> None:
    """Check what can be checked before any work: that `out` may be written and that `key` can sign.

    model_sha256   of the weights to release: only a release of them, without other files, is replaced

    Raises   RunError as `write_release` does.
    """
    _check_replaceable(out, model_sha256)
    if key is not None:
        check_key(key)


def planned_files(config: ReleaseConfig, facts: ReleaseFacts, jobs: Jobs) -> dict[str, int]:
    """Bytes of every file of the release by name, without SHA256SUMS and a signature.

    Documents are written to a temporary folder to know their sizes.
    """
    copied = copied_files(config, facts)
    facts = _with_unknown_files(facts, copied)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as private:
        if config.receipts:  # a dry run makes no key to keep
            config = replace(config, receipts=private)
        _write_documents(config, facts, Path(scratch), jobs)
        sizes = {name: (Path(scratch) / name).stat().st_size for name in list_files(Path(scratch))}
    sizes |= {name: source.stat().st_size for name, source in copied.items()}
    return dict(sorted(sizes.items()))


def _with_unknown_files(facts: ReleaseFacts, copied: Mapping[str, Path]) -> ReleaseFacts:
    """The facts, with the names of the copied files that no receipt covers in their record."""
    unknown = tuple(name for name, source in copied.items() if not is_covered(source))
    return replace(facts, record=replace(facts.record, without_receipt=unknown))


def _write_documents(config: ReleaseConfig, facts: ReleaseFacts, folder: Path, jobs: Jobs) -> None:
    """Write everything that is not a copy of a file of the run."""
    items = documented_items(facts, read_answers(config.answers))
    documents = folder / EVIDENCE
    documents.mkdir()
    if facts.corpus is not None:
        inputs = {"corpus": facts.corpus} | ({"pack": facts.pack} if facts.pack else {})
        jobs("evidence")(facts.evidence, Workspace(folder=documents, inputs=inputs))
    sources = write_kept_ledger(facts, folder)
    write_forgotten(facts, folder)
    if config.receipts:
        if facts.corpus is None:
            raise RunError(
                f"{facts.arm} has no corpus, so that there is no ledger to give receipts of",
                fix="Leave out receipts=",
            )
        write_receipts(facts.corpus, Path(config.receipts), folder)
    write_text(documents / "model_documentation.md", documentation_markdown(items))
    write_json(documents / "model_documentation.json", documentation_json(items))
    write_activation(facts.arm / "model", folder)
    for task, entries in eval_results(facts.tasks).items():
        write_json(folder / ".eval_results" / f"{task}.yaml", entries)  # JSON is YAML, too
    write_json(folder / BOM, bill_of_materials(facts, sources))
    write_text(folder / CARD, release_card(facts, sum(item.answer is None for item in items)))
    write_record(folder / RECORD, ReleaseFile, asdict(facts.record))


def _note(facts: ReleaseFacts, out: Path, sums: Mapping[str, str], signed: bool) -> None:
    """Write released.json beside the arm's results, for its report."""
    body = {
        "name": facts.record.name,
        "model_sha256": facts.record.model_sha256,
        "licence": facts.record.licence,
        "formats": list(facts.record.formats),
        "signed": signed,
        "sums_sha256": sha256_file(out / SUMS),
        "files": {
            name: {"bytes": (out / name).stat().st_size, "sha256": sha256}
            for name, sha256 in sums.items()
        },
    }
    path = facts.arm / RELEASED
    write_json(path, record(ReleasedFile, body))
    write_command_receipt(facts.root, f"release.{facts.record.arm}", [path])


def _check_replaceable(out: Path, model_sha256: str) -> None:
    """Only a release of the same weights without files of anyone else is ever replaced."""
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file", fix="Choose a folder with --out")
    if not any(out.iterdir()):
        return
    fix = "Choose another folder with --out, or move it away"
    try:
        there, listed = read_record(ReleaseFile, out / RECORD), read_sums(out)
    except DataError:
        raise RunError(f"{out} is not empty and is not a release", fix=fix) from None
    if there.model_sha256 != model_sha256:
        raise RunError(
            f"{out} is the release of other weights: {there.model_sha256[:12]}, here are "
            f"{model_sha256[:12]}",
            fix=fix,
        )
    if others := sorted(set(list_files(out)) - set(listed)):
        raise RunError(f"{out} has a file that the release did not write: {others[0]!r}", fix=fix)
