"""A small corpus that is finished, and what replays it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stamm.base.console import NoProgress, Progress
from stamm.corpus.config import CorpusConfig, PackConfig, ReplayConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.opt_out_replay import replay
from stamm.corpus.pack_job import pack
from stamm.corpus.tables import read_parts, read_rows
from stamm.corpus.tokenize_job import reuse_tokens
from stamm.corpus.tokenizer.config import TokenizeConfig, TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from tests.unit.small_corpus import build_corpus, pack_corpus

OPEN = ConsentConfig(unknown_host="allow")
Row = dict[str, Any]


def rows() -> list[Row]:
    made = [
        {
            "text": f"Page {n} of site {n % 5} tells of {n * n} rivers and {n * 7} stones.",
            "url": f"https://site{n % 5}.example/page/{n}",
            "language": "deu_Latn" if n % 3 else "eng_Latn",
        }
        for n in range(40)
    ]
    # The same text at another address: one of the two is dropped as a duplicate.
    return [*made, {**made[7], "url": "https://mirror.example/7"}]


class Finished:
    """A corpus that is finished, and what replays it.

    settings   of the corpus, beside its inputs
    order      how it is packed
    """

    def __init__(
        self,
        root: Path,
        write: Callable[..., str],
        documents: list[Row] | None = None,
        order: PackConfig | None = None,
        **settings: Any,
    ) -> None:
        self.root = root
        self.write = write
        self.order = order or PackConfig(shard_tokens=300)
        self.settings = {"consent": OPEN, "held_out": 0.0, **settings}
        self.documents = rows() if documents is None else documents
        self.run = root / "run"
        self.build(self.run, self.documents)

    def build(self, run: Path, documents: list[Row]) -> None:
        run.mkdir()
        halves = [self.write(*documents[i::2], name=f"{run.name}{i}.jsonl") for i in range(2)]
        build_corpus(CorpusConfig(inputs=tuple(halves), **self.settings), run)
        (run / "tokenizer").mkdir()
        texts = [row["text"] for row in self.documents]
        trained = train_tokenizer_on(TokenizerConfig(vocab_size=345), texts)
        (run / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
        pack_corpus(self.order, run)

    def replay(
        self,
        workers: int = 1,
        run: Path | None = None,
        name: str = "",
        progress: Progress | None = None,
        **words: str,
    ) -> Path:
        """Replay `run`, or the corpus itself, into a folder of its own."""
        files: dict[str, tuple[str, ...]] = {}
        for role, text in words.items():
            (self.root / f"{role}.txt").write_text(text, encoding="utf-8")
            files[role] = (str(self.root / f"{role}.txt"),)
        again = self.root / (name or f"again{workers}")
        there = {name: (run or self.run) / name for name in ("corpus", "tokens", "pack")}
        for folder in there:
            (again / folder).mkdir(parents=True, exist_ok=True)
        place = Workspace(
            folder=again / "corpus",
            inputs={name: there[name] for name in ("corpus", "pack")},
            execution=LocalExecutor(workers=workers),
            progress=progress or NoProgress(),
        )
        replay(ReplayConfig(**files), place)  # type: ignore[arg-type]
        inputs = {"corpus": again / "corpus", "tokens": there["tokens"]}
        reuse_tokens(TokenizeConfig(), replace(place, folder=again / "tokens", inputs=inputs))
        inputs = {"tokens": again / "tokens"}
        pack(self.order, replace(place, folder=again / "pack", inputs=inputs))
        return again


def left(folder: Path) -> set[str]:
    return {row["url"] for row in read_parts(folder / "corpus", "documents")}


def withdrawn(folder: Path) -> dict[str, Row]:
    return {row["url"]: row for row in read_rows(folder / "corpus" / "withdrawn.parquet")}


def snapshot(domain: str, text: str, status: int = 200) -> str:
    row = {
        "domain": domain,
        "url": f"https://{domain}/robots.txt",
        "status": status,
        "fetched": "2026-11-01",
        "text": text,
    }
    return json.dumps(row) + "\n"
