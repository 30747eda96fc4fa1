"""What a comparison's page and its sentences say, from run folders written here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stamm.base.errors import DataError, RunError
from stamm.compare.figures import comparison_figures
from stamm.compare.job import judgement_in, run
from stamm.compare.noise import noise_table
from stamm.compare.results import is_comparison, read_comparison
from stamm.compare.verdict import judge_comparison
from stamm.pages.config import ReportConfig
from stamm.runs.job import Workspace
from tests.unit.reports.run_folder import arm_config, cost, manifest, metrics, write, write_lines

SEEDS = (1, 2, 3)
# Bits per byte by seed. xielu is 0.10 below swiglu, give or take 0.001; relu2 goes either way.
LOSSES: Mapping[str, tuple[float, ...]] = {
    "swiglu": (2.30, 2.35, 2.25),
    "relu2": (2.28, 2.37, 2.26),
    "xielu": (2.201, 2.249, 2.15),
}
FILES = ("swiglu", "GatedFFN", 256), ("relu2", "PlainFFN", 384), ("xielu", "PlainFFN", 384)


def held_out(bits: float) -> dict[str, object]:
    overall: dict[str, object] = {**cost(60, bits * 2), "bits_per_byte": bits}
    return {
        "schema": 1, "context": 256, "overlap": 128, "rule": "", "overall": overall, "languages": {},
    }  # fmt: skip


def write_comparison(root: Path, losses: Mapping[str, tuple[float, ...]] = LOSSES) -> Path:
    arms = [{"name": n, "ffn": {"kind": k, "width": w, "activation": n}} for n, k, w in FILES]
    config = {
        "arms": arms,
        "baseline": "swiglu",
        "seeds": list(SEEDS),
        "confidence": 0.95,
        "matched": {"kind": "EqualParameters", "tolerance": 0.001},
        "tuning": {"rates": [1e-3, 2e-3], "refinements": 0, "length": 0.25, "seed": 0},
    }
    write(root / "config.json", {"schema": 1, "recipe": "compare.mine", "config": config})
    command = {"command": ["stamm", "compare", "mine"]}
    write(root / "manifest.json", {**manifest(), **command})
    for number, (name, kind, width) in enumerate(FILES):
        trials: list[dict[str, float | None]]
        trials = [{"rate": 1e-3, "loss_nats": 3.1}, {"rate": 2e-3, "loss_nats": 3.0}]
        trials.append({"rate": 4e-3, "loss_nats": 3.2 if name != "relu2" else None})
        chosen = {"schema": 1, "arm": name, "rate": 2e-3, "at_edge": False, "trials": trials}
        write(root / "tune" / name / "chosen" / "chosen.json", chosen)
        for seed, bits in zip(SEEDS, losses[name], strict=True):
            folder = root / "final" / name / str(seed)
            write(folder / "config.json", arm_config(kind, width, name))
            write(folder / "summary.json", summary(1_000_000 + number))
            write_lines(folder / "metrics.jsonl", metrics(bits * 2, False, seed))
            write(folder / "evaluate" / "held_out.json", held_out(bits))
    return root


def summary(parameters: int) -> dict[str, object]:
    return {
        "schema": 1, "parameters": parameters, "steps": 60, "trained_tokens": 245_760,
        "epochs": 0.5, "flops": 1e12, "decay_start_step": 42, "goldfish": None,
    }  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs" / "mine")


def change(path: Path, **facts: object) -> None:
    write(path, {**json.loads(path.read_text()), **facts})


def test_a_difference_that_is_shown_and_one_that_is_not(root: Path) -> None:
    found = judgement_in(root)
    assert found.sentences[0].startswith(
        "xielu is better than swiglu by 0.100 ± 0.004 bits per byte at 1M parameters and 246k tokens "
        "(p < 0.001); to reach swiglu's loss it needs "
    )
    # s = 0.0208; 0.0033 + 6.2053 * 0.0208 / sqrt 3, t at .975 of 2 degrees for two arms together
    assert found.sentences[1] == (
        "relu2 is not shown to differ from swiglu: any difference above 0.078 bits per byte is excluded."
    )
    # -0.02, +0.02, +0.01
    assert cells_of(root, "relu2")[5] == "+0.0033"
    assert cells_of(root, "relu2")[8] == "not shown"
    # -0.099, -0.101, -0.100: t = 0.1 / (0.001 / sqrt 3) = 173.2 with 2 degrees: p = 3.33e-5, twice
    assert cells_of(root, "xielu")[5:] == (
        "−0.1000", "−0.1036 to −0.0964", "6.67e-05", "shown"
    )  # fmt: skip
    lines = {line.name: line for line in found.lines}
    shown = lines["xielu"].difference
    assert shown is not None and shown.shown and shown.interval.high is not None
    # s / sqrt 3 = 0.000577 times t of 0.975 and 2 degrees, 6.2053
    assert shown.interval.high == pytest.approx(-0.1 + 6.2053 * 0.001 / math.sqrt(3), abs=1e-6)
    assert lines["swiglu"].difference is None
    assert lines["swiglu"].bits is not None and lines["swiglu"].bits.mean == pytest.approx(2.3)


def test_a_worse_arm_is_said_to_be_higher(tmp_path: Path) -> None:
    worse = {**LOSSES, "xielu": (2.401, 2.449, 2.35)}
    root = write_comparison(tmp_path / "mine", worse)
    lead = judgement_in(root).sentences[0]
    assert cells_of(root, "xielu")[5] == "+0.1000"
    assert lead.startswith("xielu is worse than swiglu by 0.100 ± 0.004 bits per byte")


def test_an_arm_with_fewer_tokens_says_so(root: Path) -> None:
    for path in root.glob("final/xielu/*/summary.json"):
        change(path, trained_tokens=172_032)
    assert (
        judgement_in(root)
        .sentences[0]
        .startswith(
            "xielu, with 30 % fewer tokens, is better than swiglu by 0.100 ± 0.004 bits per byte at 1M parameters"
        )
    )


def test_tokens_to_an_equal_loss_follow_the_training_losses(root: Path) -> None:
    """Loss 6 - 0.4 ln(step), and the same at 80 % of the steps: 20 % fewer tokens."""
    for name, share in (("swiglu", 1.0), ("relu2", 1.0), ("xielu", 0.8)):
        for seed in SEEDS:
            lines = metrics(4.4, False, seed)
            for line in lines:
                own = 0.9 + seed / 20 if name == "xielu" else 1.0
                loss = 6 - 0.4 * math.log(line["step"] / (share * own))
                line["train/loss_nats"] = loss
            write_lines(root / "final" / name / str(seed) / "metrics.jsonl", lines)
    found = judgement_in(root)
    # shares 0.76, 0.80 and 0.84: ln has the mean -0.2240 and s = 0.0500; 4.3027 * 0.05 / sqrt 3 = 0.1243
    assert "to reach swiglu's loss it needs 20 % fewer tokens (9 % to 29 %)." in found.sentences[0]
    assert any("while both learning rates are at their peak" in s for s in found.sentences)
    for line in found.lines[1:]:
        assert line.log_tokens is not None
    assert found.lines[1].log_tokens is not None
    assert found.lines[1].log_tokens.mean == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("who", ["swiglu", "xielu"])
def test_no_tokens_to_an_equal_loss_where_a_rate_is_never_constant(root: Path, who: str) -> None:
    """As with a cosine: whatever was fitted would be the warm-up of one, or the cooldown of the other."""
    for seed in SEEDS:
        lines = metrics(4.4, False, seed)
        for line in lines:
            rising, falling = line["step"] / 10, 0.5 + 0.5 * math.cos(line["step"] / 60 * math.pi)
            line["optim/learning_rate"] = min(rising, 1.0) * falling
        write_lines(root / "final" / who / str(seed) / "metrics.jsonl", lines)
    found = {line.name: line.log_tokens for line in judgement_in(root).lines}
    assert found["xielu"] is None
    assert (found["relu2"] is None) == (who == "swiglu")


def test_the_cooldown_of_the_baseline_is_not_fitted(root: Path) -> None:
    """Its rate falls from step 30 on, and so does its loss, which is that of the others before."""
    for name in LOSSES:
        for seed in SEEDS:
            lines = metrics(4.4, False, seed)
            for line in lines:
                line["train/loss_nats"] = 6 - 0.4 * math.log(line["step"])
                if name == "swiglu" and line["step"] > 30:
                    line["optim/learning_rate"] *= 0.5
                    line["train/loss_nats"] -= 1.0
            write_lines(root / "final" / name / str(seed) / "metrics.jsonl", lines)
    for line in judgement_in(root).lines[1:]:
        assert line.log_tokens is not None and line.log_tokens.mean == pytest.approx(0.0, abs=1e-9)


def test_the_page_tells_the_noise_of_seeds_and_texts_apart(root: Path) -> None:
    for name in LOSSES:
        for seed in SEEDS:
            evaluated = root / "final" / name / str(seed) / "evaluate"
            worse = {"swiglu": 0.0, "relu2": 0.1, "xielu": 0.2}[name]
            lines = [
                {"document_id": f"d{i}", "tokens": 9, "bytes": 1000, "nats": 1500 + worse * i * 10}
                for i in range(20)
            ]
            write_lines(evaluated / "held_out_documents.jsonl", lines)
    table = noise_table(read_comparison(root))
    assert table is not None
    relu2 = dict(zip(table.columns, table.rows[0], strict=True))
    # -0.02, +0.02, +0.01 paired; swiglu has s = 0.05, relu2 0.0586
    assert relu2["paired, over seeds"] == "0.0208" and relu2["unpaired"] == "0.0770"
    assert relu2["standard error, seeds"] == "0.0120"
    # 10 i / 1000 / ln 2 of 20 documents: s of 0..19 is 5.916, over sqrt 20
    text = 0.1 * 5.916 * 10 / 1000 / math.log(2) / math.sqrt(20)
    assert relu2["standard error, texts"] == f"{text:.4f}"
    assert (relu2["held-out documents"], relu2["held-out bytes"]) == ("20", "20,000")
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    assert "Noise of the differences" in (root / "comparison.html").read_text()


def test_a_document_that_makes_most_of_the_spread_is_named(root: Path) -> None:
    """xielu fails on d7 with one seed, by 0.1 bits per byte over all; elsewhere it is 0.05 better."""
    for name in LOSSES:
        for number, seed in enumerate(SEEDS):
            folder = root / "final" / name / str(seed) / "evaluate"
            better = 1000 * math.log(2) * (0.05 + 0.001 * number) * (name == "xielu")
            lines = [
                {"document_id": f"d{i}", "tokens": 9, "bytes": 1000, "nats": 1500 - better}
                for i in range(20)
            ]
            if name == "xielu" and seed == SEEDS[-1]:
                lines[7]["nats"] += 20_000 * math.log(2) * 0.1
            write_lines(folder / "held_out_documents.jsonl", lines)
            nats = sum(float(line["nats"]) for line in lines)  # type: ignore[arg-type]
            write(folder / "held_out.json", held_out(nats / 20_000 / math.log(2)))
    (said,) = (one for one in judgement_in(root).sentences if "one held-out document" in one)
    assert (
        "of xielu's difference is one held-out document, d7: without it the difference is −0.0510"
        in said
    )
    assert said.endswith("with a standard deviation of 0.0010.")
    table = noise_table(read_comparison(root))
    assert table is not None
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert cells["without one document"] == "−0.0510, 0.0010 (d7)"


def test_averaged_weights_are_judged_and_the_final_ones_stay_beside(root: Path) -> None:
    config = json.loads((root / "config.json").read_text())["config"]
    change(root / "config.json", config={**config, "average": {"last": 4, "every": 20}})
    for name in LOSSES:
        for seed in SEEDS:
            folder = root / "final" / name / str(seed)
            bits = 2.0 + 0.01 * seed - (0.05 + 0.001 * seed) * (name == "xielu")
            write(folder / "averaged" / "evaluate" / "held_out.json", held_out(bits))
    found = judgement_in(root)
    assert "by 0.052 ± " in found.sentences[0]
    table = noise_table(read_comparison(root))
    assert table is not None
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    # final: -0.099, -0.101, -0.100; averaged: -0.051, -0.052, -0.053
    assert cells["paired, final weights"] == "0.0010" and cells["paired, over seeds"] == "0.0010"


def test_arms_alike_are_not_told_apart(tmp_path: Path) -> None:
    alike = dict.fromkeys(LOSSES, (2.3, 2.4, 2.2))
    root = write_comparison(tmp_path / "mine", alike)
    assert all("not shown to differ" in one for one in judgement_in(root).sentences[:2])
    for name in ("relu2", "xielu"):
        assert cells_of(root, name)[5] == "0.0000"


def test_only_the_verdicts_repeat_a_line_of_the_table(root: Path) -> None:
    for sentence in judgement_in(root).sentences[2:]:
        assert not any(name in sentence for name in LOSSES), sentence


def test_what_an_order_holds_for_is_told(root: Path) -> None:
    assert any(
        "initialisation and these learning rates, not about other ones" in said
        for said in judgement_in(root).sentences
    )


def test_what_was_equal_is_told(root: Path) -> None:
    said = " ".join(judgement_in(root).sentences)
    assert "Parameters differ by at most 2 of 1,000,002." in said
    assert "chosen from 3 short runs of 25 % of the length" in said
    assert "edge" not in said
    assert "at most 5 % of such experiments" in said
    # Of 3 seeds and 2 comparisons: 6.2053 / sqrt(3)
    assert "with 2 degrees of freedom" in said
    assert "the clearest of 2 differences is shown from 3.6 times its standard deviation" in said


def test_an_edge_is_told(root: Path) -> None:
    change(root / "tune" / "relu2" / "chosen" / "chosen.json", at_edge=True)
    found = judgement_in(root)
    assert any("at the edge of what was tried for relu2" in one for one in found.sentences)
    assert "0.002 (edge)" in found.text()


def test_a_seed_that_is_missing_leaves_the_pairs_that_are_there(root: Path) -> None:
    (root / "final" / "xielu" / "3" / "summary.json").unlink()
    found = judgement_in(root)
    difference = found.lines[2].difference
    assert difference is not None and difference.interval.count == 2
    assert "Not all of 3 seeds are there (xielu: 2)." in found.sentences


def cells_of(root: Path, name: str) -> tuple[str, ...]:
    found = judgement_in(root)
    return found.cells(next(line for line in found.lines if line.name == name))


def lose_way(folder: Path, how: str) -> None:
    """A run that was the best of all until it diverged."""
    lines = metrics(0.5, False, 1)
    if how == "evaluation":
        write(folder / "evaluate" / "held_out.json", held_out(math.nan))
    elif how == "last steps":
        write_lines(folder / "metrics.jsonl", lines[:40])
        events = [
            {"event": "non-finite loss", "step": step, "loss": "nan"} for step in range(41, 61)
        ]
        change(folder / "summary.json", events=events)
    else:
        lines[-3:] = [{**line, "train/loss_nats": 11.0} for line in lines[-3:]]
        write_lines(folder / "metrics.jsonl", lines)


@pytest.mark.parametrize("how", ["evaluation", "last steps", "above its beginning"])
def test_an_arm_that_diverged_with_one_seed_loses(root: Path, how: str) -> None:
    lose_way(root / "final" / "xielu" / "2", how)
    found = judgement_in(root)
    assert found.sentences[0] == "Diverged, and so lost: xielu."
    assert found.sentences[1].startswith("relu2 is not shown to differ from swiglu")
    said = "xielu diverged with seed 2 of 3: it loses to swiglu, which did not. No mean is given for it."
    assert said in found.sentences
    left = "Updates skipped for a non-finite loss: xielu 20."
    assert (left in found.sentences) == (how == "last steps")
    cells = cells_of(root, "xielu")
    assert (cells[2], cells[3], cells[-1]) == ("diverged", "no interval", "loses")
    relu2 = next(line for line in found.lines if line.name == "relu2").difference
    assert relu2 is not None and relu2.adjusted is not None and math.isfinite(relu2.adjusted)
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    page = (root / "comparison.html").read_text()
    assert "Not drawn, for they diverged: xielu with seed 2." in page
    numbers = json.loads((root / "comparison.json").read_text())
    line = numbers["lines"][2]
    assert (line["diverged"], line["bits"]["mean"]) == ([2], None)


def test_an_arm_without_any_loss_is_shown_and_loses(root: Path) -> None:
    for seed in SEEDS:
        folder = root / "final" / "xielu" / str(seed)
        (folder / "metrics.jsonl").write_text("")
        write(folder / "evaluate" / "held_out.json", held_out(math.nan))
    path = root / "tune" / "xielu" / "chosen" / "chosen.json"
    lost = [{**trial, "loss_nats": None} for trial in json.loads(path.read_text())["trials"]]
    change(path, trials=lost, rate=1e-3, at_edge=True)
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    found = judgement_in(root)
    assert "xielu diverged with seeds 1, 2, 3 of 3: it loses to swiglu" in " ".join(found.sentences)
    assert any("No short run ended with a finite loss for xielu" in one for one in found.sentences)


def test_a_baseline_that_diverged_loses(root: Path) -> None:
    lose_way(root / "final" / "swiglu" / "1", "last steps")
    lose_way(root / "final" / "relu2" / "3", "last steps")
    found = judgement_in(root)
    lead, relu2, xielu = found.sentences[:3]
    assert lead.startswith("swiglu, the baseline, diverged")
    assert relu2 == ("relu2 diverged with seed 3 of 3, and so did swiglu: neither is better.")
    assert xielu.startswith("xielu did not diverge, and swiglu did with seed 1 of 3: swiglu loses.")
    assert [cells_of(root, name)[-1] for name in LOSSES] == ["", "neither", "wins"]
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))


def test_a_run_that_went_astray_does_not_flatten_the_others(root: Path) -> None:
    path = root / "tune" / "xielu" / "chosen" / "chosen.json"
    trials = json.loads(path.read_text())["trials"]
    trials[-1]["loss_nats"] = 900.0
    change(path, trials=trials)
    compared = read_comparison(root)
    figure = comparison_figures(compared, judge_comparison(compared), ReportConfig())[1]
    # 3.0 is the lowest, 3.1 the middle: cut at 3.1 + 4 * 0.1
    assert "Losses above 3.50 lie outside of the drawing" in figure.caption
    assert any("900.0000" in row for row in figure.data.rows)


def test_events_stand_on_the_page_counted_and_cut(root: Path) -> None:
    events: list[dict[str, object]] = [
        {"event": "spike", "step": step, "loss": "9.123456789", "limit": "8.5"}
        for step in range(1, 500)
    ]
    events.append({"event": "<script>alert(1)</script>", "step": 500, "why": {"a": [1]}})
    change(root / "final" / "xielu" / "2" / "summary.json", events=events)
    change(root / "final" / "xielu" / "1" / "summary.json", events=[])
    run(ReportConfig(rows=20), Workspace(folder=root, inputs={"run": root}))
    page = (root / "comparison.html").read_text()
    assert "Events during training" in page
    assert "xielu, seed 2" in page and "loss 9.123, limit 8.5" in page
    assert "In all 499 × spike, 1 × &lt;script&gt;" in page
    assert "<script>" not in page
    assert page.count("loss 9.123, limit 8.5") == 19


def test_before_anything_is_trained(root: Path) -> None:
    for name in LOSSES:
        for seed in SEEDS:
            (root / "final" / name / str(seed) / "summary.json").unlink()
    found = judgement_in(root)
    assert found.sentences == ("No two arms have been evaluated yet: nothing can be compared.",)
    assert found.text().count("not run") >= 3


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


def test_the_page_is_whole_and_always_the_same(root: Path) -> None:
    place = Workspace(folder=root, inputs={"run": root})
    run(ReportConfig(), place)
    page = (root / "comparison.html").read_text()
    for text in (
        "Short runs by learning rate",
        "Against swiglu",
        "Without a finite loss",
        "1 TFLOP",
    ):
        assert text in page
    tags = Tags()
    tags.feed(page)
    assert not tags.names & {"script", "link", "img", "iframe"}
    assert "http" not in page.replace("http-equiv", "")
    numbers = json.loads((root / "comparison.json").read_text())
    assert numbers["by_seed"]["xielu"]["bits_per_byte"]["2"] == 2.249
    assert [line["name"] for line in numbers["lines"]] == ["swiglu", "relu2", "xielu"]
    run(ReportConfig(), place)
    assert (root / "comparison.html").read_text() == page


def test_differences_by_step_are_paired(root: Path) -> None:
    """Each step's noise is its seed's; what is drawn against the baseline has none of it."""
    compared = read_comparison(root)
    figures = {
        f.key: f for f in comparison_figures(compared, judge_comparison(compared), ReportConfig())
    }
    assert list(figures) == ["difference", "tuning", "bands"]
    assert "the baseline of the same seed is subtracted" in figures["bands"].caption
    folder = root / "final" / "xielu" / "1"
    write_lines(folder / "metrics.jsonl", metrics(4.4, False, 1)[:50])
    change(folder / "summary.json", steps=50)
    compared = read_comparison(root)
    figures = {
        f.key: f for f in comparison_figures(compared, judge_comparison(compared), ReportConfig())
    }
    assert "Runs have different lengths" in figures["bands"].caption


def test_text_from_a_hostile_folder_stays_text(root: Path) -> None:
    config = json.loads((root / "config.json").read_text())
    change(root / "config.json", recipe="<script>alert(1)</script>")
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    assert "<script>" not in (root / "comparison.html").read_text()
    config["config"]["arms"][1]["name"] = "../../../etc"
    write(root / "config.json", config)
    with pytest.raises(DataError, match="a name of letters, digits"):
        judgement_in(root)


def test_another_folder_is_no_comparison(tmp_path: Path, study: Path) -> None:
    assert not is_comparison(study)
    assert not is_comparison(tmp_path)
    for folder in (study, tmp_path):
        with pytest.raises(RunError, match="holds no comparison"):
            judgement_in(folder)
