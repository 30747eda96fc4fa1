"""Corpus recipe: raw files to token shards, ledger and report."""

from __future__ import annotations

from dataclasses import dataclass, field

from stamm.corpus.config import CanariesConfig, CorpusConfig, PackConfig, ProbesConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.inputs import DEMO_INPUTS, DEMO_PROBE_BOOKS, DEMO_ROBOTS
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.steps import corpus_steps, evidence_step, token_steps
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.pages.config import ReportConfig
from stamm.reports.steps import report_step
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Step


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """From raw files to token shards.

    evidence   facts about the provider: name, contact, purpose
    execution  executor of the shards; may change when a run is resumed
    """

    corpus: CorpusConfig
    tokenizer: TokenizerConfig | TekkenConfig = field(default_factory=TokenizerConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    execution: Execution = field(default_factory=LocalExecutor)

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done, in order."""
        steps = [*corpus_steps(self.corpus), *token_steps(self.tokenizer, self.pack)]
        steps.append(evidence_step(self.evidence))
        return (*steps, report_step(self.report))


def demo_corpus() -> CorpusRecipe:
    """The texts shipped with stamm as a corpus, with every step that needs no other data; 20 s."""
    return CorpusRecipe(
        corpus=CorpusConfig(
            inputs=DEMO_INPUTS,
            consent=ConsentConfig(robots=DEMO_ROBOTS, unknown_host="allow"),
            # The sources name their licences in free text, not as SPDX expressions.
            licences=LicenceConfig(unknown="allow"),
            quality=QualityConfig(),
            probes=ProbesConfig(books=DEMO_PROBE_BOOKS, passages_per_bucket=4),
            canaries=CanariesConfig(per_bucket=1),
        )
    )
