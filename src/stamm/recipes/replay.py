"""Opt-out replay recipe: apply later opt-outs and deletion requests to a finished corpus."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.schema import read_record_if_present
from stamm.corpus.config import PackConfig, ReplayConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.inputs import expand
from stamm.corpus.records import WITHDRAWN_IDS
from stamm.corpus.reuse_job import ReuseConfig
from stamm.corpus.steps import evidence_step
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.pages.config import ReportConfig
from stamm.reports.steps import report_step
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Step
from stamm.runs.records import ConfigFile, ManifestFile
from stamm.runs.run import Run

NAME = "corpus.replay"
_OUTPUTS = {"corpus": "summary.json", "tokens": "index-00000.parquet", "pack": "manifest.json"}


@dataclass(frozen=True, kw_only=True)
class ReplayRecipe:
    """The documents to remove from a corpus, and the corpus without them.

    run        the run folder of the finished corpus; read only
    pack       order of the remaining documents; None: as the corpus was packed. A mixture may need
               new weights when a source has become too small
    evidence   facts about the provider, as for the corpus
    execution  executor of the shards; may change when a run is resumed
    """

    run: str = ""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    pack: PackConfig | None = None
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    execution: Execution = field(default_factory=LocalExecutor)

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when `run` holds no finished corpus, there is no opt-out to apply,
                 or robots.txt files are given and the agents to check are not known.
        """
        finished = self._finished()
        if not (self.replay.robots or self.replay.domains or self.replay.deletions):
            raise ConfigError(
                "there is no opt-out to apply",
                fix="Set replay.robots=FILE, replay.domains=FILE or replay.deletions=FILE",
            )
        lists = (("robots", self.replay.robots), ("domains", self.replay.domains))
        external = {
            name: path
            for role, names in (*lists, ("deletions", self.replay.deletions))
            for name, path in expand(names, f"replay.{role}").items()
        }
        for name, file in _OUTPUTS.items():
            external[f"{self.run}/{name}"] = finished / name / file
        finished_inputs = {
            name: os.path.relpath(finished / name, root) for name in (*_OUTPUTS, "tokenizer")
        }
        steps = [
            Step(
                name="replay",
                job="replay",
                config=self._replay(finished),
                folder="corpus",
                inputs={"corpus": finished_inputs["corpus"], "pack": finished_inputs["pack"]},
                external=external,
                outputs=(".",),
                sharded=True,
            ),
            Step(
                name="tokenizer",
                job="reuse",
                config=ReuseConfig(files=("tokenizer.json",)),
                folder="tokenizer",
                inputs={"reused": finished_inputs["tokenizer"]},
                outputs=("tokenizer.json",),
            ),
            Step(
                name="reuse_tokens",
                job="reuse_tokens",
                config=TokenizeConfig(),
                folder="tokens",
                inputs={"corpus": "corpus", "tokens": finished_inputs["tokens"]},
                outputs=(".",),
                sharded=True,
            ),
            Step(
                name="pack",
                job="pack",
                config=self._pack(finished),
                folder="pack",
                inputs={"tokens": "tokens"},
                outputs=(".",),
                sharded=True,
            ),
        ]
        steps.append(evidence_step(self.evidence))
        return (*steps, report_step(self.report))

    def _finished(self) -> Path:
        if not self.run:
            raise ConfigError(
                "run is empty: there is no corpus to apply opt-outs to",
                fix="Set run=FOLDER, such as run=runs/corpus.demo",
            )
        folder = Path(self.run)
        missing = (
            f"{n}/{p} is missing" for n, p in _OUTPUTS.items() if not (folder / n / p).is_file()
        )
        why = Run(folder, "", (), None).unfinished() or next(missing, "")
        if why:
            raise ConfigError(
                f"run = {self.run} holds no finished corpus: {why}",
                fix="Name the folder of a finished corpus run, or finish it",
            )
        return folder

    def _replay(self, finished: Path) -> ReplayConfig:
        """`replay` with the agents that the finished corpus was checked for, if it names none."""
        if self.replay.agents or not self.replay.robots:
            return self.replay
        agents, source = _recorded_agents(finished)
        if not agents:
            raise ConfigError(
                f"{finished / 'config.json'} does not record which agents the corpus was checked for",
                where="replay.agents",
                fix="Set replay.agents, such as replay.agents=package:training",
            )
        return replace(self.replay, agents=agents, agents_source=source)

    def _pack(self, finished: Path) -> PackConfig:
        """`pack` if given, else the packing configuration of the finished corpus."""
        if self.pack is not None:
            return self.pack
        path = finished / "pack" / _OUTPUTS["pack"]
        try:
            return from_plain(PackConfig, read_json(path)["config"], str(path))
        except (KeyError, TypeError):
            raise DataError(
                f"{path} has no packing configuration", fix="Pack the corpus again"
            ) from None


def next_commands(root: Path) -> list[str]:
    """Commands that follow a finished replay in `root`: training, and models to train again.

    Edge     [] for other runs
    """
    stored = read_record_if_present(ConfigFile, root / "config.json")
    config = stored.config if stored is not None and stored.recipe == NAME else None
    if not isinstance(config, dict):
        return []
    trained = Path(str(config.get("run", "")))
    commands = [f"{_training(trained)} pack={shlex.quote(str(root / 'pack'))}"]
    ids = root / "corpus" / WITHDRAWN_IDS
    if not ids.is_file() or not ids.stat().st_size:
        return commands
    for arm in sorted(trained.glob("arms/*/model/decoder.json")):
        name, run = shlex.quote(arm.parents[1].name), shlex.quote(str(trained))
        commands.append(
            f"stamm run pretrain.forget run={run} arm={name} documents={shlex.quote(str(ids))}"
        )
    return commands


def _training(run: Path) -> str:
    """The command that trained on the corpus of `run`, without its changes; that of a recipe, where none did."""
    stored = read_record_if_present(ConfigFile, run / "config.json")
    manifest = read_record_if_present(ManifestFile, run / "manifest.json")
    config: Any = stored.config if stored is not None else None
    verb, *named = (manifest.command[1:3] if manifest is not None else ()) or ("",)
    has_arms = isinstance(config, dict) and {"arms", "pack"} <= config.keys()
    if has_arms and named and verb in ("run", "compare"):
        return f"stamm {verb} {shlex.quote(named[0])}"
    return "stamm run pretrain.llama_1b_xielu"


def _recorded_agents(run: Path) -> tuple[tuple[str, ...], str]:
    """Agents that a corpus was checked for, and their source; none where they are not recorded."""
    seen: set[Path] = set()
    while (path := run / "config.json").is_file() and path not in seen:
        seen.add(path)
        stored: Any = read_json(path)
        config = stored.get("config") if isinstance(stored, dict) else None
        if not isinstance(config, dict):
            break
        if isinstance(config.get("corpus"), dict):
            consent = from_plain(ConsentConfig, config["corpus"].get("consent"), str(path))
            return consent.agents, consent.agents_source
        if "replay" not in config:
            break
        replayed = from_plain(ReplayConfig, config["replay"], str(path))
        if replayed.agents:
            return replayed.agents, replayed.agents_source
        run = Path(str(config.get("run")))  # of an earlier replay, which took its agents there
    return (), ""


def replay() -> ReplayRecipe:
    """Apply newer robots.txt, domain lists or deletion requests to a finished corpus; set run=FOLDER."""
    return ReplayRecipe()
