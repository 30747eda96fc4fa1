"""A finished corpus held against a newer word."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.corpus.config import PackConfig, ReplayConfig, TokenizeConfig
from stamm.corpus.inputs import expand
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.recipes.corpus_steps import evidence_step
from stamm.recipes.report_step import report_step
from stamm.reports.config import ReportConfig
from stamm.runs.executors import Execution, LocalWork
from stamm.runs.job import Step
from stamm.runs.run import Run

_PROOFS = {"corpus": "summary.json", "tokens": "index-00000.parquet", "pack": "manifest.json"}


@dataclass(frozen=True, kw_only=True)
class ReplayRecipe:
    """What has to go from a corpus, and the corpus without it.

    run        the run folder of the finished corpus; it is read, never changed
    pack       the order of what is left; None: the rule by which the corpus was packed. A mixture
               may need another, where a source has become too small for its weight
    evidence   what only the provider knows, as for the corpus itself
    execution  where its shards are done; may change when a run is continued
    """

    run: str = ""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    pack: PackConfig | None = None
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    execution: Execution = field(default_factory=LocalWork)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """Everything to be done in the run folder `root`, in order.

        Raises   ConfigError when `run` holds no finished corpus, or nobody's word is named.
        """
        finished = self._finished()
        if not (self.replay.robots or self.replay.domains or self.replay.deletions):
            raise ConfigError(
                "nobody's newer word is named",
                fix="Set replay.robots=FILE, replay.domains=FILE or replay.deletions=FILE",
            )
        words = (("robots", self.replay.robots), ("domains", self.replay.domains))
        external = {
            name: path
            for role, names in (*words, ("deletions", self.replay.deletions))
            for name, path in expand(names, f"replay.{role}").items()
        }
        for name, proof in _PROOFS.items():
            external[f"{self.run}/{name}"] = finished / name / proof
        there = {name: os.path.relpath(finished / name, root) for name in (*_PROOFS, "tokenizer")}
        steps = [
            Step(
                name="replay",
                job="replay",
                config=self.replay,
                folder="corpus",
                inputs={"corpus": there["corpus"], "pack": there["pack"]},
                external=external,
                outputs=(".",),
                sharded=True,
            ),
            Step(
                name="tokenizer",
                job="take_tokenizer",
                config=TokenizeConfig(),
                folder="tokenizer",
                inputs={"tokenizer": there["tokenizer"]},
                after=("replay",),
                outputs=("tokenizer.json",),
            ),
            Step(
                name="retake",
                job="retake",
                config=TokenizeConfig(),
                folder="tokens",
                inputs={"corpus": "corpus", "tokens": there["tokens"]},
                after=("replay",),
                outputs=(".",),
                sharded=True,
            ),
            Step(
                name="pack",
                job="pack",
                config=self._pack(finished),
                folder="pack",
                inputs={"tokens": "tokens"},
                after=("retake",),
                outputs=(".",),
                sharded=True,
            ),
        ]
        steps.append(evidence_step(self.evidence, "replay"))
        return (*steps, report_step(self.report, steps))

    def _finished(self) -> Path:
        if not self.run:
            raise ConfigError(
                "no corpus is named whose documents are asked about again",
                fix="Set run=FOLDER, such as run=runs/corpus.demo",
            )
        folder = Path(self.run)
        missing = (
            f"{n}/{p} is missing" for n, p in _PROOFS.items() if not (folder / n / p).is_file()
        )
        why = Run(folder, "", (), None).unfinished() or next(missing, "")
        if why:
            raise ConfigError(
                f"run = {self.run} holds no finished corpus: {why}",
                fix="Name the folder of a finished corpus run, or finish it",
            )
        return folder

    def _pack(self, finished: Path) -> PackConfig:
        """How the corpus was packed: what is left is packed by the same rule, unless told otherwise."""
        if self.pack is not None:
            return self.pack
        path = finished / "pack" / _PROOFS["pack"]
        try:
            return from_plain(PackConfig, read_json(path)["config"], str(path))
        except (KeyError, TypeError):
            raise DataError(
                f"{path} does not say how the corpus was packed", fix="Pack the corpus again"
            ) from None


def replay() -> ReplayRecipe:
    """A finished corpus under newer robots.txt, domain lists or requests for deletion; set run=FOLDER."""
    return ReplayRecipe()
