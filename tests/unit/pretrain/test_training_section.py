"""The training of an arm as its page shows it: what is malformed is named, nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.activations import get
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.pages.config import ReportConfig
from stamm.pretrain.page.shape_figures import learned_names
from stamm.pretrain.results import read_training, same_tokens
from stamm.pretrain.section import sections
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import HOSTILE, write, write_arm
from tests.unit.reports.test_page import Page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of one arm."""
    write_arm(tmp_path / "arms" / "xielu", "xielu", 0)
    return tmp_path


@pytest.fixture
def arm(root: Path) -> Path:
    return root / "arms" / "xielu"


def test_the_sections_of_a_trained_arm(root: Path) -> None:
    training, shape = sections(open_view(root), ReportConfig())
    assert training.facts == (
        "1.77M parameters",
        "246k tokens an arm",
        "0.90 epochs",
        "2.6 TFLOP an arm",
        "seed 28",
    )
    assert (training.title, shape.title) == ("Training", "Learned shape")
    assert 'id="loss"' in training.html and 'id="optimisation"' in training.html
    assert [f'id="{key}-0"' in shape.html for key in ("depth", "shape", "curve")] == [True] * 3


def test_an_imported_model_has_no_training(root: Path, arm: Path) -> None:
    write(arm / "config.json", {"schema": 1, "kind": "import", "config": {}})
    assert sections(open_view(root), ReportConfig()) == ()


def test_arms_have_the_same_tokens_when_seed_number_and_corpus_are_equal(root: Path) -> None:
    other = root / "arms" / "relu2"
    write_arm(other, "relu2", 1)

    def same() -> bool:
        return same_tokens([(one, read_training(one.folder)) for one in open_view(root).arms])

    assert same()
    for name, old, new in (
        ("config.json", '"seed": 28', '"seed": 29'),
        ("manifest.json", "cd" * 32, "ce" * 32),
        ("summary.json", "245760", "245761"),
    ):
        path = other / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        assert not same(), name
        path.write_text(text)
    (other / "manifest.json").unlink()
    assert not same()


def test_shapes_are_read_by_layer(arm: Path) -> None:
    metrics = read_training(arm).metrics
    assert metrics is not None
    assert metrics.shape_names() == ("alpha_n", "alpha_p", "beta")
    assert metrics.layers("alpha_p") == (0, 1, 2, 3)
    assert metrics.shapes["alpha_p", 0].steps == (10, 20, 30, 40, 50, 60)
    assert metrics.shapes["alpha_p", 2].values[-1] == pytest.approx(0.8)
    assert len(metrics.loss.values) == 60


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{", r"summary.json is not JSON"),
        ("summary.json", "[]", r"summary.json holds a list, not an object"),
        ("summary.json", '{"schema": 2}', r"has schema 2; stamm .* reads 1"),
        ("summary.json", '{"schema": 1}', r"summary.json has no 'parameters'"),
        ("summary.json", '{"schema": 1, "parameters": "x"}', r"parameters = 'x' is not a whole"),
        ("metrics.jsonl", "nonsense\n", r"line 1 of .*metrics.jsonl is not JSON"),
        ("metrics.jsonl", '{"step": 1}\n{"step": 1}\n', r"line 2: step 1 follows step 1"),
        ("metrics.jsonl", '{"step": 1, "train/loss_nats": true}\n', r"is not a number"),
        ("config.json", '{"schema": 1, "config": {}}', r"config.json, config has no 'model'"),
    ],
)
def test_a_malformed_file_is_named(
    root: Path, arm: Path, name: str, text: str, message: str
) -> None:
    (arm / name).write_text(text)
    with pytest.raises(DataError, match=message):
        sections(open_view(root), ReportConfig())


def test_a_line_cut_by_a_kill_is_not_read(arm: Path) -> None:
    path = arm / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 61, "train/lo')
    metrics = read_training(arm).metrics
    assert metrics is not None
    assert metrics.loss.steps[-1] == 60


def test_deep_nesting_is_refused(arm: Path) -> None:
    (arm / "metrics.jsonl").write_text('{"step": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(DataError):
        read_training(arm)


def test_an_unknown_activation_is_shown_without_its_curve(root: Path, arm: Path) -> None:
    path = arm / "config.json"
    config = json.loads(path.read_text())
    config["config"]["model"]["ffn"]["activation"] = "my_own"
    write(path, config)
    assert read_training(arm).activation == "my_own"
    _, shape = sections(open_view(root), ReportConfig())
    assert "depth-0" in shape.html and "curve-0" not in shape.html


def test_an_activation_of_the_users_own_is_read_from_its_spec(arm: Path) -> None:
    path = arm / "config.json"
    config = json.loads(path.read_text())
    spec = replace(get("xielu"), name="my_own", title=HOSTILE)
    config["config"]["model"]["ffn"]["activation"] = to_plain(spec)
    write(path, config)
    training = read_training(arm)
    assert (training.activation, training.spec) == ("my_own", spec)
    assert learned_names(training) == ("alpha_p", "alpha_n")
    config["config"]["model"]["ffn"]["activation"]["name"] = HOSTILE
    write(path, config)
    with pytest.raises(DataError, match=r"is not a name.*config\.json"):
        read_training(arm)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("summary.json", '"k": 50', '"k": 1', r"k = 1 is not at least 2"),
        ("summary.json", '"k": 50', '"k": 0', r"k = 0 is not at least 2"),
        ("summary.json", "[36, ", "[36, 40, ", r"gap_quantiles = \[36, 40.* the four lengths"),
        ("summary.json", '"k": 5', '"k": 5' + "0" * 5000, r"summary.json is not JSON"),
        ("summary.json", '"k": 5', '"k": 5' + "0" * 400, r"k = 50.* not a whole number of 64"),
        ("summary.json", '"epochs": 0', '"epochs": 1' + "0" * 400 + ', "x": 0', r"of at most 1.8e"),
        ("metrics.jsonl", '"tokens": ', '"x": 1' + "0" * 5000 + ', "tokens": ', r"line 1 of .*not"),
    ],
)
def test_a_number_out_of_its_range_is_named(
    arm: Path, name: str, old: str, new: str, message: str
) -> None:
    path = arm / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message) as told:
        read_training(arm)
    assert path.name in str(told.value)


def test_events_during_training_are_a_table(root: Path, arm: Path) -> None:
    path = arm / "summary.json"
    plain = json.loads(path.read_text())
    (arm / "metrics.jsonl").unlink()  # no figure is drawn

    def told(events: object) -> str:
        write(path, {**plain, "events": events})
        return str(sections(open_view(root), ReportConfig())[0].html)

    assert "No event was recorded during training" in told([])
    assert "recorded during training" not in told(None)
    passed = {"event": "passed over", "step": 1_234, "why": "spike", "first": 1_230, "last": 1_234}
    hostile = {"event": HOSTILE, "step": 7, HOSTILE: HOSTILE, "loss": "9" * 5_000, "x": [{}]}
    page = told([passed, hostile, *[{"event": "spike", "step": 8, "loss": "12.34567"}] * 3_000])
    assert "why spike, first 1230, last 1234" in page
    assert "loss 12.35" in page
    assert "In all 3,000 × spike, 1 × passed over" in page
    assert "60 of 3002 rows" in page
    assert "<script" not in page and "9" * 100 not in page
    assert not Page(page).problems
    with pytest.raises(DataError, match=r"events\[0\]: step = 'x' is not a whole number"):
        told([{"event": "spike", "step": "x"}])


def test_steps_without_a_gradient_norm_have_a_page(root: Path, arm: Path) -> None:
    lines = [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("optim/gradient_norm", None)
    (arm / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (section, *_) = sections(open_view(root), ReportConfig())
    assert "Gradient norm" in section.html
