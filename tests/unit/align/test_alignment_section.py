"""The page of an alignment run: its numbers are those of a world whose truth is known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from stamm.align.page.answer_figures import answer_figures
from stamm.align.page.preference_figures import preference_figures
from stamm.align.page.results import AlignmentResults, read_alignment
from stamm.align.page.tables import BETTER, NOT_SHOWN, WORSE, AlignmentSection
from stamm.align.records import AlignmentFile, SampleAnswersFile
from stamm.align.section import alignment_verdict, sections, verdict_sections
from stamm.base.errors import DataError
from stamm.base.schema import write_record
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile
from stamm.pages.config import ReportConfig
from stamm.pages.figure import Figure
from stamm.reports.job import write_report
from stamm.runs.run_view import open_view
from tests.unit.aligned_run import BETA, PROMPTS, result, world, write, write_aligned_run
from tests.unit.reports.run_folder import write_study
from tests.unit.reports.test_page import Page


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


def verdict(folder: Path) -> AlignmentSection:
    section = alignment_verdict(open_view(folder))
    assert section is not None
    return section


def read(folder: Path) -> AlignmentResults:
    return read_alignment(open_view(folder))


def curve(folder: Path) -> Figure:
    """The figure of KL and quantile."""
    run = open_view(folder)
    (figure,) = (one for one in answer_figures(run, read(folder)) if one.key == "kl-quantile")
    return figure


def betas(folder: Path) -> list[float | None]:
    return [training.beta for _, training in read(folder).trained]


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
    qrpo, dpo, simpo = (arm.file for arm in read(root).aligned)
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
    bins = read(root).aligned[0].file.rewards[0].quantiles
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
    section = verdict(root)
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
    section = verdict(copied)
    assert [line.verdicts for line in section.lines] == [(BETTER,), (NOT_SHOWN,), (NOT_SHOWN,)]
    assert section.lines[1].adjusted[0] == pytest.approx(0.06)
    assert "No second reward was measured" in section.sentences[1]
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    rewards = json.loads(path.read_text())["rewards"]
    rewards[0]["win_rate"] = {"mean": 0.3}
    change(path, rewards=rewards)
    worse = verdict(copied)
    assert worse.lines[0].verdicts == (WORSE,)
    assert worse.sentences[0].startswith("Worse than the start model: qrpo (wins 30.0 %).")


def test_the_optimum_of_a_chosen_beta_is_taken_from_the_configuration(copied: Path) -> None:
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    gap = json.loads(path.read_text())["optimum"]
    change(path, optimum={**gap, "target": None})
    assert betas(copied) == [None, BETA, None, None]
    assert "A star is the optimum" in curve(copied).caption
    path = copied / "arms" / "qrpo" / "config.json"
    config = json.loads(path.read_text())["config"]
    for changes, beta in (
        ({"largest_beta": BETA / 2}, BETA / 2),
        ({"largest_beta": BETA / 2, "normalize": "beta"}, None),
    ):
        change(path, config={**config, "loss": {**config["loss"], **changes}})
        assert betas(copied) == [None, beta, None, None]
    path.unlink()
    assert "A star is the optimum" not in curve(copied).caption


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
        "1 file ends in the middle, and rows are lost: sft.jsonl from row 2,200 on.",
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
    (found,) = read(root).aligned
    assert (found.name, found.number, found.source) == ("simpo", 1, "answers/simpo/alignment.json")
    assert "3 seeds of training" in " ".join(verdict(root).sentences)


def test_a_result_of_other_weights_is_refused(copied: Path) -> None:
    write(copied / "arms" / "qrpo" / "model" / "decoder.json", {"weights_sha256": "99" * 32})
    with pytest.raises(DataError, match=r"alignment\.json was made from weights"):
        read(copied)


def test_a_malformed_result_is_named(copied: Path) -> None:
    path = copied / "arms" / "qrpo" / "answers" / "alignment.json"
    change(path, rewards=[])
    with pytest.raises(DataError, match=r"rewards = .* is not at least one"):
        read(copied)


def test_a_pretraining_run_has_no_section_about_alignment(tmp_path: Path) -> None:
    run = open_view(write_study(tmp_path / "demo"))
    assert alignment_verdict(run) is None
    assert verdict_sections(run, ReportConfig()) == sections(run, ReportConfig()) == ()


@pytest.mark.parametrize(
    ("key", "metrics", "alt", "columns"),
    [
        (
            "kto",
            {"log_ratio": (0.0, 0.25), "kl": (0.0, 0.5), "accuracy": (0.5, 0.75)},
            "tuned ends at 0.25 nats, KL at 0.50",
            ("log ratio", "kl", "accuracy"),
        ),
        (
            "grpo",
            {"mean": (0.2, 0.8), "equal_groups": (0.5, 0.25)},
            "tuned begins at a mean reward of 0.20 and ends at 0.80",
            ("mean", "equal groups", "kl per token", "clip share", "length", "cut", "unrated"),
        ),
        (
            "rewards",
            {"chosen": (0.0, 1.5), "rejected": (0.0, -2.0), "accuracy": (0.5, 1.0)},
            "tuned ends at 1.50 for chosen and −2.00 for rejected answers",
            ("chosen", "rejected", "accuracy"),
        ),
    ],
)
def test_every_objective_has_the_figure_of_its_metrics(
    tmp_path: Path,
    key: str,
    metrics: dict[str, tuple[float, float]],
    alt: str,
    columns: tuple[str, ...],
) -> None:
    steps = [{f"reward/{name}": pair[at] for name, pair in metrics.items()} for at in (0, 1)]
    arm = tmp_path / "arms" / "tuned"
    arm.mkdir(parents=True)
    lines = [json.dumps({"step": at + 1, **step}) for at, step in enumerate(steps)]
    (arm / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = open_view(tmp_path)
    (figure,) = preference_figures(run, read(tmp_path).trained, ReportConfig())
    assert (figure.key, figure.alt) == (key, alt)
    assert figure.data.columns == ("arm", "step", *columns)
    last = [f"{pair[1]:.3f}".replace("-", "−") for pair in metrics.values()]
    assert figure.data.rows[1][:2] == ("tuned", "2")
    assert figure.data.rows[1][2:] == (*last, *[""] * (len(columns) - len(last)))
