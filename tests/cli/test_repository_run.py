"""A repository of source code through the real command line, with its address, licence and paths."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from stamm.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_repository_becomes_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tarfile.open("own.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "LICENSE", "own/LICENSE")
        archive.add(ROOT / "src" / "stamm" / "base", "own/base")
    line = (
        "run", "corpus.demo", "corpus.inputs=own.tar.gz",
        "corpus.repositories=own.*=https://example.org/own", "corpus.consent.unknown_host=allow",
        "corpus.licences=LicenceConfig", "corpus.canaries=none", "corpus.probes=none",
        "corpus.quality=none", "corpus.language=none", "tokenizer.vocab_size=400",
        "execution.workers=1", "--out", "run",
    )  # fmt: skip
    assert main(line) == 0
    capsys.readouterr()
    assert main(("show", "ledger", "run", "path=own/base/*.py", "limit=100", "--json")) == 0
    documents = json.loads(capsys.readouterr().out)["rows"]
    names = {path.name for path in (ROOT / "src" / "stamm" / "base").glob("*.py")}
    assert {Path(d["path"]).name for d in documents} == names
    for document in documents:
        assert document["url"] == f"https://example.org/own#{document['path']}"
        assert (document["licence"], document["licence_basis"]) == ("Apache-2.0", "file")
