"""Facts of one arm in its run folder, as one value for all documents of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.records import PreparedSummary
from stamm.base.errors import RunError
from stamm.base.files import read_json, sha256_file
from stamm.base.receipts import check_file, check_present, file_sha256, is_present
from stamm.base.schema import read_record, read_record_if_present
from stamm.corpus.records import CorpusSummary, PackManifest
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.evaluate.records import MemorizationFile, TaskFile
from stamm.export.alignment_card import alignment_summaries
from stamm.export.records import ParityFile
from stamm.models.config import DecoderConfig
from stamm.models.serialization import checked_config
from stamm.pretrain.forget.results import Forgetting, read_forgetting
from stamm.pretrain.records import TimingFile, TrainingSummary
from stamm.release.config import ReleaseConfig
from stamm.release.layout import PARITY, TOP_FORMAT
from stamm.release.records import ReleaseFile
from stamm.runs.arms import input_of_arm, run_of_arm
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.model_outputs import read_result, read_result_if_present, weights_sha256
from stamm.runs.records import ConfigFile, ManifestFile
from stamm.version import VERSION


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """One trained arm. Names of tasks, languages, sources and licences are untrusted.

    arm, root        folders of the arm and of its run
    corpus, pack     their folders, None where the arm has none
    tokenizer        folder of tokenizer.json
    exports          folder of each export by target, the one at the top first
    licence          as the exports state it
    tasks            results of evaluation by name of their file
    alignment        prepared data of each stage of alignment, in order
    evidence         the provider's statements in the run's configuration
    forgetting       documents that the model was trained again without; None for others
    """

    record: ReleaseFile
    arm: Path
    root: Path
    corpus: Path | None
    pack: Path | None
    tokenizer: Path
    exports: Mapping[str, Path]
    parity: Mapping[str, ParityFile]
    decoder: DecoderConfig
    request: ConfigFile | None
    manifest: ManifestFile | None
    training: TrainingSummary | None
    timing: TimingFile | None
    packed: PackManifest | None
    summary: CorpusSummary | None
    tasks: Mapping[str, TaskFile]
    memorization: MemorizationFile | None
    alignment: tuple[PreparedSummary, ...]
    evidence: EvidenceConfig
    forgetting: Forgetting | None = None

    @property
    def languages(self) -> Mapping[str, int]:
        """Training tokens by language tag, most first; {} without a packed corpus."""
        counts = self.packed.splits["train"].tokens_by_language if self.packed else {}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def read_release_facts(config: ReleaseConfig, arm: Path, evidence: EvidenceConfig) -> ReleaseFacts:
    """The facts of the arm in folder `arm`.

    evidence   the provider's statements

    Raises   RunError for an arm without an export; DataError for a damaged file, and for weights
             that are not those that decoder.json records.
    """
    root = run_of_arm(arm)
    decoder = checked_config(arm / "model")
    exports = _exports(config, arm)
    corpus, pack = _input(arm, "corpus"), _input(arm, "pack")
    tokenizer = input_of_arm(arm, "tokenizer")
    check_file(tokenizer / "tokenizer.json")
    request = read_record_if_present(ConfigFile, root / "config.json")
    recipe = Path(request.recipe).stem if request else ""
    sha256 = weights_sha256(arm / "model")
    parity = {name: read_record(ParityFile, at / PARITY) for name, at in exports.items()}
    for name, result in parity.items():
        if result.model_sha256 != sha256:
            raise RunError(
                f"{exports[name]} was made from other weights, or does not name them",
                fix=f"Repeat `stamm export {arm} target={name}`",
            )
        for file, size in result.files.items():
            path = exports[name] / file
            wanted = result.sha256.get(file)
            same = path.is_file() and path.stat().st_size == size
            if not same or wanted not in (None, file_sha256(path)):
                raise RunError(
                    f"{path} is missing or is not the file of {size} bytes that was exported",
                    fix=f"Remove {exports[name]} and repeat `stamm export`",
                )
    check_present(arm / "evaluate", "*.json")
    tasks = {
        path.stem: read_result(TaskFile, path, arm / "model")
        for path in sorted((arm / "evaluate").glob("*.json"))
    }
    audit = arm / "audit" / "memorization.json"
    memorization = read_result_if_present(MemorizationFile, audit, arm / "model")
    return ReleaseFacts(
        record=ReleaseFile(
            version=VERSION,
            name=config.name or "-".join(filter(None, (recipe, arm.resolve().name))),
            recipe=recipe,
            arm=arm.resolve().name,
            licence=_licence(exports),
            formats=tuple(exports),
            model_sha256=sha256,
            tokenizer_sha256=sha256_file(tokenizer / "tokenizer.json"),
            pack_sha256=None if pack is None else sha256_file(pack / "manifest.json"),
            corpus_sha256=None if corpus is None else sha256_file(corpus / "summary.json"),
            parity_sha256={name: sha256_file(at / PARITY) for name, at in exports.items()},
        ),
        arm=arm,
        root=root,
        corpus=corpus,
        pack=pack,
        tokenizer=tokenizer,
        exports=exports,
        parity=parity,
        decoder=decoder,
        request=request,
        manifest=read_record_if_present(ManifestFile, arm / "manifest.json", MANIFEST_FIX),
        training=read_record_if_present(TrainingSummary, arm / "summary.json"),
        timing=read_record_if_present(TimingFile, arm / "log" / "timing.json"),
        packed=None if pack is None else read_record(PackManifest, pack / "manifest.json"),
        summary=None if corpus is None else read_record(CorpusSummary, corpus / "summary.json"),
        tasks=tasks,
        memorization=memorization,
        alignment=tuple(alignment_summaries(arm / "model")),
        evidence=evidence,
        forgetting=read_forgetting(root, arm),
    )


def _exports(config: ReleaseConfig, arm: Path) -> dict[str, Path]:
    made = {path.parent.name for path in (arm / "export").glob(f"*/{PARITY}")}
    wanted = set(config.formats) or made
    if missing := sorted(wanted - made):
        raise RunError(
            f"{arm} has no export to {missing[0]}", fix=f"`stamm export {arm} target={missing[0]}`"
        )
    if not wanted:
        raise RunError(f"{arm} has no export", fix=f"`stamm export {arm}`")
    ordered = sorted(wanted, key=lambda name: (name != TOP_FORMAT, name))
    return {name: arm / "export" / name for name in ordered}


def _input(arm: Path, name: str) -> Path | None:
    try:
        folder = input_of_arm(arm, name)
    except RunError:
        return None
    needed = folder / {"corpus": "summary.json", "pack": "manifest.json"}[name]
    return folder if is_present(needed) else None


def _licence(exports: Mapping[str, Path]) -> str:
    """The licence in the front matter of the first export's card, "" when it states none."""
    card = next(iter(exports.values())) / "README.md"
    check_file(card)
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    front = text.split("\n---\n", 1)[0] if text.startswith("---\n") else ""
    for line in front.splitlines():
        key, _, value = line.partition(": ")
        if key == "license":
            return value.strip('"')
    return ""


def evidence_settings(root: Path) -> Any:
    """The section "evidence" of a run's configuration in plain form; None when it has none."""
    stored = read_json(root / "config.json") if (root / "config.json").is_file() else None
    config = stored.get("config") if isinstance(stored, dict) else None
    return config.get("evidence") if isinstance(config, dict) else None
