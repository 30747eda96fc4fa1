"""Steps from raw files to documents with a ledger, token shards and transparency documents."""

from __future__ import annotations

from pathlib import Path

from stamm.base.user_code import code_files
from stamm.corpus.classifiers.config import CLASSIFIER_FILES
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.corpus_filter import load_filters
from stamm.corpus.inputs import check_kind, expand, locate
from stamm.corpus.reuse_job import ReuseConfig
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizeConfig, TokenizerConfig
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.runs.job import Step


def corpus_steps(config: CorpusConfig) -> tuple[Step, ...]:
    """Steps that plant passages (if configured), filter documents and write the corpus.

    Raises   DataError when an input does not exist or has an unknown format; ConfigError for a corpus
             filter that cannot be loaded.
    """
    planting = config.injection_config
    steps = []
    if planting is not None:
        books = planting.probes.books
        steps.append(
            Step(
                name="canaries",
                job="canaries",
                config=planting,
                folder="canaries",
                external={books: locate(books, "corpus.probes.books")},
                outputs=(".",),
            )
        )
    inputs = expand(config.inputs, "corpus.inputs")
    for name in inputs:
        check_kind(name)
    read = expand(config.consent.robots, "corpus.consent.robots")
    read |= expand(config.consent.domains, "corpus.consent.domains")
    if config.contamination is not None:
        files = [evaluation_set.file for evaluation_set in config.contamination.sets]
        read |= {name: locate(name, "corpus.contamination") for name in files}
    read |= {name: locate(name, f"corpus.{key}") for key, name in config.own_files.items()}
    for role in ("toxicity_classifier", "quality_classifier"):
        folder = getattr(config, role)
        if folder:
            read |= expand([f"{folder}/{file}" for file in CLASSIFIER_FILES], f"corpus.{role}")
    load_filters(config.filters)  # an error in one shows before the run starts
    read |= code_files(config.filters)
    screen = Step(
        name="filter",
        job="filter",
        config=config.filter_config,
        folder="filtered",
        external=inputs | read,
        outputs=(".",),
        sharded=True,
    )
    decide = Step(
        name="global_filter",
        job="global_filter",
        config=config.global_filter_config,
        folder="global_filter",
        inputs={"filtered": screen.folder},
        outputs=(".",),
    )
    before = [*steps, screen, decide]
    settle = Step(
        name="corpus",
        job="finalize",
        config=config.global_filter_config,
        folder="corpus",
        inputs={step.folder: step.folder for step in before},
        outputs=(".",),
        sharded=True,
    )
    return (*before, settle)


def token_steps(tokenizer: TokenizerConfig | TekkenConfig, pack: PackConfig) -> tuple[Step, ...]:
    """Steps that train the tokenizer, tokenize every shard and pack the tokens."""
    return (
        Step(
            name="tokenizer",
            job="tokenizer",
            config=tokenizer,
            folder="tokenizer",
            inputs={"corpus": "corpus"},
            outputs=("tokenizer.json", "summary.json"),
        ),
        Step(
            name="tokenize",
            job="tokenize",
            config=TokenizeConfig(),
            folder="tokens",
            inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
            outputs=(".",),
            sharded=True,
        ),
        Step(
            name="pack",
            job="pack",
            config=pack,
            folder="pack",
            inputs={"tokens": "tokens"},
            outputs=(".",),
            sharded=True,
        ),
    )


def reused_steps(run: Path) -> tuple[Step, ...]:
    """Steps that reuse the tokenizer, the packed tokens and the summary of the corpus of another run."""
    reused = {
        "corpus": ("summary.json",),
        "tokenizer": ("tokenizer.json", "summary.json"),
        "pack": (),
    }
    return tuple(
        Step(
            name=name,
            job="reuse",
            config=ReuseConfig(files=files),
            folder=name,
            inputs={"reused": str(run.absolute() / name)},
            outputs=files or (".",),
        )
        for name, files in reused.items()
    )


def evidence_step(config: EvidenceConfig) -> Step:
    """Step that writes the data card and the public summary of a packed corpus."""
    return Step(
        name="evidence",
        job="evidence",
        config=config,
        folder="evidence",
        inputs={"corpus": "corpus", "pack": "pack"},
        outputs=(".",),
    )
