"""The page of an alignment run: its numbers are those of a world whose truth is known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_page import Page

from stamm.base.errors import DataError
from stamm.base.schema import write_record
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile
from stamm.reports.alignment_figures import optimum_figure
from stamm.reports.alignment_section import BETTER, NOT_SHOWN, WORSE, alignment_section
from stamm.reports.config import ReportConfig
from stamm.reports.job import verdict, write_report
from stamm.reports.page import page_of
from stamm.reports.run_data import collect
from stamm.runs.schemas.alignment import AlignmentFile, SampleAnswersFile
from tests.unit.aligned_run import BETA, PROMPTS, result, world, write, write_aligned_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_aligned_run(tmp_path_factory.mktemp("runs") / "align.demo")


@pytest.fixture(scope="module")
def html(root: Path) -> str:
    out = root.parent / "page.html"
    return write_report(root, out).read_text(encoding="utf-8")


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "align.demo"))


def change(path: Path, **facts: object) -> None:
    write(path, {**json.loads(path.read_text()), **facts})


def counted_wins(arm: str, column: int) -> float:
    """Share of pairs won, by counting."""
    shares = []
    for prompt in world(arm)[0]:
        pairs = [
            (a.rewards[column], b.rewards[column]) for a in prompt.after[0] for b in prompt.before
        ]
        shares.append(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))
    return float(np.mean(shares))


def test_qrpo_is_on_the_curve_and_dpo_is_below_it(root: Path) -> None:
    qrpo, dpo, simpo = (arm.file for arm in collect(root).aligned)
    assert qrpo.optimum.target is not None
    assert qrpo.optimum.target.kl == pytest.approx(optimum_kl(BETA))
    for found, truth in (
        (qrpo.kl.k1, optimum_kl(BETA)),
        (qrpo.rewards[0].quantile.after, optimum_mean_quantile(BETA)),
        (qrpo.optimum.below, 0.0),
        (simpo.rewards[0].quantile.after, 0.5),
    ):
        assert found.low is not None and found.high is not None
        assert found.low < truth < found.high
    assert dpo.optimum.below.low is not None and dpo.optimum.below.low > 0.1
    # The start's length grows by 8 tokens from quantile 0 to 1.
    assert qrpo.length_slope is not None
    assert qrpo.length_slope.before.mean == pytest.approx(8, abs=1.5)
    assert dpo.tokens.difference.low is not None and dpo.tokens.difference.low > 14


def test_the_start_is_level_among_its_references(root: Path) -> None:
    bins = collect(root).aligned[0].file.rewards[0].quantiles
    assert len(bins) == 13
    # 600 answers: three standard errors of a share of 1/13 are 0.033.
    assert all(abs(one.before - 1 / 13) < 0.035 for one in bins)
    assert bins[-1].after > 0.2 > 0.04 > bins[0].after


def test_the_page_is_well_formed_and_hostile_text_stays_text(html: str) -> None:
    page = Page(html)
    assert page.problems == []
    assert "<script" not in html and "<img" not in html
    assert "&lt;script&gt;alert" in html
    assert not {c for c in html if not c.isprintable()} - {"\n"}
    assert "日本で一番高い山は何ですか。" in html


def test_the_numbers_are_those_of_counting(root: Path, html: str) -> None:
    text = Page(html).text
    section = alignment_section(collect(root))
    assert section is not None
    for line in section.lines:
        prompts, ratios = world(line.arm.name)
        after = [a for p in prompts for a in p.after[0]]
        quantile = np.mean(
            [np.mean([r < a.rewards[0] for r in p.reference_rewards(0)])
             for p in prompts for a in p.after[0]]
        )  # fmt: skip
        tokens = np.mean([a.line.num_tokens for a in after])
        cells = section.cells(line)
        for column, cell in ((0, cells[2]), (1, cells[4])):
            won = counted_wins(line.arm.name, column)
            assert cell.startswith(f"{100 * won:.1f} % (")
            assert cell in text
        assert cells[5] == f"{quantile:.3f}"
        assert cells[6] == f"{np.mean(ratios):.2f}"
        assert cells[7].endswith(f"→ {tokens:.0f}")


def test_the_verdict_is_corrected_over_the_arms(copied: Path) -> None:
    """0.03 alone would be shown at 95 %; as the second of three it is 0.06."""
    for arm, chance, rate in (("qrpo", 0.002, 0.7), ("dpo", 0.03, 0.6), ("simpo", 0.9, 0.5)):
        path = copied / "arms" / arm / "answers" / "alignment.json"
        rewards = json.loads(path.read_text())["rewards"][:1]
        rewards[0] |= {"win_p_value": chance, "win_rate": {"mean": rate}}
        change(path, rewards=rewards)
    section = alignment_section(collect(copied))
    assert section is not None
    assert [line.verdicts for line in section.lines] == [(BETTER,), (NOT_SHOWN,), (NOT_SHOWN,)]
    assert section.lines[1].adjusted[0] == pytest.approx(0.06)
    assert "No second reward was measured" in section.sentences[1]
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    rewards = json.loads(path.read_text())["rewards"]
    rewards[0]["win_rate"] = {"mean": 0.3}
    change(path, rewards=rewards)
    worse = verdict(copied)
    assert worse.alignment is not None and worse.alignment.lines[0].verdicts == (WORSE,)
    assert worse.sentences[0].startswith("Worse than the start model: qrpo (wins 30.0 %).")


def test_the_optimum_of_a_chosen_beta_is_taken_from_the_configuration(copied: Path) -> None:
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    gap = json.loads(path.read_text())["optimum"]
    change(path, optimum={**gap, "target": None})
    study = collect(copied)
    assert [arm.training.beta for arm in study.arms] == [None, BETA, None, None]
    figure = optimum_figure(study)
    assert "A star is the optimum" in figure.caption
    path = copied / "arms" / "qrpo" / "config.json"
    config = json.loads(path.read_text())["config"]
    for changes, beta in (
        ({"largest_beta": BETA / 2}, BETA / 2),
        ({"largest_beta": BETA / 2, "normalize": "beta"}, None),
    ):
        change(path, config={**config, "loss": {**config["loss"], **changes}})
        assert [arm.training.beta for arm in collect(copied).arms] == [None, beta, None, None]
    path.unlink()
    assert "A star is the optimum" not in optimum_figure(collect(copied)).caption


def test_a_reward_that_rises_while_the_other_falls_is_told(copied: Path) -> None:
    path = copied / "arms" / "dpo" / "answers" / "alignment.json"
    plain = json.loads(path.read_text())
    plain["rewards"][1] |= {"win_p_value": 0.001, "win_rate": {"mean": 0.4}}
    plain["stopped"]["difference"] = {"mean": -0.2, "low": -0.3, "high": -0.1}
    plain["kl"]["recoded"] = 0.4
    change(path, **plain)
    told = " ".join(verdict(copied).sentences)
    assert "The reward rises while the one that was not trained on falls: dpo." in told
    assert "Fewer answers end by themselves: dpo (" in told
    assert "encoded otherwise than they were sampled: dpo (40.0 %)." in told


def test_the_sections_and_figures_of_alignment(html: str) -> None:
    page = Page(html)
    anchors = {a["id"] for _, a in page.tags if a.get("id")}
    assert {"verdict", "alignment", "answers", "prepared", "training", "again"} <= anchors
    assert {"wins", "kl-quantile", "distributions", "length", "log-ratios", "targets"} <= anchors
    assert "representation" in anchors and "Effective rank: dpo from 40.7 to 22." in html
    assert not {"corpus", "shape", "memorization", "export", "languages"} & anchors
    links = re.findall(r'<li><a href="#([a-z]+)">', html)
    assert set(links) <= anchors
    for words in (
        "Better than the start model: qrpo",
        "Not shown to differ from the start model: simpo",
        f"Intervals are over {PROMPTS} test prompts and one seed of training",
        "corrected over the 3 arms (Holm)",
        "Left out: qrpo (3 prompts with too few start answers), dpo (3 prompts",
        "from the lowest quantile to the highest",
        "memorized, 16 times",
        "too long 150 6.8 %",
        "CC-BY-4.0 1,500 75.0 %",
        "Refused: CC-BY-NC-4.0.",
        "simpo: log π per token",
        "arms/{qrpo,dpo,simpo}/answers/alignment.json",
    ):
        assert words in page.text, words
    assert html.count("start: reward") == 3 * 20


def test_the_same_run_gives_the_same_bytes(root: Path, html: str, tmp_path: Path) -> None:
    again = write_report(root, tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == html


def test_the_terminal_shows_the_same_verdict(root: Path) -> None:
    lines = verdict(root).text().splitlines()
    assert lines[0].split()[:3] == ["arm", "reward", "wins"]
    assert lines[1].startswith("qrpo") and "better" in lines[1]
    assert max(len(line) for line in lines[:4]) <= 120
    assert lines[5].startswith("Better than the start model")


def test_fine_tuning_alone(tmp_path: Path) -> None:
    root = write_aligned_run(tmp_path / "align.sft", answers=False)
    page = Page(write_report(root, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.problems == []
    for words in (
        "sft was fine-tuned, 80 steps: loss 2.545 → 1.441 nats per supervised token.",
        "No answers were compared with the start model's.",
        "Comparison of answers: not run.",
        "Prepared data",
        "an assistant's turn is empty",
        "column or key that was not used",
        "Training loss",
    ):
        assert words in page.text, words
    assert not {"wins", "log-ratios", "answers"} & {a.get("id") for _, a in page.tags}


def test_held_out_rows_of_fine_tuning_are_beside_its_loss(tmp_path: Path) -> None:
    root = write_aligned_run(tmp_path / "align.sft", answers=False)
    file = root / "arms" / "sft" / "metrics.jsonl"
    before, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    first = {"step": 0, "evaluate/held_out_rows/loss_nats": 2.75}
    lines[-1]["evaluate/held_out_rows/loss_nats"] = 1.5
    file.write_text("".join(json.dumps(line) + "\n" for line in (first, before, *lines)))
    asked = {"file": "rows.jsonl", "row": 3, "held_out": True, "question": "<b>2+2?\x1b[0m"}
    record = {
        "start_sha256": "0" * 64,
        "model_sha256": "1" * 64,
        "max_new_tokens": 64,
        "answers": [{**asked, "before": "<script>", "after": "4\n" * 500}],
    }
    (root / "arms" / "sft" / "sample_answers").mkdir()
    path = root / "arms" / "sft" / "sample_answers" / "sample_answers.json"
    write_record(path, SampleAnswersFile, record)
    lines = verdict(root).text().splitlines()
    (table,) = [k for k, line in enumerate(lines) if line.startswith("on held-out rows")]
    assert lines[table + 1].split() == ["sft:", "loss", "2.750", "1.500"]
    assert lines[table + 3].startswith("sft, held out: <b>2+2?")
    assert lines[table + 4] == "  before: <script>"
    assert max(map(len, lines[table + 3 :])) <= 200 and "\x1b" not in "".join(lines)
    page = Page(write_report(root, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.problems == []
    for words in ("On held-out rows, before and after", "rows.jsonl, row 3, held out", "<script>"):
        assert words in page.text, words


def test_the_folder_of_one_aligned_arm(root: Path, tmp_path: Path) -> None:
    page = Page(
        write_report(root / "arms" / "dpo", tmp_path / "page.html").read_text(encoding="utf-8")
    )
    assert "Better than the start model: dpo" in page.text
    assert "answers/alignment.json" in page.text


def test_results_of_several_seeds_lie_beside_the_arms(tmp_path: Path) -> None:
    root = write_aligned_run(tmp_path / "align.demo", answers=False)
    folder = root / "answers" / "simpo"
    folder.mkdir(parents=True)
    write_record(folder / "alignment.json", AlignmentFile, result("simpo", seeds=3))
    study = collect(root)
    (found,) = study.aligned
    assert (found.name, found.number, found.source) == ("simpo", 1, "answers/simpo/alignment.json")
    assert "3 seeds of training" in " ".join(verdict(root).sentences)


def test_a_result_of_other_weights_is_refused(copied: Path) -> None:
    write(copied / "arms" / "qrpo" / "model" / "decoder.json", {"weights_sha256": "99" * 32})
    with pytest.raises(DataError, match=r"alignment\.json was made from weights"):
        collect(copied)


def test_a_malformed_result_is_named(copied: Path) -> None:
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    change(path, rewards=[])
    with pytest.raises(DataError, match=r"rewards = .* is not at least one"):
        collect(copied)


def test_a_pretraining_run_has_no_alignment_section(study: Path) -> None:
    found = collect(study)
    assert not found.is_alignment and alignment_section(found) is None
    page = page_of(found, ReportConfig())
    assert not {"alignment", "answers", "prepared"} & page.shown
    assert {"shape", "corpus", "memorization", "export"} <= page.shown
