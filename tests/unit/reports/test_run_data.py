"""Reading a run folder: what is malformed is named, what is missing is None, nothing is guessed."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from run_folder import HOSTILE, ledger_rows, write, write_ledger, write_study

from stamm.activations import get
from stamm.base.config import to_plain
from stamm.base.errors import DataError, RunError
from stamm.reports.measure_figures import grammar_figure
from stamm.reports.run_data import collect
from stamm.reports.shape_figures import learned_names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_study(tmp_path / "demo")


def test_arms_stand_in_the_order_of_the_recipe(study: Path) -> None:
    found = collect(study)
    assert [arm.name for arm in found.arms] == ["swiglu", "relu2", "xielu"]
    assert found.recipe == "demo"
    assert found.overrides == ("pretrain.seed=28",)
    assert not found.is_single


def test_the_ledger_adds_up(study: Path) -> None:
    corpus = collect(study).corpus
    assert corpus is not None
    assert corpus.summary.n_in == 107
    assert corpus.summary.n_kept == 90
    assert corpus.summary.n_probes == 1
    assert sum(reason.documents for reason in corpus.reasons) == corpus.documents_dropped == 17
    assert corpus.reasons[0].name == "robots_disallow"
    assert corpus.reasons[0].examples[0].agent == "GPTBot, CCBot"
    assert sum(one.documents for one in corpus.consents) == 107
    assert {one.state: (one.first_read, one.last_read) for one in corpus.consents} == {
        "robots_allows": ("2019-08-01", "2019-08-01"),
        "unknown_host": ("", ""),
        "robots_disallow": ("2019-08-01", "2019-08-01"),
    }
    assert sum(one.documents for one in corpus.sources) == 90
    assert [one.kept for _, one in corpus.shards] == [91]
    assert sum(host.kept + host.dropped for host in corpus.hosts) == 107
    assert corpus.summary.pii_replaced == {
        "email": sum(i % 4 for i in range(90)),
        "ip": sum(i % 10 // 9 for i in range(90)),
        "iban": 0,
    }


def test_a_ledger_that_contradicts_its_summary_is_refused(root: Path) -> None:
    path = root / "corpus" / "summary.json"
    write(path, {**json.loads(path.read_text()), "n_in": 1000})
    with pytest.raises(DataError, match=r"counts 1000 documents .* its ledger 107"):
        collect(root)


def test_a_ledger_without_a_column_is_refused(root: Path) -> None:
    import pyarrow.parquet as pq

    path = root / "corpus" / "ledger-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["consent"]), path)
    with pytest.raises(DataError, match=r"ledger-00000.parquet has no column 'consent'"):
        collect(root)


def test_a_cut_ledger_is_refused(root: Path) -> None:
    path = root / "corpus" / "ledger-00000.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"ledger-00000.parquet cannot be read"):
        collect(root)


def test_ledger_shards_are_read_together(root: Path) -> None:
    rows = ledger_rows()
    path = root / "corpus" / "ledger-00000.parquet"
    write_ledger(root / "corpus", rows[40:])
    path.rename(root / "corpus" / "ledger-00001.parquet")
    write_ledger(root / "corpus", rows[:40])
    corpus = collect(root).corpus
    assert corpus is not None
    assert corpus.summary.n_in == 107


def test_shapes_are_read_by_layer(study: Path) -> None:
    metrics = collect(study).arms[2].training.metrics
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
        (
            "evaluate/held_out.json",
            '{"schema": 1, "context": 4, "overlap": 0, "overall": 3}',
            r"overall holds a plain value",
        ),
        (
            "evaluate/blimp.json",
            '{"schema": 1, "pairs_per_paradigm": 1.5}',
            r"paradigm = 1.5 is not a whole",
        ),
        (
            "audit/memorization.json",
            '{"schema": 1, "prefix_tokens": null}',
            r"prefix_tokens = None is not a whole",
        ),
        ("audit/continuations.jsonl", '{"probe_id": 3}\n', r"line 1: probe_id = 3 is not text"),
        (
            "export/transformers/parity.json",
            '{"schema": 1, "reference": []}',
            r"reference = \[\] is not text",
        ),
        (
            "export/transformers/samples.json",
            '{"schema": 1, "samples": {}}',
            r"samples = \{\} is not a list",
        ),
    ],
)
def test_a_malformed_file_is_named(root: Path, name: str, text: str, message: str) -> None:
    path = root / "arms" / "xielu" / name
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        collect(root)


def test_a_line_cut_by_a_kill_is_not_read(root: Path) -> None:
    path = root / "arms" / "xielu" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 61, "train/lo')
    metrics = collect(root).arms[2].training.metrics
    assert metrics is not None
    assert metrics.loss.steps[-1] == 60


def test_an_endless_line_is_refused(root: Path) -> None:
    path = root / "arms" / "xielu" / "audit" / "continuations.jsonl"
    path.write_bytes(b'{"probe_id": "' + b"x" * (5 * 2**20) + b'"}\n')
    with pytest.raises(DataError, match=r"line 1 of .*continuations.jsonl is over 4 MiB"):
        collect(root)


def test_deep_nesting_is_refused(root: Path) -> None:
    path = root / "arms" / "xielu" / "metrics.jsonl"
    path.write_text('{"step": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(DataError):
        collect(root)


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a folder"):
        collect(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"neither config.json nor arms/"):
        collect(tmp_path)


def test_steps_stand_in_the_order_in_which_they_ended(study: Path) -> None:
    assert collect(study).steps == (("corpus", 6.1), ("pretrain.xielu", 31.0))


def test_a_folder_that_is_no_arm_is_named(root: Path) -> None:
    (root / "arms" / "x\x1b[31m").mkdir()
    with pytest.raises(DataError, match="which is not a name of an arm"):
        collect(root)


def test_hashes_identify_the_run(study: Path) -> None:
    names = [name for name, _ in collect(study).hashes]
    assert names == ["config.json", "corpus/summary.json", "pack/manifest.json"]


def test_an_unknown_activation_is_shown_without_its_curve(root: Path) -> None:
    path = root / "arms" / "xielu" / "config.json"
    config = json.loads(path.read_text())
    config["config"]["model"]["ffn"]["activation"] = "my_own"
    write(path, config)
    assert collect(root).arms[2].training.activation == "my_own"


def test_an_activation_of_the_users_own_is_read_from_its_spec(root: Path) -> None:
    path = root / "arms" / "xielu" / "config.json"
    config = json.loads(path.read_text())
    spec = replace(get("xielu"), name="my_own", title=HOSTILE)
    config["config"]["model"]["ffn"]["activation"] = to_plain(spec)
    write(path, config)
    training = collect(root).arms[2].training
    assert (training.activation, training.spec) == ("my_own", spec)
    assert learned_names(collect(root).arms[2]) == ("alpha_p", "alpha_n")
    config["config"]["model"]["ffn"]["activation"]["name"] = HOSTILE
    write(path, config)
    with pytest.raises(DataError, match=r"is not a name.*config\.json"):
        collect(root)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["stamm", "run", "demo"], "runs/demo"),
        (["stamm", "run", "--out", "my runs/demo", "demo"], "'my runs/demo'"),
        (["stamm", "run", "study", "--out=../deep/er/demo"], "../deep/er/demo"),
    ],
)
def test_commands_name_the_path_of_the_recorded_one(
    root: Path, command: list[str], name: str
) -> None:
    for folder in (root, root / "arms" / "xielu"):
        manifest = json.loads((folder / "manifest.json").read_text())
        write(folder / "manifest.json", {**manifest, "command": command})
    found = collect(root)
    assert found.name == name
    assert found.made_by() == shlex.join(command)
    arm = collect(root / "arms" / "xielu").name
    assert shlex.split(arm) == [f"{shlex.split(name)[0]}/arms/xielu"]


def test_a_run_that_was_moved_is_named_as_given(root: Path) -> None:
    moved = root.rename(root.parent / "moved")
    assert collect(moved).name == str(moved)


def test_each_arm_has_its_own_command(root: Path) -> None:
    for name in ("evaluate/blimp.json", "evaluate/held_out.json"):
        (root / "arms" / "relu2" / name).unlink()
    figure = grammar_figure(collect(root))
    assert figure is not None
    assert figure.command == (
        "stamm evaluate runs/demo/arms/swiglu && stamm evaluate runs/demo/arms/xielu"
    )


def test_the_figure_of_minimal_pairs_names_the_best_blind_baseline(root: Path) -> None:
    for path in (root / "arms").glob("*/evaluate/blimp.json"):
        blind = {"unigram": {"value": 0.5432}, "longest": {"value": 0.4}}
        changed = {**json.loads(path.read_text()), "blind": blind, "strongest_blind": "unigram"}
        write(path, changed)
    figure = grammar_figure(collect(root))
    assert figure is not None
    assert "The best baseline that does not use the model, unigram, gives 54.3 %." in figure.caption


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("audit/memorization.json", '"low": 0', '"low": 9', r"low = 9\S* is not at most the mean"),
        ("audit/memorization.json", '"high": 0', '"high": -0', r"high = -\S+ is not at least the"),
        ("evaluate/blimp.json", '"standard_error": ', '"standard_error": -', r"is not at least 0"),
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
    root: Path, name: str, old: str, new: str, message: str
) -> None:
    path = root / "arms" / "xielu" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message) as told:
        collect(root)
    assert path.name in str(told.value)
