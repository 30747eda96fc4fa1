"""Logs of other tools compared item by item. The logs in logs/ were written by lm-evaluation-harness 0.4.13 (its
dummy model, 20 questions of a task of its own) and Inspect (8 questions, twice each, a mock model)."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from scipy import stats

from stamm.base.errors import ConfigError, DataError
from stamm.evaluate.log_comparison import compare_samples
from stamm.evaluate.sample_logs import find_logs, read_items

LOGS = Path(__file__).parent / "logs"
FIRST, SECOND = LOGS / "first", LOGS / "second"


def harness_rows(folder: Path) -> list[dict[str, object]]:
    [path] = folder.glob("samples_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_differences_are_those_of_scipys_paired_test_with_holms_correction() -> None:
    found = {(d.task, d.metric): d for d in compare_samples(FIRST, SECOND).differences}
    assert set(found) == {
        ("sums", "includes"), ("sums", "match"), ("sums_choice", "acc"), ("sums_choice", "acc_norm"),
    }  # fmt: skip
    ours, theirs = harness_rows(FIRST), harness_rows(SECOND)
    chances = {}
    for metric in ("acc", "acc_norm"):
        a, b = (np.array([row[metric] for row in rows], float) for rows in (ours, theirs))
        test = stats.ttest_rel(b, a)
        low, high = test.confidence_interval(0.95)
        difference = found["sums_choice", metric]
        assert difference.items == difference.clusters == 20
        assert difference.difference == pytest.approx((b - a).mean())
        assert difference.half_width == pytest.approx((high - low) / 2)
        chances["sums_choice", metric] = test.pvalue
    for metric in ("includes", "match"):  # epochs of a sample are a cluster
        a = np.array([1, 0, 1, 0, 1, 0, 0, 1], float)
        b = np.array([1, 1, 1, 0, 1, 1, 1, 1], float)
        difference = found["sums", metric]
        assert (difference.items, difference.clusters) == (16, 8)
        assert (difference.first, difference.second) == (a.mean(), b.mean())
        test = stats.ttest_rel(b, a)
        chances["sums", metric] = test.pvalue
    ordered = sorted(chances, key=lambda key: chances[key])
    highest = 0.0
    for rank, key in enumerate(ordered):
        highest = max(highest, min(chances[key] * (4 - rank), 1.0))
        assert found[key].adjusted == pytest.approx(highest)


def test_a_field_names_the_clusters_and_widens_the_interval() -> None:
    [alone] = compare_samples(FIRST, SECOND, metric="acc").differences
    [clustered] = compare_samples(
        next(FIRST.glob("samples_*")), next(SECOND.glob("samples_*")), metric="acc", cluster="doc.passage"
    ).differences  # fmt: skip
    ours, theirs = harness_rows(FIRST), harness_rows(SECOND)
    means = [np.mean([b["acc"] - a["acc"] for a, b in zip(ours[k : k + 4], theirs[k : k + 4], strict=True)]) for k in range(0, 20, 4)]  # type: ignore[operator]  # fmt: skip
    assert clustered.clusters == 5 and alone.clusters == 20
    assert clustered.adjusted == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    assert clustered.half_width > alone.half_width


def test_details_of_lighteval_of_both_layouts(tmp_path: Path) -> None:
    for name, right in (("a", [1, 0, 0, 1, 0, 0]), ("b", [1, 1, 1, 1, 0, 1])):
        rows = [
            {"example": f"{k}+1=", "metrics": {"acc": float(v)}, "predictions": ["x"]}
            for k, v in enumerate(right)
        ]
        newer = [
            {"doc": {"query": f"{k}+1="}, "metric": {"acc": v}, "model_response": {"text": ["x"]}}
            for k, v in enumerate(right)
        ]
        (tmp_path / name / "deep").mkdir(parents=True)
        for path, table in (("details_old|sums|0_2026-11-27T10-00-00.1", rows), ("deep/details_new_2026-11-27T10-00-00", newer)):  # fmt: skip
            parquet.write_table(pa.Table.from_pylist(table), tmp_path / name / f"{path}.parquet")
    found = compare_samples(tmp_path / "a", tmp_path / "b")
    assert [d.task for d in found.differences] == ["new", "old|sums|0"]
    for difference in found.differences:
        assert difference.difference == pytest.approx(0.5)


def test_what_is_not_compared_is_said(tmp_path: Path) -> None:
    for folder, count in ((tmp_path / "a", 20), (tmp_path / "b", 17)):
        folder.mkdir()
        rows = harness_rows(FIRST)[:count]
        (folder / "samples_one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(FIRST / "inspect.eval", tmp_path / "b")
    found = compare_samples(tmp_path / "a", tmp_path / "b", metric="acc")
    assert found.notes == (
        f"sums: only {tmp_path / 'b'} has a log",
        "one: 3 items are in one log alone, and left out",
    )
    assert [d.items for d in found.differences] == [17]


def test_metrics_that_are_not_compared_are_named(tmp_path: Path) -> None:
    """Pairs of numbers, as of perplexity, and NaN are not dropped without a word."""
    logs = []
    for name in "ab":
        rows = harness_rows(FIRST)
        for row in rows:
            row |= {"metrics": ["acc", "word_perplexity"], "word_perplexity": [1.0, 2]}
        rows[4]["acc"] = float("nan")
        logs.append(tmp_path / name / "samples_p.jsonl")
        logs[-1].parent.mkdir()
        logs[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = compare_samples(*logs)
    assert [d.items for d in report.differences] == [19]
    assert report.notes == (
        "p: word_perplexity is not a number for each item, and left out",
        "p: 1 common items have no finite acc in both logs",
    )


def damaged(path: Path) -> Path:
    """The archive with a byte of its third sample changed."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = [i for i in archive.infolist() if i.filename.startswith("samples/")][2]
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0xFF
    path.write_bytes(data)
    return path


def test_bad_logs_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        compare_samples(tmp_path / "none", FIRST)
    with pytest.raises(DataError, match="no log of single items"):
        find_logs(tmp_path)
    with pytest.raises(ConfigError, match="no log has the metric 'f1'"):
        compare_samples(FIRST, SECOND, metric="f1")
    with pytest.raises(DataError, match=r"no field doc\.chapter"):
        compare_samples(next(FIRST.glob("samples_*")), next(SECOND.glob("samples_*")), cluster="doc.chapter")  # fmt: skip
    copy = tmp_path / "one" / "inspect.eval"
    copy.parent.mkdir()
    shutil.copy(FIRST / "inspect.eval", copy)
    with pytest.raises(DataError, match="is damaged"):
        list(read_items(damaged(copy)))
    for name in ("again", "x"):
        shutil.copy(next(FIRST.glob("samples_*")), tmp_path / "one" / f"{name}samples_twice.jsonl")
    with pytest.raises(DataError, match="two logs of twice"):
        find_logs(tmp_path / "one")
    rows = harness_rows(FIRST)
    rows[3]["doc_hash"] = "0" * 64
    changed = tmp_path / "samples_changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"1 items of .* are different questions"):
        compare_samples(next(FIRST.glob("samples_*")), changed)
    changed.write_text('{"metrics": ["acc"]}\n')
    with pytest.raises(DataError, match="line 1 is not an item of an evaluation: KeyError 'acc'"):
        compare_samples(changed, changed)
