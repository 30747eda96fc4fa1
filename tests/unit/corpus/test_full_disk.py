"""A disk that fills up is told in one line, wherever it happens, and leaves nothing half written.

A limit on the size of files stands for it: the system refuses the write in the same way.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from stamm.base.errors import RunError
from stamm.base.files import atomic
from stamm.corpus.config import PackConfig
from stamm.corpus.pack_job import pack
from stamm.corpus.query import opened
from stamm.corpus.tables import DOCUMENTS_SCHEMA, part, write_rows
from stamm.corpus.tokenize_job import tokenize
from stamm.corpus.tokenizer.config import TokenizeConfig, TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import FILE

TOLD = r"no space left to write .*: .* free there"
LARGE = "select sha256(i::varchar) as hash from range({count}) t(i)"


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_table_that_does_not_fit(tmp_path: Path) -> None:
    with opened(tmp_path, 1.0, 1) as query, files_end_at(100_000):  # noqa: SIM117
        with (
            pytest.raises(RunError, match=TOLD) as told,
            atomic(tmp_path / "a.parquet") as path,
        ):
            query.write(LARGE.format(count=20_000), path)
    assert "a.parquet" in told.value.what and "\n" not in str(told.value)
    assert left(tmp_path) == []


def test_sorting_that_does_not_fit(tmp_path: Path) -> None:
    with (
        opened(tmp_path, 0.0625, 1) as query,
        files_end_at(100_000),
        pytest.raises(RunError, match=TOLD) as told,
    ):
        query.run("create table big as " + LARGE.format(count=2_000_000))
    assert str(tmp_path) in told.value.what
    assert left(tmp_path) == []


def test_answers_that_do_not_fit_while_they_are_read(tmp_path: Path) -> None:
    sql = LARGE.format(count=2_000_000) + " order by hash"
    for read in ("stream", "batches"):
        with (
            opened(tmp_path, 0.0625, 1) as query,
            files_end_at(100_000),
            pytest.raises(RunError, match=TOLD),
        ):
            for _ in getattr(query, read)(sql):
                pass
        assert left(tmp_path) == []


@pytest.mark.parametrize(("step", "size"), [("tokenize", 2_000), ("pack", 2_000), ("pack", 40_000)])
def test_tokens_that_do_not_fit(tmp_path: Path, step: str, size: int) -> None:
    texts = [f"Document {n} says {'river stone lantern ' * (n % 40)}" for n in range(600)]
    plain = {"url": "", "source": "", "licence": "", "language": "", "probe_id": None, "repeat": 1}
    folders = {name: tmp_path / name for name in ("corpus", "tokenizer", "tokens", "pack")}
    for folder in folders.values():
        folder.mkdir()
    write_rows(
        folders["corpus"] / part("documents", "00000"),
        DOCUMENTS_SCHEMA,
        (
            plain | {"document_id": f"{n:032x}", "text": text, "split": "train"}
            for n, text in enumerate(texts)
        ),
    )
    described = train_tokenizer_on(TokenizerConfig(vocab_size=345), texts)
    (folders["tokenizer"] / FILE).write_text(described, encoding="utf-8")

    def run(name: str) -> None:
        place = Workspace(
            folder=folders["tokens" if name == "tokenize" else "pack"],
            inputs=folders,
            execution=LocalExecutor(workers=1),
        )
        if name == "tokenize":
            tokenize(TokenizeConfig(), place)
        else:
            pack(PackConfig(), place)

    if step == "pack":
        run("tokenize")
    with files_end_at(size), pytest.raises(RunError, match=TOLD) as told:
        run(step)
    assert "\n" not in str(told.value)
    written = left(folders["tokens" if step == "tokenize" else "pack"])
    assert not [name for name in written if ".part" in name or name.endswith((".idx", ".bin"))]
    assert "manifest.json" not in written
    run(step)  # with room, the same command ends well
