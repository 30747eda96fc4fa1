"""The steps from raw files to documents with a ledger, to token shards, to evidence of both."""

from __future__ import annotations

from stamm.corpus.classifiers.config import CLASSIFIER_FILES
from stamm.corpus.config import (
    CorpusConfig,
    PackConfig,
    TekkenConfig,
    TokenizeConfig,
    TokenizerConfig,
)
from stamm.corpus.inputs import expand, locate
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.runs.job import Step


def corpus_steps(config: CorpusConfig) -> tuple[Step, ...]:
    """Plant (where something is planted), screen, decide, and the corpus itself, in order.

    Raises   DataError when an input does not exist.
    """
    planting = config.planting
    steps = []
    if planting is not None:
        books = planting.probes.books
        steps.append(
            Step(
                name="plant",
                job="plant",
                config=planting,
                folder="planted",
                external={books: locate(books, "corpus.probes.books")},
                outputs=(".",),
            )
        )
    said = expand(config.consent.robots, "corpus.consent.robots")
    said |= expand(config.consent.domains, "corpus.consent.domains")
    if config.contamination is not None:
        files = [one.file for one in config.contamination.sets]
        said |= {name: locate(name, "corpus.contamination") for name in files}
    for role in ("toxicity_classifier", "quality_classifier"):
        folder = getattr(config, role)
        if folder:
            said |= expand([f"{folder}/{file}" for file in CLASSIFIER_FILES], f"corpus.{role}")
    screen = Step(
        name="screen",
        job="screen",
        config=config.screening,
        folder="screened",
        external=expand(config.inputs, "corpus.inputs") | said,
        outputs=(".",),
        sharded=True,
    )
    decide = Step(
        name="decide",
        job="decide",
        config=config.deciding,
        folder="decided",
        inputs={"screened": screen.folder},
        after=("screen",),
        outputs=(".",),
    )
    before = [*steps, screen, decide]
    settle = Step(
        name="corpus",
        job="settle",
        config=config.deciding,
        folder="corpus",
        inputs={step.folder: step.folder for step in before},
        after=tuple(step.name for step in before),
        outputs=(".",),
        sharded=True,
    )
    return (*before, settle)


def token_steps(tokenizer: TokenizerConfig | TekkenConfig, pack: PackConfig) -> tuple[Step, ...]:
    """Train a vocabulary, encode every shard, and put the documents into their order."""
    return (
        Step(
            name="tokenizer",
            job="tokenizer",
            config=tokenizer,
            folder="tokenizer",
            inputs={"corpus": "corpus"},
            after=("corpus",),
            outputs=("tokenizer.json", "summary.json"),
        ),
        Step(
            name="tokenize",
            job="tokenize",
            config=TokenizeConfig(),
            folder="tokens",
            inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
            after=("corpus", "tokenizer"),
            outputs=(".",),
            sharded=True,
        ),
        Step(
            name="pack",
            job="pack",
            config=pack,
            folder="pack",
            inputs={"tokens": "tokens"},
            after=("tokenize",),
            outputs=(".",),
            sharded=True,
        ),
    )


def evidence_step(config: EvidenceConfig, corpus: str) -> Step:
    """The data card and the public summary of a corpus that is packed; `corpus` is its step."""
    return Step(
        name="evidence",
        job="evidence",
        config=config,
        folder="evidence",
        inputs={"corpus": "corpus", "pack": "pack"},
        after=(corpus, "pack"),
        outputs=(".",),
    )
