"""Own text through the command line: `stamm fields`, what `train.own` says before it starts, and a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.cli.main import main
from tests.unit.recipes.test_own_text import texts

CHAT = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
PAIR = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "score_chosen": 1.0, "score_rejected": 0.5}  # fmt: skip
KTO = {"prompt": "2 + 2?", "completion": "4", "label": True}
WEB = {"id": 7, "body": "A page about a bridge.", "meta": {"link": "https://example.org/a"}}


def written(file: Path, rows: list[dict[str, object]], kind: str) -> Path:
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif kind == "json":
        file.write_text(json.dumps(rows, indent=1))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("row", "readers"),
    [(CHAT, {"chat"}), (PAIR, {"preference"}), (KTO, {"rated"}), ({"text": "A page."}, {"corpus"})],
)
def test_fields_names_the_reader_of_a_row(
    row: dict[str, object],
    readers: set[str],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = written(tmp_path / f"rows.{kind}", [row] * 3, kind)
    assert main(("fields", str(file), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 3
    assert {one["field"] for one in found["fields"]} == set(row)
    assert {one["reader"] for one in found["readers"] if one["rows"] == 3} == readers
    assert all(one["problem"] for one in found["readers"] if not one["rows"])


def test_fields_names_the_settings_that_read_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "web.jsonl", [WEB], "jsonl")
    assert main(("fields", str(file))) == 1
    told = capsys.readouterr().out
    assert "Set corpus.fields.text=body corpus.fields.url=meta.link" in told
    assert max(map(len, told.splitlines()[1:])) <= 80
    assert main(("fields", str(file), "text=body", "url=meta.link", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    read = {one["field"]: one["read as"] for one in found["fields"]}
    assert read == {"id": "", "body": "text", "meta.link": "url"}


@pytest.mark.parametrize(
    ("rows", "fix"),
    [
        ([{"sha": "a" * 64, "body": "Hi."}, {"sha": "b" * 64, "body": "word " * 50}], "text=body"),
        ([{"words": "a", "Url": "https://a.example/a-long-address"}], "text=words"),
        (
            [{"words": "a", "at": "https://a.example/a-long-address"}],
            "text=words corpus.fields.url=at",
        ),
        ([{"picture": b"0" * 99, "words": "a"}], "text=words"),
    ],
)
def test_fields_proposes_the_field_with_the_most_text(
    rows: list[dict[str, object]], fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "rows.parquet", rows, "parquet")
    assert main(("fields", str(file), "--json")) == 1
    corpus = json.loads(capsys.readouterr().out)["readers"][0]
    assert corpus["fix"] == f"Set corpus.fields.{fix}"


def test_fields_reports_lines_that_are_not_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"\n{"text": "c"}\n')
    assert main(("fields", str(tmp_path / "rows.jsonl"))) == 0
    assert "1 line is not read: line 2: invalid_json: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "text", "is not of a format whose fields are read"),
        ("a.jsonl", "not JSON\n", "has no row that can be read (line 1: invalid_json: "),
        ("a.parquet", "PAR1", "cannot be read"),
    ],
)
def test_a_file_without_fields_ends_in_one_line(
    name: str, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert main(("fields", str(tmp_path / name))) != 0
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_the_plan_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("word " * 40_000)
    assert main(("run", "train.own", "inputs=mine.txt", "--dry-run")) == 0
    told = re.sub(r"\n {10}", " ", capsys.readouterr().out)  # lines of 80 columns
    assert "text      1 file, about 195 KiB of text" in told
    assert re.search(r"model     [\d.]+k parameters, vocabulary 512, \d layers of width", told)
    assert re.search(r"training  about [\d.]+k tokens, read 4 times: [\d,]+ steps of", told)
    assert re.search(
        r"time      about .*: corpus .* s, training .*expected on an idle machine", told
    )
    assert "MiB of tensors" in told
    assert "canaries" not in told
    assert not Path("runs").exists()


def test_a_file_whose_text_has_another_name_ends_with_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("web.jsonl"), [WEB] * 3, "jsonl")
    assert main(("run", "train.own", "inputs=web.jsonl", "execution.workers=1")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no document was kept of 3: no_text 3" in error
    assert "web.jsonl: no text; fields of the file: id, body, meta.link" in error
    assert error.endswith("`stamm fields web.jsonl` shows what is read.")


def test_a_text_without_a_held_out_part_stops_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("\n\n".join(texts()[:8]))
    assert main(("run", "train.own", "inputs=mine.txt", "execution.workers=1")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the packed corpus holds no held-out document. Add documents" in error
    assert not Path("runs/train.own/arms/xielu/metrics.jsonl").exists()


def test_a_plan_without_inputs_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("plan", "train.own")) == 2
    assert "Set inputs=FILES_OR_FOLDER" in capsys.readouterr().err


@pytest.mark.slow
def test_own_text_becomes_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, web = texts()[:24], texts()[24:]
    Path("mine").mkdir()
    for number, page in enumerate(own):
        Path("mine", f"{number:02d}.md").write_text(page)
    rows: list[dict[str, object]] = [{"text": t, "url": "https://unknown.example/"} for t in web]
    written(Path("mine/web.jsonl"), rows, "jsonl")
    line = (
        "run", "train.own", "inputs=mine", "size=50k", "pretrain.engine.compile=off",
        "pretrain.epochs=1", "pretrain.engine.threads=1", "execution.workers=1", "export.samples=0",
        "corpus.held_out=0.2",
    )  # fmt: skip
    assert main(line) == 0
    told = " ".join(capsys.readouterr().out.split())
    root = Path("runs/train.own")
    summary = json.loads((root / "corpus/summary.json").read_text())
    pack = json.loads((root / "pack/manifest.json").read_text())["splits"]
    assert summary["dropped_by_reason"]["unknown_host"]["documents"] == len(web)
    assert f"{len(web)} documents of hosts whose robots.txt is not known were left out" in told
    kept = summary["n_kept"]
    assert f"{kept} documents without an address stayed, as your own text." in told
    assert kept == pack["train"]["documents"] + pack["held_out"]["documents"]
    assert f"train: {pack['train']['tokens']:,} tokens in {pack['train']['documents']}" in told
    trained = re.search(r"It was trained on ([\d,]+) tokens, (\d\.\d\d) times the ([\d,]+)", told)
    assert trained and trained[3] == f"{pack['train']['tokens']:,}"
    assert re.search(r"xielu reaches \d\.\d+ nats per token on held-out text", told)
    assert pack["train"]["planted_tokens"] == 0 and "planted" not in told
    assert "Export: runs/train.own/arms/xielu/export/transformers" in told
    assert (root / "arms/xielu/export/transformers/model.safetensors").is_file()
    assert (root / "report.html").is_file()
