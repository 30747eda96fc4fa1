"""What a replay does not do: bring back, decide anew, move; and that it says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_corpus import Finished, left, rows, snapshot, withdrawn

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import read_json, write_json
from stamm.corpus.config import (
    CanariesConfig,
    PackConfig,
    ProbesConfig,
    ReplayConfig,
    SourceShare,
    Stage,
)
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tables import DOCUMENTS_SCHEMA, read_parts, read_rows, write_rows
from stamm.recipes.replay import ReplayRecipe
from stamm.runs.run import Run

pytestmark = pytest.mark.slow  # builds corpora

Row = dict[str, Any]
REFUSES = "User-agent: *\nDisallow: /\n"


class Ears(NoProgress):
    """A Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def log(self, text: str) -> None:
        self.heard.append(text)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "corpus" / "summary.json")
    return found


def stream(folder: Path, split: str = "train") -> tuple[list[int], list[Row]]:
    packed = PackedSplit.open(folder / "pack", split)
    return packed.read(0, packed.num_tokens).tolist(), packed.documents().to_pylist()


def like_texts() -> list[Row]:
    """Pages of several hosts; three of them nearly the same, the oldest at old.example."""
    words = [f"word{n * 7919 % 1009}" for n in range(300)]
    alike = [
        {
            "text": " ".join([*words, ending]),
            "url": f"https://{host}.example/text",
            "date": f"20{year}-01-01",
            "language": "eng_Latn",
        }
        for host, year, ending in (("old", 18, "a"), ("middle", 19, "b"), ("young", 20, "c"))
    ]
    return [*rows(), *alike]


def test_a_near_duplicate_of_what_is_withdrawn_does_not_come_back_and_is_counted(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    finished = Finished(tmp_path, write_jsonl, like_texts())
    assert {url for url in left(finished.run) if "/text" in url} == {"https://old.example/text"}
    folder = finished.replay(robots=snapshot("old.example", REFUSES))
    assert not [url for url in left(folder) if "/text" in url]
    assert summary(folder)["duplicates_not_brought_back"] == {"near_duplicate": 2}
    # A corpus in which it never was holds the next one: that takes a new build.
    fresh = tmp_path / "fresh"
    finished.build(fresh, [row for row in like_texts() if "old.example" not in row["url"]])
    assert left(fresh) - left(folder) == {"https://middle.example/text"}
    assert left(folder) < left(fresh)
    # Without the whole cluster the two are the same to the bit.
    without = tmp_path / "without"
    finished.build(without, [row for row in like_texts() if "/text" not in row["url"]])
    assert stream(folder) == stream(without)


def test_a_request_takes_the_nearly_same_text_with_it(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    finished = Finished(tmp_path, write_jsonl, like_texts())
    folder = finished.replay(deletions="https://young.example/text\n")
    gone = withdrawn(folder)
    assert gone.keys() == {"https://old.example/text"}
    assert gone["https://old.example/text"]["rule"] == (
        "deletions.txt, line 1, of which this is nearly the same text"
    )
    assert summary(folder)["duplicates_not_brought_back"] == {}
    (asked,) = read_rows(folder / "corpus" / "requests.parquet")
    assert (asked["withdrawn"], asked["out_before"]) == (1, 1)


def test_what_was_held_out_stays_held_out(tmp_path: Path, write_jsonl: Callable[..., str]) -> None:
    finished = Finished(tmp_path, write_jsonl, held_out=0.3)
    folder = finished.replay(domains="site4.example\nsite1.example\n")
    splits = [
        {row["document_id"]: row["split"] for row in read_parts(root / "corpus", "documents")}
        for root in (finished.run, folder)
    ]
    assert splits[1].items() < splits[0].items()
    for split in ("train", "held_out"):
        before, after = (
            [row["document_id"] for row in stream(root, split)[1]]
            for root in (finished.run, folder)
        )
        assert after == [name for name in before if name in splits[1]]


def test_stages_are_those_of_the_corpus_and_read_what_is_left(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    documents = [{**row, "source": row["url"].split("/")[2]} for row in rows()]
    wide = SourceShare(source="*", epochs=1.5)
    order = PackConfig(
        stages=(
            Stage(name="first", sources=(SourceShare(source="site0*", epochs=1.0), wide)),
            Stage(name="second", sources=(SourceShare(source="site0*", epochs=0.5), wide)),
        )
    )
    finished = Finished(tmp_path, write_jsonl, documents, order)
    folder = finished.replay(domains="site4.example\n")
    fresh = tmp_path / "fresh"
    finished.build(fresh, [row for row in documents if "site4" not in row["url"]])
    assert stream(folder) == stream(fresh)
    with pytest.raises(DataError, match=r"stage first: no document of source 'site0\*'"):
        finished.replay(name="none", domains="site0.example\n")


def books(write: Callable[..., str]) -> str:
    def text(book: int) -> str:
        return " ".join(
            f"In book {book} line {n} tells of {n * 7919 % 1000} apples." for n in range(900)
        )

    return write(
        *({"text": text(n), "url": f"https://books.example/{n}"} for n in range(3)),
        name="books.jsonl",
    )


def test_what_is_withdrawn_of_what_was_planted_leaves_the_list_of_probes(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    planted = ProbesConfig(books=books(write_jsonl), passages_per_bucket=3, repeats=(0, 2))
    canaries = CanariesConfig(per_bucket=1, repeats=(0, 4), kinds=("secret", "prefixed_words"))
    finished = Finished(tmp_path, write_jsonl, probes=planted, canaries=canaries)
    before = read_json(finished.run / "corpus" / "probes.json")
    ledger = [row for row in read_parts(finished.run / "corpus", "ledger") if row["probe_id"]]
    copies = [r["document_id"] for r in ledger if r["probe_id"] == "prefixed_words-r4-0000"]
    assert len(copies) == 4
    # A book, and the last of the copies of a canary: probes.json itself names only the first.
    folder = finished.replay(deletions=f"https://books.example/1\n{copies[-1]}\n")
    after = read_json(folder / "corpus" / "probes.json")
    ours = [row["probe_id"] for row in before["probes"] if row["url"] == "https://books.example/1"]
    assert ours
    assert after["withdrawn"] == [*ours, "prefixed_words-r4-0000"]
    for kind in ("probes", "canaries"):
        gone = set(after["withdrawn"])
        assert after[kind] == [row for row in before[kind] if row["probe_id"] not in gone]
    told = summary(folder)
    assert told["withdrawn_probes"] == len(after["withdrawn"])
    assert told["withdrawn_by_reason"] == {}
    assert {entry["withdrawn"] for entry in told["withdrawn_by_language"].values()} == {0}
    texts = (folder / "corpus" / "probes.json").read_text()
    for row in before["probes"]:
        assert (row["text"] in texts) == (row["probe_id"] not in after["withdrawn"])
    # What an earlier replay withdrew is still told by a later one.
    secret = f"{read_json(folder / 'corpus' / 'probes.json')['canaries'][1]['document_id']}\n"
    later = finished.replay(run=folder, name="later", deletions=secret)
    assert read_json(later / "corpus" / "probes.json")["withdrawn"] == [
        *after["withdrawn"], "secret-r4-0000",
    ]  # fmt: skip


def test_newer_robots_do_not_reach_what_was_planted(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    planted = ProbesConfig(books=books(write_jsonl), passages_per_bucket=1, repeats=(0, 2))
    finished = Finished(tmp_path, write_jsonl, probes=planted)
    folder = finished.replay(robots=snapshot("books.example", REFUSES))
    probes = [read_json(root / "corpus" / "probes.json") for root in (finished.run, folder)]
    assert probes[1] == {**probes[0], "withdrawn": []}
    assert withdrawn(folder) == {}


def test_requests_that_match_nothing_are_told_by_line_and_hash(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    finished = Finished(tmp_path, write_jsonl)
    stranger = "https://nobody.example/jane-doe"
    (out,) = {"https://site2.example/page/7", "https://mirror.example/7"} - left(finished.run)
    key = hashlib.sha256(stranger.encode()).hexdigest()
    lines = ["HTTPS://SITE1.example:443/page/1#top", stranger, out, "f" * 32, ""]
    ears = Ears()
    folder = finished.replay(progress=ears, deletions="\n".join(lines))
    assert "https://site1.example/page/1" in withdrawn(folder)
    assert summary(folder)["deletion_requests"] == {
        "asked": 4,
        "withdrew": 2,
        "out_before": 0,
        "unmatched": 2,
        "first_unmatched": [
            {"list": "deletions.txt", "line": 2, "key": key},
            {"list": "deletions.txt", "line": 4, "key": "f" * 32},
        ],
    }
    (said,) = [text for text in ears.heard if "requests" in text]
    assert said.startswith(
        "2 of 4 deletion requests match no input record: deletions.txt line 2, deletions.txt line 4"
    )
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        assert b"jane-doe" not in path.read_bytes()
    # Asked for again, a page that is out already is not called unknown.
    again = finished.replay(run=folder, name="later", deletions=lines[0])
    told = summary(again)["deletion_requests"]
    assert (told["withdrew"], told["out_before"], told["unmatched"]) == (0, 1, 0)


@pytest.mark.parametrize("strangers", ["others", "one more", "one less"])
def test_documents_that_the_ledger_does_not_tell_of_are_refused(
    tmp_path: Path, write_jsonl: Callable[..., str], strangers: str
) -> None:
    finished = Finished(tmp_path, write_jsonl)
    own, other = (
        list(read_rows(finished.run / "corpus" / f"documents-0000{shard}.parquet"))
        for shard in range(2)
    )
    put = {"others": other, "one more": [*own, other[0]], "one less": own[:-1]}[strangers]
    write_rows(finished.run / "corpus" / "documents-00000.parquet", DOCUMENTS_SCHEMA, put)
    with pytest.raises(RunError, match="shard 00000 do not belong together"):
        finished.replay(domains="nobody.example")


def test_only_a_finished_corpus_that_nobody_works_in_is_replayed(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    finished = Finished(tmp_path, write_jsonl)
    (tmp_path / "domains.txt").write_text("site1.example\n")
    recipe = ReplayRecipe(
        run=str(finished.run), replay=ReplayConfig(domains=(str(tmp_path / "domains.txt"),))
    )
    manifest = finished.run / "manifest.json"

    def state(said: str) -> None:
        write_json(manifest, {"state": said, "sessions": [], "libraries": {}})

    def refused(why: str) -> None:
        with pytest.raises(ConfigError, match=f"holds no finished corpus: {why}"):
            recipe.steps(tmp_path / "again")

    refused(r"manifest\.json is missing")
    state("running")
    refused("its run is not complete")
    state("complete")
    with Run(finished.run, "", (), None).locked():
        refused("another process uses it")
    before = sorted(path.name for path in finished.run.iterdir())
    steps = recipe.steps(tmp_path / "again")
    assert [step.name for step in steps][:4] == ["replay", "tokenizer", "reuse_tokens", "pack"]
    assert sorted(path.name for path in finished.run.iterdir()) == before
    (finished.run / "pack" / "manifest.json").unlink()
    refused(r"pack/manifest\.json is missing")


def test_what_is_left_may_be_packed_by_another_rule(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    finished = Finished(tmp_path, write_jsonl)
    write_json(
        finished.run / "manifest.json", {"state": "complete", "sessions": [], "libraries": {}}
    )
    (tmp_path / "domains.txt").write_text("site1.example\n")
    words = ReplayConfig(domains=(str(tmp_path / "domains.txt"),))
    for given in (None, PackConfig(seed=7)):
        recipe = ReplayRecipe(run=str(finished.run), replay=words, pack=given)
        (pack,) = [step for step in recipe.steps(tmp_path / "again") if step.name == "pack"]
        assert pack.config == (given or finished.order)
