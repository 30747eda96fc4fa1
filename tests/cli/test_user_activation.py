"""An activation of the user's own, as docs/extending/activation.md shows it, from recipe to page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stamm.activations.catalog.registry import load_spec
from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import read_json, write_json
from stamm.cli.main import main
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.serialization import load_decoder
from stamm.pretrain.next_token import NextToken
from stamm.pretrain.steps import activation_steps
from stamm.recipes.comparisons import activations
from stamm.recipes.demo import demo
from stamm.recipes.load import load
from tests.unit.untrained_run import untrained_run

TUTORIAL = Path(__file__).parents[2] / "docs" / "extending" / "activation.md"
RECIPE = """
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig

def tiny() -> PretrainConfig:
    return PretrainConfig(
        model=DecoderConfig(
            vocab_size=352, d_model=32, num_layers=2, num_heads=2, num_kv_heads=2,
            max_context=160, ffn=PlainFFN(width=48),
        ),
        context=16, batch=(BatchStage(size=4),), micro_batch=4, sequences=12,
        engine=EngineConfig(
            device="cpu", threads=1, compile="off", kernels="stamm", checkpoint_every=1
        ),
    )
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the tutorial's mine.py."""
    found = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.S)
    assert found
    (tmp_path / "mine.py").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed corpus of a few sentences, its tokenizer beside it."""
    return untrained_run(tmp_path_factory.mktemp("corpus"))["pack"]


def _run(pack: Path, *words: str, code: int = 0) -> None:
    Path("recipe.py").write_text(RECIPE, encoding="utf-8")
    assert main(["run", "recipe.py", f"pack={pack}", "--out", "run", *words]) == code


def test_a_reference_becomes_the_spec_in_the_configuration(place: Path) -> None:
    spec = load_spec("mine.py:MINE")
    config = override(DecoderConfig(), ["ffn.activation=mine.py:MINE"])
    assert config.ffn == PlainFFN(activation=spec)
    assert config.ffn.spec is spec
    (place / "derived" / "mine").mkdir(parents=True)
    write_json(place / "derived" / "mine" / "spec.json", to_plain(spec))
    for reference in ("mine.py", "derived/mine", "derived/mine/spec.json"):
        assert override(DecoderConfig(), [f"ffn.activation={reference}"]) == config
    (place / "mine.py").unlink()
    assert from_plain(DecoderConfig, to_plain(config)) == config
    assert override(config, ["ffn.activation=xiprelu"]).ffn.activation == "xiprelu"
    with pytest.raises(ConfigError, match=r"your own: derived/mine"):
        override(config, ["ffn.activation=mine"])


def test_a_stored_configuration_never_executes_a_file(place: Path) -> None:
    plain: dict[str, Any] = to_plain(DecoderConfig())
    plain["ffn"]["activation"] = "mine.py:MINE"
    (place / "mine.py").write_text("raise SystemExit('executed')")
    with pytest.raises(ConfigError, match="which a stored configuration never does"):
        from_plain(DecoderConfig, plain, "decoder.json")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("mine.py:MIEN", "Did you mean 'MINE'"),
        ("xielo", "Did you mean 'xielu'"),
        ("gone.py:MINE", "gone.py does not exist"),
        ("derived/gone", "derived/gone does not exist"),
        ("wrong.py:TEXT", "is not a Spec of an activation"),
        ("clash.py:MINE", "the name 'relu' is taken by"),
        ("named.py:MINE", "'My Own' is not a name"),
        ("gap.py:MINE", "lies in no piece"),
        ("gated.py:MINE", "PlainFFN.activation = 'gated' needs a gate: use GatedFFN"),
    ],
)
def test_a_wrong_reference_is_refused(place: Path, reference: str, said: str) -> None:
    source = (place / "mine.py").read_text()
    (place / "wrong.py").write_text("TEXT = 'relu'\n")
    for file, old, new in (
        ("clash.py", '"mine"', '"relu"'),
        ("named.py", '"mine"', '"My Own"'),
        ("gap.py", "x > 0", "x > 1"),
        ("gated.py", '"mine"', '"gated", arity=Gated(order=2)'),
    ):
        imports = "from stamm.activations import Gated\n"
        (place / file).write_text(imports + source.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        override(DecoderConfig(), [f"ffn.activation={reference}"])
    assert said in caught.value.line()


def test_recipes_check_it_once_before_training(place: Path) -> None:
    study_command, comparison_command = re.findall(
        r"^stamm \w+ \w+ (.*)$", TUTORIAL.read_text(), re.M
    )
    study = override(demo(), study_command.split())
    first, *others = study.steps()
    assert (first.name, first.folder) == ("activation.mine", "activations/mine")
    assert "activation" not in {step.job for step in others}
    comparison = override(activations(), comparison_command.split())
    assert comparison.steps()[0].name == "activation.mine"
    assert comparison.runs()["mine"].model.ffn.spec.name == "mine"
    other = load_spec("mine.py:MINE")
    source = (place / "mine.py").read_text().replace("2*a*x", "3*a*x")
    (place / "mine.py").write_text(source)
    with pytest.raises(ConfigError, match="two activations are called 'mine'"):
        activation_steps([PlainFFN(activation=other), PlainFFN(activation="mine.py:MINE")])
    assert activation_steps([GatedFFN(), PlainFFN()]) == []


@pytest.mark.slow
def test_it_trains_resumes_and_is_evaluated_without_its_file(
    place: Path, pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step_loss, calls = NextToken.step_loss, iter(range(99))

    def interrupted(self: NextToken, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("killed")
        return step_loss(self, *arguments)

    monkeypatch.setattr(NextToken, "step_loss", interrupted)
    assert main(["derive", "mine.py:MINE"]) == 0
    reference = "model.ffn.activation=mine.py:MINE"
    with pytest.raises(RuntimeError, match="killed"):
        _run(pack, "model.ffn.activation=derived/mine")
    log = Path("run", "log", "run.log").read_text()
    assert "Activation mine: fused kernel" in log or "Activation mine: torch functions" in log
    source = (place / "mine.py").read_text()
    (place / "mine.py").write_text(source.replace("2*a*x", "3*a*x"))
    _run(pack, reference, code=2)
    said = capsys.readouterr().err
    assert "activation.pieces.0.formula: '2*a*x + 0.5' there, '3*a*x + 0.5' requested" in said
    (place / "mine.py").unlink()
    _run(pack, "model.ffn.activation=run/activations/mine")
    metrics = Path("run", "arms", "mine", "metrics.jsonl").read_text().splitlines()
    assert [line[:9] for line in metrics] == [f'{{"step":{step}' for step in (1, 2, 3)]
    accuracy = read_json(Path("run", "activations", "mine", "accuracy.json"))
    described = read_json(Path("run", "arms", "mine", "model", "decoder.json"))
    assert described["activation"]["content_hash"] == accuracy["content_hash"]
    decoder = load_decoder(Path("run", "arms", "mine", "model"))
    assert decoder.config.ffn.spec.content_hash == accuracy["content_hash"]
    assert main(["evaluate", "run/arms/mine", "tasks=held_out"]) == 0
    assert main(["export", "run/arms/mine", "prompt_tokens=8", "sample_tokens=8"]) == 0
    exported = Path("run", "arms", "mine", "export", "transformers")
    assert read_json(exported / "parity.json")["passed"]
    assert "import stamm" not in (exported / "modeling_stamm.py").read_text()
    assert load(exported).model.config.ffn.spec.content_hash == accuracy["content_hash"]
    assert "mine" in Path("run", "report.html").read_text()
