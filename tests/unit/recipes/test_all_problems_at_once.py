"""A recipe of one arm on own text lists all of its problems at once; paths begin with "~"."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.config import home_expanded, override
from stamm.base.errors import ConfigError
from stamm.cli.main import main
from stamm.recipes.demo import demo
from stamm.recipes.resolve import resolve


def test_a_recipe_with_several_faults_lists_them_together(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from stamm.recipes.demo import demo\n\n"
        "def mine():\n"
        "    study = demo()\n"
        "    corpus = replace(study.corpus, probes=None, held_out=0.0)\n"
        "    return replace(study, corpus=corpus, arms=study.arms[:1])\n"
    )
    with pytest.raises(ConfigError) as caught:
        resolve(str(file), [])
    line = caught.value.line()
    assert "3 problems: (1) " in line
    for said in ("names no arm", "leaves no text to evaluate", "plants no passages"):
        assert said in line
    assert "Set audit=none" in line and "evaluate=none" in line


def test_overrides_with_several_faults_are_listed_together() -> None:
    with pytest.raises(ConfigError) as caught:
        override(demo(), ["pretrain.contxt=3", "corpus.held_out=much", "arms.9.name=x"])
    line = caught.value.line()
    assert line.startswith("3 problems: (1) ")
    for said in ("contxt", "'much' is not", "arms.9" if "arms.9" in line else "'9'"):
        assert said in line


def test_a_single_fault_is_reported_as_before() -> None:
    with pytest.raises(ConfigError, match=r"^corpus.held_out = 'much' is not"):
        override(demo(), ["corpus.held_out=much"])


@pytest.mark.parametrize(
    ("given", "expanded"),
    [
        ("~/a.jsonl", "/users/me/a.jsonl"),
        ("~", "/users/me"),
        ("data=~/a.jsonl,~/b.jsonl", "data=/users/me/a.jsonl,/users/me/b.jsonl"),
        ("--out=~/run", "--out=/users/me/run"),
        ("reward=~/mine.py:Mine", "reward=/users/me/mine.py:Mine"),
        ("tasks=['~/a.jsonl']", "tasks=['/users/me/a.jsonl']"),
        ("a~/b", "a~/b"),
        ("~other/b", "~other/b"),
        ("about ~/b", "about ~/b"),
    ],
)
def test_a_home_folder_is_expanded(
    given: str, expanded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    assert home_expanded(given) == expanded


def test_settings_arguments_and_recipes_have_their_home_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert override(demo(), ["corpus.inputs=~/a.jsonl"]).corpus.inputs == (f"{tmp_path}/a.jsonl",)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from stamm.recipes.demo import demo\n\n"
        "def mine():\n"
        "    study = demo()\n"
        '    return replace(study, corpus=replace(study.corpus, inputs=("~/b.jsonl",)))\n'
    )
    assert main(["show", "~/mine.py"]) == 0
    assert f'"{tmp_path}/b.jsonl"' in capsys.readouterr().out.replace("\\/", "/")
    assert main(["ls", "runs", "--in=~/runs"]) == 0
    assert str(tmp_path / "runs") in capsys.readouterr().out
