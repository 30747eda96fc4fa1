"""A release: the same bytes from the same run, nothing half written, nothing of others replaced."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import write_json
from stamm.base.receipts import files_below
from stamm.cli.main import main
from stamm.corpus.transparency.config import SourceKind
from stamm.evaluate.records import MetricValue, TaskFile
from stamm.release import verb as release_verb
from stamm.release import write_release as writing
from stamm.release.card import evaluation, release_card
from stamm.release.checksums import SUMS, write_sums
from stamm.release.config import ReleaseConfig
from stamm.release.evaluations import eval_results, model_index
from stamm.release.facts import read_release_facts
from stamm.release.verify import verify
from stamm.release.write_release import planned_files, write_release
from stamm.runs.command_receipts import write_command_receipt
from tests.unit.release.conftest import facts_of, no_job

CONFIG = ReleaseConfig()


@pytest.fixture
def own(arm: Path, tmp_path: Path) -> Path:
    """A copy of the arm in a run of its own."""
    shutil.copytree(arm.parents[1], tmp_path / "run")
    return tmp_path / "run" / "arms" / "xielu"


@pytest.mark.usefixtures("light")
def test_the_same_run_gives_the_same_bytes_in_any_folder(released: Path, own: Path) -> None:
    again = released.parent / "elsewhere" / "again"
    for _ in range(2):
        write_release(CONFIG, facts_of(own), again, no_job)
        assert (again / SUMS).read_bytes() == (released / SUMS).read_bytes()
    noted = json.loads((own / "released.json").read_text())
    assert noted["files"].keys() | {SUMS} == {
        path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()
    }


@pytest.mark.usefixtures("light")
def test_an_audit_is_released_without_texts(own: Path, tmp_path: Path) -> None:
    audit = own / "audit"
    audit.mkdir()
    numbers = {
        "membership.json", "membership_scores.jsonl", "grid.json", "grid_points.jsonl",
    }  # fmt: skip
    for name in (*numbers, "continuations.jsonl", "canaries.jsonl"):
        text = '{"prefix": "a secret"}' if name.startswith("c") else '{"nats": 1.0}'
        (audit / name).write_text(text + "\n")
    out = tmp_path / "audited"
    write_release(CONFIG, facts_of(own), out, no_job)
    assert {path.name for path in (out / "run/arms/xielu/audit").iterdir()} == numbers
    texts = (path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not any(b"a secret" in text for text in texts)


@pytest.mark.usefixtures("light")
def test_a_dry_run_lists_the_files_of_the_release(released: Path, arm: Path) -> None:
    sizes = planned_files(CONFIG, facts_of(arm), no_job)
    assert sizes == {
        name: path.stat().st_size
        for path in released.rglob("*")
        if path.is_file() and (name := path.relative_to(released).as_posix()) != SUMS
    }


@pytest.mark.usefixtures("light")
def test_a_release_of_other_weights_is_not_replaced(released: Path, own: Path) -> None:
    facts = facts_of(own)
    record = json.loads((released / "release.json").read_text())
    write_json(released / "release.json", {**record, "model_sha256": "0" * 64})
    write_sums(released)
    before = (released / SUMS).read_bytes()
    with pytest.raises(RunError, match="is the release of other weights"):
        write_release(CONFIG, facts, released, no_job)
    assert (released / SUMS).read_bytes() == before


@pytest.mark.usefixtures("light")
def test_files_of_others_are_not_removed(released: Path, own: Path) -> None:
    (released / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt"):
        write_release(CONFIG, facts_of(own), released, no_job)
    with pytest.raises(RunError, match="is not a release"):
        write_release(CONFIG, facts_of(own), own, no_job)


def test_folder_and_key_are_checked_before_missing_exports_are_made(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release_verb, "job", no_job)  # fails when an export is begun
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("mine")
    (tmp_path / "key.pem").write_text("not a key")
    words = ["release", str(own), "formats=transformers,gguf", "--out"]
    assert main([*words, str(tmp_path / "others")]) == 1
    assert "others is not empty and is not a release" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "new"), "--sign", str(tmp_path / "key.pem")]) == 1
    assert "key.pem cannot sign" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("light")
def test_a_full_disk_is_one_line_and_leaves_nothing(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.shutil, "copyfile", full)
    with pytest.raises(RunError, match="no space left to write"):
        write_release(CONFIG, facts_of(own), tmp_path / "out" / "model", no_job)
    assert not list((tmp_path / "out").iterdir())


def test_half_an_export_and_other_weights_are_refused(own: Path) -> None:
    parity = own / "export" / "transformers" / "parity.json"
    content = json.loads(parity.read_text())
    exported = parity.parent / "model.safetensors"
    whole = exported.stat().st_size
    write_json(parity, {**content, "files": {"model.safetensors": whole}})
    assert facts_of(own)
    exported.write_bytes(exported.read_bytes()[: whole // 2])
    with pytest.raises(RunError, match=rf"safetensors is missing or is not the file of {whole}"):
        facts_of(own)
    exported.unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        facts_of(own)
    write_json(parity, {**content, "model_sha256": "0" * 64})
    with pytest.raises(RunError, match="was made from other weights"):
        facts_of(own)
    parity.unlink()
    with pytest.raises(RunError, match="has no export"):
        facts_of(own)
    weights = own / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DataError, match="weights were changed"):
        facts_of(own)


def test_a_run_without_a_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "config.json", {"schema": 1})
    assert main(["release", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "holds no trained model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_hub_reads_the_front_matter(arm: Path) -> None:
    source = SourceKind(source="x", kind="public", link="https://huggingface.co/datasets/a/b")
    content = release_card(facts_of(arm, sources=(source,)), 3)
    front = yaml.safe_load(content.split("---\n")[1])
    assert front["license"] == "apache-2.0"
    assert front["language"] == ["de", "en"]
    assert front["datasets"] == ["a/b"]
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-generation")
    name, results = model_index_to_eval_results(front["model-index"])
    assert name == "mine-xielu"
    assert {(one.dataset_name, one.metric_value) for one in results} == {
        ("blimp: 7 of 67,000 items of nyu-mll/blimp", 0.5),
        ("mine", 0.5),
    }
    assert ModelCard(content).data.license == "apache-2.0"


def test_a_result_on_a_part_of_a_dataset_is_not_published_as_the_datasets(released: Path) -> None:
    assert not (released / ".eval_results").exists()
    card = (released / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert "nyu-mll/blimp" not in {
        result["dataset"]["type"] for result in front["model-index"][0]["results"]
    }
    assert "| blimp: 7 of 67,000 items of nyu-mll/blimp |" in card


def test_what_qualifies_a_score_is_on_the_card() -> None:
    result = TaskFile(
        task="mine", num_items=20, metric="accuracy",
        metrics={"accuracy": MetricValue(value=0.53, chance=0.5), "other": MetricValue(value=1.0)},
        blind={"unigram": MetricValue(value=0.55)}, strongest_blind="unigram",
        truncated=19, rejected={"no label": 3, "empty": 1}, contaminated=2, limit=20, shots=5,
        chat=True, warning="*all* answers are yes",
    )  # fmt: skip
    text = "\n\n".join(
        evaluation({"mine": result, "calm": TaskFile(metrics={"f": MetricValue(value=1.0)})})
    )
    assert "| mine | accuracy | 0.53 |  | 0.5 | 0.55 (unigram) | 20 |" in text
    assert "| mine | other | 1 |  |  |  | 20 |" in text
    assert (
        "- mine: the context of 19 of 20 items was cut; 4 rows were not asked; 2 items are in the "
        "training text; 20 items, chosen by hash; 5 examples before each question; asked in the chat "
        "format; \\*all\\* answers are yes"
    ) in text
    assert "- calm" not in text


def test_results_on_whole_datasets_are_read_by_the_hub() -> None:
    score = MetricValue(value=0.5)
    whole = TaskFile(task="blimp_full", num_items=67_000, metrics={"accuracy": score})
    written = eval_results({"blimp_full": whole})["blimp_full"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(json.dumps(written)))
    assert (entry.dataset_id, entry.value) == ("nyu-mll/blimp", 0.5)
    ((result,),) = (index["results"] for index in model_index("m", {"blimp_full": whole}))
    assert result["dataset"]["type"] == "nyu-mll/blimp"


def test_text_of_results_and_documents_is_escaped(released: Path) -> None:
    card = (released / "README.md").read_text()
    _, _, body = card.partition("\n---\n")
    assert "<script" not in body
    assert "\nlicense: mit" not in card


def test_what_is_not_known_stays_open(released: Path) -> None:
    form = json.loads((released / "documents" / "model_documentation.json").read_text())
    items = {item["number"]: item for item in form["items"]}
    for number in ("1.1", "1.4", "4.1", "4.2", "6.2", "8.1"):
        assert items[number]["answer"] is None
    assert items["7.2"] == {
        "number": "7.2", "asks": "Amount of computation", "answer": "1 GFLOP", "origin": "run",
    }  # fmt: skip
    assert form["open"] == sum(item["answer"] is None for item in form["items"])


def test_the_provider_answers_open_items_alone(arm: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    write_json(answers, {"4.1": "https://example.org/use"})
    items = writing.documented_items(facts_of(arm), writing.read_answers(str(answers)))
    (item,) = (item for item in items if item.number == "4.1")
    assert (item.answer, item.origin) == ("https://example.org/use", "provider")
    for wrong in ({"7.2": "more"}, {"9.9": "what"}):
        with pytest.raises(ConfigError, match=r"7\.2|9\.9"):
            writing.documented_items(facts_of(arm), wrong)


def test_formats_that_were_not_exported_are_named(arm: Path) -> None:
    evidence = facts_of(arm).evidence
    with pytest.raises(RunError, match="has no export to gguf"):
        read_release_facts(ReleaseConfig(formats=("gguf",)), arm, evidence)


@pytest.mark.slow
@pytest.mark.usefixtures("light")
def test_formats_of_other_engines_are_released_verified_and_the_same_bytes(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gguf", "gguf_bf16", "onnx"]
    small = {
        "parity_rows": 1,
        "parity_tokens": 20,
        "samples": 1,
        "prompt_tokens": 4,
        "sample_tokens": 4,
    }
    request = {"schema": 1, "recipe": "mine.py", "config": {"export": {**small, "threads": 1}}}
    write_json(own.parents[1] / "config.json", request)
    formats = f"formats=transformers,{','.join(names)}"
    assert main(["release", str(own), formats, "--out", str(tmp_path / "x"), "--dry-run"]) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == names
    for number in "12":
        out = tmp_path / number
        for name in ("transformers", *names):
            shutil.rmtree(own / "export" / name, ignore_errors=True)
        assert main(["release", str(own), formats, "--out", str(out)]) == 0
        assert main(["verify", str(out), "--all"]) == 0
    sums = [(tmp_path / number / SUMS).read_text() for number in "12"]
    assert sums[0] == sums[1]
    for file in ("gguf/model-F32.gguf", "gguf_bf16/model-BF16.gguf", "onnx/model.onnx"):
        assert f"export/{file}\n" in sums[0]
    card = (tmp_path / "1" / "README.md").read_text()
    rows = [line for line in card.splitlines() if line.startswith("| gguf |")]
    assert re.search(r"14 F32, float32 \| \d\.\de-07 \| [+-]0\.000% \| 0 of \d+ \|$", rows[0])
    path = tmp_path / "1" / "export" / "gguf" / "model-F32.gguf"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "1")]) == 1
    assert "export/gguf/model-F32.gguf" in capsys.readouterr().out


@pytest.mark.usefixtures("light")
def test_a_run_that_cannot_be_written_to_is_released_all_the_same(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writing.write_json

    def read_only(path: Path, value: object) -> None:
        if path == own / "released.json":
            raise OSError(errno.EROFS, "Read-only file system")
        written(path, value)

    monkeypatch.setattr(writing, "write_json", read_only)
    said: list[str] = []
    write_release(CONFIG, facts_of(own), tmp_path / "out", no_job, log=said.append)
    assert not list(verify(tmp_path / "out"))
    assert "could not be written to" in said[-1] and "Read-only" in said[-1]


@pytest.mark.usefixtures("light")
def test_an_altered_file_is_not_released_and_one_without_a_receipt_is_named(
    own: Path, tmp_path: Path
) -> None:
    root, said = own.parents[1], list[str]()
    write_command_receipt(root, "made", files_below(root))
    (own / "export" / "transformers" / "LICENSE").write_text("mine")
    write_release(CONFIG, facts_of(own), tmp_path / "out", no_job, log=said.append)
    assert json.loads((tmp_path / "out" / "release.json").read_text())["without_receipt"] == [
        "LICENSE"
    ]
    assert "1 files" in said[0] and "LICENSE" in said[0]
    exported = own / "export" / "transformers" / "generation_config.json"
    exported.write_bytes(exported.read_bytes() + b" ")
    with pytest.raises(DataError, match=r"generation_config\.json differs"):
        write_release(CONFIG, facts_of(own), tmp_path / "other", no_job)
    assert not (tmp_path / "other").exists()
