"""Loss logs in the formats of modded-nanogpt and parameter-golf, judged again; expected numbers are SciPy's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from stamm.base.errors import ConfigError, DataError
from stamm.compare.claim import check_claim
from tests.conftest import Stamm

# The source of the script stands before the numbers in such logs.
SOURCE = 'print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{t:.0f}ms")\n' + "=" * 100 + "\n"  # fmt: skip


def write(folder: Path, losses: list[float], *, bits: bool = False, seed: int = 0) -> Path:
    """A log for each last loss."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    for number, last in enumerate(losses):
        series = [10.8258, *(last + 2 / k + draw.normal(0, 0.01) for k in range(1, 8)), last]
        lines = [
            f"step:{125 * k}/1000 val_loss:{loss:.4f}"
            + (f" val_bpb:{loss / 2.7:.4f}" if bits else "")
            + f" train_time:{k * 9000}ms step_avg:72.00ms\n"
            for k, loss in enumerate(series)
        ]
        (folder / f"{number:02}.txt").write_text(
            SOURCE + "step:1/1000 train_time:1ms\n".join(lines)
        )
    return folder


BETTER = [3.2769, 3.2781, 3.2793, 3.2775, 3.2788, 3.2771]
WORSE = [3.2801, 3.2785, 3.2822, 3.2790, 3.2779]


def test_target_and_difference_are_those_of_scipy(tmp_path: Path) -> None:
    better, worse = write(tmp_path / "a", BETTER), write(tmp_path / "b", WORSE, seed=1)
    report = check_claim(better, against=worse, target=3.28, records=3)
    below = stats.ttest_1samp(BETTER, 3.28, alternative="less")
    assert report.p_target == pytest.approx(3 * below.pvalue)
    welch = stats.ttest_ind(BETTER, WORSE, equal_var=False)
    assert report.difference is not None and report.p_difference is not None
    assert report.difference.mean == pytest.approx(np.mean(BETTER) - np.mean(WORSE))
    # Degrees of freedom are rounded down, so p is a little larger.
    assert 3 * welch.pvalue <= report.p_difference <= 3.3 * welch.pvalue
    assert (report.runs, report.others, report.repeated) == (6, 5, ())
    assert not report.passed  # the difference is not shown
    assert check_claim(better, target=3.28).passed
    low, high = stats.t.interval(0.95, 5, np.mean(BETTER), stats.sem(BETTER))
    assert (report.mean.low, report.mean.high) == pytest.approx((low, high))


def test_a_copy_of_a_run_counts_once_and_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", BETTER)
    text = (folder / "02.txt").read_text()
    (folder / "longer.txt").write_text(text + "step:1125/1000 val_loss:3.2700\n")
    report = check_claim(folder, target=3.28)
    assert report.files == 7 and report.runs == 6
    assert report.repeated == ((str(folder / "02.txt"), str(folder / "longer.txt")),)
    assert report.p_target == pytest.approx(stats.ttest_1samp(BETTER, 3.28, alternative="less").pvalue)  # fmt: skip
    assert not report.passed


# Lines as the projects print them: parameter-golf of 2026-03 (8 H100, two seeds), llm.c of 2024-10.
GOLF = """seed:{seed}
step:13000/20000 train_loss:2.1581 train_time:589228ms step_avg:45.33ms
step:13235/20000 val_loss:2.0619 val_bpb:1.2212 train_time:599973ms step_avg:45.33ms
final_int8_zlib_roundtrip_exact val_loss:{loss} val_bpb:{bits}
"""
LLMC = "s:9535 trl:3.340180\ns:9536 tel:{loss}\n"


def test_a_stated_seed_and_other_spellings_are_read(tmp_path: Path) -> None:
    for seed, bits in ((42, 1.21632999), (7, 1.21691), (42, 1.21640)):
        path = tmp_path / f"{seed}-{bits}.log"
        path.write_text(GOLF.format(seed=seed, loss=2.05372224, bits=bits))
    report = check_claim(tmp_path)
    assert (report.files, report.runs, report.metric) == (3, 2, "val_bpb")
    # A repeated seed gives other bits on GPUs, and is not another draw.
    assert [(Path(a).name, Path(b).name) for a, b in report.repeated] == [("42-1.21632999.log", "42-1.2164.log")]  # fmt: skip
    for number, loss in enumerate((3.275959, 3.2722)):
        (tmp_path / f"{number}.txt").write_text(LLMC.format(loss=loss))
    both = check_claim(tmp_path / "0.txt", tmp_path / "1.txt")
    assert both.metric == "val_loss" and both.mean.mean == pytest.approx(3.2740795)


def test_short_logs_with_the_same_training_losses_are_one_run(tmp_path: Path) -> None:
    lines = "".join(f"step:{k}/9 train_loss:{3 - k / 10:.4f}\n" for k in range(9))
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(lines + "step:9/9 val_loss:3.2785\n")
    assert len(check_claim(tmp_path).repeated) == 1


def test_bits_a_byte_are_taken_where_every_log_has_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", BETTER, bits=True)
    with (folder / "00.txt").open("a") as log:
        log.write("final_int8_zlib_roundtrip val_loss:3.3000 val_bpb:1.2345 eval_time:1ms\n")
    report = check_claim(folder)
    assert report.metric == "val_bpb"
    assert report.mean.mean == pytest.approx(np.mean([1.2345, *(round(v / 2.7, 4) for v in BETTER[1:])]))  # fmt: skip
    assert check_claim(folder, metric="val_loss").mean.mean == pytest.approx(np.mean([3.3, *BETTER[1:]]))  # fmt: skip


def test_the_command_prints_and_exits_by_the_result(tmp_path: Path, stamm: Stamm) -> None:
    folder = write(tmp_path / "a", BETTER)
    done = stamm("check", "claim", str(folder), "target=3.28")
    assert done.returncode == 0 and "shown at 99 %" in done.stdout
    done = stamm("check", "claim", str(folder), "target=3.28", "records=500", "--json")
    assert done.returncode == 1
    printed = json.loads(done.stdout)
    assert printed["passed"] is False and printed["p_target"] == pytest.approx(
        500 * stats.ttest_1samp(BETTER, 3.28, alternative="less").pvalue
    )
    for words, told in (
        (("records=0",), "records = 0"),
        (("target=x",), "target = 'x' is not a number"),
        (("goal=3",), "goal is not read here"),
        (("--quick",), "--quick is not read here"),
    ):
        done = stamm("check", "claim", str(folder), *words)
        assert done.returncode == 2 and told in done.stderr


def test_bad_logs_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", BETTER[:1])
    one = check_claim(folder, target=3.28)
    assert one.p_target is None and not one.passed
    empty = tmp_path / "b.txt"
    empty.write_text("loss 3.2\n")
    with pytest.raises(DataError, match="has no val_loss:NUMBER"):
        check_claim(empty)
    with pytest.raises(DataError, match="does not end with val_bpb"):
        check_claim(folder, metric="val_bpb")
    with pytest.raises(DataError, match="can not be read"):
        check_claim(tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="a log is named twice"):
        check_claim(folder, folder)
    for target in (float("nan"), -1.0):
        with pytest.raises(ConfigError, match="target ="):
            check_claim(folder, target=target)
