"""The replay recipe: newer robots.txt files are read for the agents of the finished corpus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import write_json
from stamm.base.schema import write_record
from stamm.corpus.config import PackConfig, ReplayConfig
from stamm.corpus.consent.agents import APERTUS_AGENTS
from stamm.corpus.consent.config import ConsentConfig
from stamm.recipes.replay import ReplayRecipe, next_commands
from stamm.runs.records import ConfigFile, ManifestFile

TRAINING = ConsentConfig(agents=("package:training",))


def finish(run: Path, config: dict[str, object]) -> Path:
    """The files of a finished run that the recipe looks for."""
    for name in ("corpus/summary.json", "tokens/index-00000.parquet", "pack/manifest.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    write_json(run / "manifest.json", {"state": "complete", "sessions": [], "libraries": {}})
    write_json(run / "config.json", {"config": config})
    return run


def replayed(run: Path, *agents: str, role: str = "robots") -> ReplayConfig:
    """The configuration of the replay step with one newer file, of robots.txt or of requests."""
    file = run.parent / role
    file.touch()
    given: dict[str, Any] = {role: (str(file),)}
    words = replace(ReplayConfig(agents=agents), **given)
    recipe = ReplayRecipe(run=str(run), replay=words, pack=PackConfig())
    config = recipe.steps(run.parent / "again")[0].config
    assert isinstance(config, ReplayConfig)
    return config


def test_agents_are_those_of_the_finished_corpus(tmp_path: Path) -> None:
    run = finish(tmp_path / "run", {"corpus": {"consent": to_plain(TRAINING)}})
    assert replayed(run).agents == TRAINING.agents != APERTUS_AGENTS
    assert replayed(run).consent.agents_source == TRAINING.agents_source != ""
    assert replayed(run, "mybot").agents == ("mybot",)


def test_agents_of_a_corpus_that_was_replayed_before(tmp_path: Path) -> None:
    run = finish(tmp_path / "run", {"corpus": {"consent": to_plain(TRAINING)}})
    plain: dict[str, object] = {"run": str(run), "replay": to_plain(ReplayConfig())}
    later = finish(tmp_path / "later", plain)
    assert replayed(later).agents == TRAINING.agents
    own = to_plain(ReplayConfig(agents=("mybot",)))
    finish(later, plain | {"replay": own})
    assert replayed(later).agents == ("mybot",)


@pytest.mark.parametrize("run", ["gone", "later"])
def test_agents_that_are_not_known_must_be_given(tmp_path: Path, run: str) -> None:
    plain: dict[str, object] = {"run": str(tmp_path / run), "replay": to_plain(ReplayConfig())}
    later = finish(tmp_path / "later", plain)
    with pytest.raises(ConfigError, match=r"does not record which agents .* \(replay\.agents\)"):
        replayed(later)
    assert replayed(later, "mybot").agents == ("mybot",)
    assert replayed(later, role="deletions").agents == ()  # no robots.txt is read


@pytest.mark.parametrize(
    ("config", "command", "said"),
    [
        ({"arms": [], "pack": None}, ("stamm", "run", "my recipe.py", "seed=3"), "stamm run 'my recipe.py' pack="),
        ({"arms": [], "pack": None}, ("stamm", "compare", "smoke"), "stamm compare smoke pack="),
        ({"corpus": {}}, ("stamm", "run", "corpus.demo"), "stamm run pretrain.llama_1b_xielu pack="),
        ({"arms": [], "pack": None}, (), "stamm run pretrain.llama_1b_xielu pack="),
    ],
)  # fmt: skip
def test_the_next_command_trains_as_the_finished_run_did(
    tmp_path: Path, config: dict[str, object], command: tuple[str, ...], said: str
) -> None:
    trained, root = tmp_path / "trained", tmp_path / "replayed"
    for folder, recipe, plain in ((trained, "demo", config), (root, "corpus.replay", {"run": str(trained)})):  # fmt: skip
        folder.mkdir()
        write_record(folder / "config.json", ConfigFile, {"recipe": recipe, "config": plain})
    write_record(trained / "manifest.json", ManifestFile, {"command": command})
    (line,) = next_commands(root)
    assert line == f"{said}{root / 'pack'}"
