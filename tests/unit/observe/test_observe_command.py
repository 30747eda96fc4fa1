"""`stamm observe`: runs, checkpoints, Hugging Face folders; nothing is observed twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from stamm.base.console import NoProgress
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.distributed import DistributedContext
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.models.config import DecoderConfig, GatedFFN, MemoryPolicy, PlainFFN, Recompute, SavePre
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.observe.config import ObserveConfig
from stamm.observe.model import ObservedText, observe_layers, text_of_file
from stamm.observe.records import (
    LayerObservation,
    ObserveComparisonFile,
    ObserveFile,
    PlasticityFile,
)
from stamm.reports.job import write_report
from tests.unit.tutorials import working_folder
from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return untrained_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def folder(inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    return tmp_path


def layers_of(ffn: PlainFFN | GatedFFN, batch_tokens: int = 4096) -> tuple[LayerObservation, ...]:
    config = DecoderConfig(
        vocab_size=64, d_model=16, num_layers=2, num_heads=2, ffn=ffn, max_context=16, init_std=0.2
    )
    drawn = torch.Generator().manual_seed(1)
    rows = (tuple(torch.randint(64, (n,), generator=drawn).tolist()) for n in (17, 9, 5))
    text = ObservedText(name="t", sequences=tuple(list(row) for row in rows), documents=3)
    settings = ObserveConfig(batch_tokens=batch_tokens)
    return observe_layers(settings, build_decoder(config, seed=4), text, NoProgress())


def test_padding_and_memory_policies_do_not_change_the_numbers() -> None:
    policies: list[tuple[str, MemoryPolicy]] = [("xielu", Recompute()), ("gelu", SavePre())]
    for name, policy in policies:
        ffn = PlainFFN(width=24, activation=name)
        alone = layers_of(ffn, batch_tokens=1)
        together = layers_of(replace(ffn, memory=policy))
        for one, other in zip(alone, together, strict=True):
            for key in ("negative_share", "nonlinearity", "negative_gradient_share", "max_median"):
                assert getattr(one, key) == pytest.approx(getattr(other, key), rel=1e-5)


def test_gradients_are_those_of_the_loss() -> None:
    """In the first layer of a linear network all gradients pass a slope of 1."""
    found = layers_of(PlainFFN(width=24, activation="identity"))
    assert [one.mean_abs_slope for one in found] == [1.0, 1.0]
    assert all(one.nonlinearity == 0.0 for one in found)
    assert all(0.2 < (one.negative_gradient_share or 0.0) < 0.8 for one in found)
    assert [one.negative_slope_share for one in found] == [0.0, 0.0]
    dead = layers_of(PlainFFN(width=24, activation="relu"))
    # No gradient passes the negative side of ReLU.
    assert [one.negative_gradient_share for one in dead] == [0.0, 0.0]


def test_a_run_is_observed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["observe", "run", "threads=1", "tokens=200"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["observe run/model -> run/observe/observe.json"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run/observe/observe.json"]
    stored = read_record(ObserveFile, folder / "run/observe/observe.json")
    assert [one["nonlinearity"] for one in found["layers"]] == [
        one.nonlinearity for one in stored.layers
    ]
    assert (stored.tokens, len(stored.layers)) == (200, 2)
    assert set(stored.layers[0].parameters) == {"alpha_p", "alpha_n"}
    assert 0 < stored.layers[0].effective_rank <= 48
    written = (folder / "run/observe/observe.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (folder / "run/observe/observe.json").stat().st_mtime_ns == written
    assert "nonlinearity" in capsys.readouterr().out
    assert main([*command[:-1], "tokens=100"]) == 0
    assert read_record(ObserveFile, folder / "run/observe/observe.json").tokens == 100
    assert main(["observe", "nothing"]) == 1
    assert main(["observe", "run", "--out", "x"]) == 1


def test_checkpoints_are_observed_and_resumed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_decoder(folder / "run" / "model")
    store = Checkpoints(folder / "run/checkpoints", 9, DistributedContext(torch.device("cpu")))
    updater = ShardedOptimizer(model, lambda shard: torch.optim.SGD(model.parameters()))
    for step in (5, 10):
        with torch.no_grad():
            model.model.layers[0].mlp.act_fn.alpha_p.add_(0.5)  # type: ignore[operator, union-attr]
        store.save(step, model, updater, "")
    save_decoder(model, folder / "run" / "model")
    command = ["observe", "run", "checkpoints=all", "threads=1", "tokens=64"]
    assert main(command) == 0
    steps = folder / "run/observe/steps"
    files = [read_record(ObserveFile, path) for path in sorted(steps.iterdir())]
    assert [one.step for one in files] == [5, 10]
    first, second = (one.layers[0].parameters["alpha_p"].mean for one in files)
    assert second > first > 0.8
    # The last checkpoint has the weights of the model.
    model_file = read_record(ObserveFile, folder / "run/observe/observe.json")
    assert model_file.layers == files[1].layers
    written = (steps / "step-00000005.json").stat().st_mtime_ns
    (steps / "step-00000010.json").unlink()
    assert main(command) == 0
    assert (steps / "step-00000005.json").stat().st_mtime_ns == written
    assert (steps / "step-00000010.json").is_file()
    shutil.rmtree(folder / "run" / "checkpoints")
    capsys.readouterr()
    assert main(command) == 1
    assert "holds no checkpoints" in capsys.readouterr().err


def test_a_text_of_the_user(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ['{"text": "The river is wide."}', '{"text": "Trees grow."}']
    (folder / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "mine.txt").write_text("The river is wide.", encoding="utf-8")
    assert main(["observe", "run", "threads=1", "tokens=200"]) == 0
    held_out = (folder / "run/observe/observe.json").read_bytes()
    texts: dict[str, ObserveFile] = {}
    for name in ("mine.jsonl", "mine.txt"):
        capsys.readouterr()
        assert main(["observe", "run", f"text={name}", "threads=1"]) == 0
        path = folder / capsys.readouterr().out.splitlines()[-2]
        texts[name] = read_record(ObserveFile, path)
    assert (texts["mine.jsonl"].text, texts["mine.jsonl"].documents) == ("mine.jsonl", 2)
    assert texts["mine.txt"].documents == 1
    # The results of other texts have files of their own, which the page does not read.
    assert (folder / "run/observe/observe.json").read_bytes() == held_out
    assert len(list((folder / "run/observe").glob("text-*.json"))) == 2
    (folder / "bad.jsonl").write_text('{"text": 3}\n', encoding="utf-8")
    for name, said in (
        ("bad.jsonl", "line 1"), ("gone.jsonl", "not a file"), ("empty.txt", "no text"),
    ):  # fmt: skip
        (folder / "empty.txt").write_text("", encoding="utf-8")
        capsys.readouterr()
        assert main(["observe", "run", f"text={name}", "threads=1"]) == 1
        assert said in capsys.readouterr().err


def test_sparsity_is_calibrated_on_another_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run on its train split, of a text without a run on its first half; too short a text has none."""
    from tests.unit.evaluate.test_evaluate_command import other_model

    assert main(["observe", "run", "threads=1"]) == 0
    stored = read_record(ObserveFile, folder / "run/observe/observe.json")
    sparsity = stored.sparsity
    assert sparsity is not None
    assert (stored.text, sparsity.calibration) == ("held-out split", "train split")
    assert 0.0 < sparsity.share < 1.0
    shares = [layer.skippable_share or 0.0 for layer in stored.layers]
    assert sparsity.share == pytest.approx(sum(shares) / 2)
    assert f"{sparsity.share:.1%} of the units are skippable" in capsys.readouterr().out
    other_model(folder / "other")
    (folder / "long.txt").write_text("The river is wide. " * 40, encoding="utf-8")
    (folder / "short.txt").write_text("The river is wide.", encoding="utf-8")
    for name, known in (("long.txt", True), ("short.txt", False)):
        assert main(["observe", "other", f"text={name}", "threads=1", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out).values()
        assert (found["sparsity"] is not None) == known
        assert (found["layers"][0]["skippable_share"] is not None) == known
        if known:
            assert found["sparsity"]["calibration"] == "first half of long.txt"
            assert found["sparsity"]["calibration_tokens"] < found["tokens"]


def test_plasticity_of_checkpoints_and_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stamm.observe import job, plasticity, section

    short = partial(plasticity.plasticity_loss, steps=4)
    monkeypatch.setattr(job, "plasticity_loss", short)
    model = load_decoder(folder / "run" / "model")
    store = Checkpoints(folder / "run/checkpoints", 9, DistributedContext(torch.device("cpu")))
    updater = ShardedOptimizer(model, lambda shard: torch.optim.SGD(model.parameters()))
    store.save(5, model, updater, "")
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 0
    layers = (folder / "run/observe/observe.json").read_bytes()
    command = ["observe", "run", "probe=plasticity", "checkpoints=all", "threads=1"]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    checkpoint, last = capsys.readouterr().out.splitlines()
    assert checkpoint.endswith("-> run/observe/steps/step-00000005-plasticity.json")
    assert last == "observe run/model -> run/observe/plasticity.json"
    assert main(command) == 0
    assert "new weights" in capsys.readouterr().out
    assert (folder / "run/observe/observe.json").read_bytes() == layers
    paths = [
        folder / "run/observe" / name
        for name in ("plasticity.json", "steps/step-00000005-plasticity.json")
    ]
    found = [read_record(PlasticityFile, path) for path in paths]
    assert [file.step for file in found] == [None, 5]
    # The checkpoint has the weights of the model.
    assert found[0].final_loss == found[1].final_loss < found[0].initial_loss
    assert found[0].fresh_loss not in (None, found[0].final_loss)
    assert found[1].fresh_loss is None
    written = paths[1].stat().st_mtime_ns
    paths[0].unlink()
    assert main([*command, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [
        "run/observe/steps/step-00000005-plasticity.json", "run/observe/plasticity.json",
    ]  # fmt: skip
    assert paths[1].stat().st_mtime_ns == written
    shutil.copytree(
        folder / "run", folder / "study/arms/b", ignore=shutil.ignore_patterns("receipts")
    )
    (folder / "study/arms/b/config.json").unlink()
    page = write_report(folder / "study", folder / "page.html").read_text(encoding="utf-8")
    for anchor in ('id="plasticity"', 'id="outliers"', 'id="observed"'):
        assert anchor in page
    assert "Saturated" not in page
    monkeypatch.setattr(section, "SATURATED", found[0].final_loss + 0.01)
    page = write_report(folder / "study", folder / "page.html").read_text(encoding="utf-8")
    assert "nats: the targets are learned almost entirely): b." in page
    (folder / "mine.txt").write_text("The river is wide.", encoding="utf-8")
    assert main([*command[:3], "text=mine.txt", "threads=1"]) == 0
    assert len(list((folder / "run/observe").glob("plasticity-text-*.json"))) == 1


def test_a_long_text_is_observed_in_contexts_up_to_the_tokens(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a" * 50, encoding="utf-8")
    (tmp_path / "two.jsonl").write_text('{"text": "%s"}\n{"text": "bbb"}\n' % ("a" * 20))

    def lengths(name: str, tokens: int | None, most: int | None = None) -> list[int]:
        settings = ObserveConfig(tokens=tokens)
        text = text_of_file(
            settings, tmp_path / name, lambda t: list(t.encode()), [1], 8, most_contexts=most
        )
        assert tokens is None or text.tokens <= tokens
        assert text.documents == name.count("two") + 1
        return [len(sequence) - 1 for sequence in text.sequences]

    # 51 ids with the prefix: 50 predictions, none of them twice and none left out.
    assert lengths("long.txt", None) == [8, 8, 8, 8, 8, 8, 2]
    assert lengths("long.txt", 20) == [8, 8, 4]
    # The first contexts of all texts come before the second one of any.
    assert lengths("two.jsonl", None) == [8, 3, 8, 4]
    assert lengths("two.jsonl", 13) == [8, 3, 2]
    assert lengths("two.jsonl", None, most=1) == [8, 3]


def test_an_effective_rank_that_the_tokens_bound_is_withheld(folder: Path) -> None:
    """48 units need 192 tokens."""
    for tokens, known in ((191, False), (192, True)):
        assert main(["observe", "run", "threads=1", f"tokens={tokens}"]) == 0
        stored = read_record(ObserveFile, folder / "run/observe/observe.json")
        assert [layer.effective_rank is not None for layer in stored.layers] == [known] * 2


def test_a_hugging_face_folder_needs_a_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.evaluate.test_evaluate_command import other_model

    other_model(folder / "other")
    assert main(["observe", "other"]) == 2
    assert "text=FILE" in capsys.readouterr().err
    (folder / "mine.txt").write_text("The river is wide.", encoding="utf-8")
    assert main(["observe", "other", "text=mine.txt", "threads=1"]) == 0
    (path,) = (folder / "observations/other").glob("text-*.json")
    stored = read_record(ObserveFile, path)
    assert stored.layers[0].observed == "gate pre-activation"
    assert main(["observe", "other", "text=mine.txt", "checkpoints=all"]) == 1


def test_weights_that_are_not_finite_are_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_decoder(folder / "run" / "model")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("inf")  # type: ignore[index, union-attr]
    save_decoder(model, folder / "run" / "model")
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 1
    assert "layer 1 has activations that are not finite" in capsys.readouterr().err


def test_results_of_other_weights_are_kept(folder: Path) -> None:
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 0
    before = read_json(folder / "run/observe/observe.json")
    model = load_decoder(folder / "run" / "model")
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    save_decoder(model, folder / "run" / "model")
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 0
    kept = folder / "run" / f"observe-{before['model_sha256'][:8]}" / "observe.json"
    assert read_json(kept) == before
    write_json(folder / "run/observe/observe.json", {"schema": 1})
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 0


def test_the_page_shows_observed_layers(folder: Path) -> None:
    assert main(["observe", "run", "threads=1", "tokens=64"]) == 0
    study = folder / "study"
    # Without receipts: the records are edited below.
    shutil.copytree(folder / "run", study / "arms" / "b", ignore=shutil.ignore_patterns("receipts"))
    stored = read_json(folder / "run/observe/observe.json")
    stored["text"] = "<script>alert(1)</script>"
    write_json(study / "arms/b/observe/observe.json", stored)
    (study / "arms/b/config.json").unlink()
    page = write_report(study, folder / "page.html").read_text(encoding="utf-8")
    assert 'id="observe"' in page
    assert 'id="observed"' in page
    assert "<script>" not in page
    shutil.rmtree(study / "arms/b/observe")
    page = write_report(study, folder / "page.html").read_text(encoding="utf-8")
    assert 'id="observe"' not in page
    stored["model_sha256"] = "0" * 64
    write_json(study / "arms/b/observe/observe.json", stored)
    with pytest.raises(DataError, match="was made from weights"):
        write_report(study, folder / "page.html")


def test_the_runs_of_a_comparison_are_observed_by_depth(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder / "compared"
    for name in ("tokenizer", "pack"):
        shutil.copytree(folder / "run" / name, root / name)
    config = load_decoder(folder / "run" / "model").config
    settings = {
        "arms": [{"name": "xielu"}, {"name": "relu"}], "baseline": "relu", "seeds": [1, 2, 3],
        "matched": {"kind": "EqualParameters"}, "tuning": {"length": 1.0}, "confidence": 0.95,
    }  # fmt: skip
    write_json(root / "config.json", {"schema": 1, "config": settings})
    summary = {
        "schema": 1, "parameters": 1, "steps": 2, "trained_tokens": 9, "epochs": 0.1, "flops": 1.0,
        "decay_start_step": 1,
    }  # fmt: skip
    for name in ("xielu", "relu"):
        for seed in (1, 2):
            arm = root / "final" / name / str(seed)
            for place in (arm, arm / "averaged"):
                model = replace(config, ffn=PlainFFN(width=48, activation=name))
                drawn = seed if place == arm else seed + 10
                save_decoder(build_decoder(model, seed=drawn), place / "model")
            write_json(arm / "summary.json", summary)
    # An arm whose loss rose diverged.
    lines = ['{"step": 1, "train/loss_nats": 3.0}', '{"step": 2, "train/loss_nats": 9.0}']
    lost = root / "final/relu/2/metrics.jsonl"
    lost.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["observe", "compared", "threads=1", "tokens=64"]
    assert main([*command, "probe=plasticity"]) == 1
    assert "compared is a comparison" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == (
        "observe compared/final/xielu/1/averaged/model -> "
        "compared/final/xielu/1/averaged/observe/observe.json"
    )
    assert shown[3:] == ["compared/observe_comparison.json"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diverged"] == ["relu/2"]
    found = read_record(ObserveComparisonFile, root / "observe_comparison.json")
    assert [(arm.name, arm.seeds) for arm in found.arms] == [("xielu", (1, 2)), ("relu", (1,))]
    each = [
        read_record(ObserveFile, root / f"final/xielu/{seed}/averaged/observe/observe.json")
        for seed in (1, 2)
    ]
    assert found.identities["xielu/2"] == each[1].identity
    by_name = {one.name: one for one in found.arms[0].measures}
    first = by_name["nonlinearity"].layers[0]
    assert first is not None
    assert first.mean == pytest.approx(sum(one.layers[0].nonlinearity or 0 for one in each) / 2)
    assert by_name["alpha_p"].layers[0] is not None
    assert main(command) == 0
    assert "relu (relu), seeds (1,)" in capsys.readouterr().out
