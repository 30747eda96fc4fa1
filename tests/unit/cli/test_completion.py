"""Tab completion in a real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stamm.cli.main import VERBS, main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "stamm.bash"
    with pytest.MonkeyPatch.context() as patch, file.open("w") as stream:
        patch.setattr("sys.stdout", stream)
        assert main(["env", "--completion", "bash"]) == 0
    return file


def _completed(script: Path, *words: str) -> list[str]:
    listed = " ".join(f"'{word}'" for word in words)
    lines = (
        f"source '{script}'",
        f"COMP_WORDS=({listed}) COMP_CWORD={len(words) - 1}",
        "_stamm",
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
    )
    bash = ["bash", "--norc", "-u", "-c", "\n".join(lines)]
    done = subprocess.run(bash, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_verbs_options_recipes_and_activations_are_completed(script: Path) -> None:
    assert set(_completed(script, "stamm", "")) >= {verb.name for verb in VERBS}
    assert _completed(script, "stamm", "verif") == ["verify"]
    assert _completed(script, "stamm", "run", "align.s") == ["align.sft", "align.simpo"]
    assert _completed(script, "stamm", "run", "demo", "--res") == ["--restart"]
    assert "xielu" in _completed(script, "stamm", "show", "xi")
    assert _completed(script, "stamm", "ls", "rec") == ["recipes"]
    assert _completed(script, "stamm", "compare", "evidence_sm") == ["evidence_smoke"]
    assert _completed(script, "stamm", "search", "search.s") == ["search.smoke"]


def test_recipes_are_completed_where_they_can_be_named(script: Path) -> None:
    refused = [("compare", "demo"), ("search", "demo"), ("export", "demo")]
    assert [_completed(script, "stamm", *words) for words in refused] == [[], [], []]


def test_files_are_completed_where_no_word_fits(script: Path) -> None:
    assert _completed(script, "stamm", "report", "runs/") == []
    assert "complete -o default -F _stamm stamm" in script.read_text()


def test_zsh_reads_the_same_function(capsys: pytest.CaptureFixture[str], script: Path) -> None:
    assert main(["env", "--completion", "zsh"]) == 0
    header, function = capsys.readouterr().out.split("\n", 1)
    assert "bashcompinit" in header
    assert function == script.read_text()


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit codes: 0 done, 1 a problem" in said
    assert "--completion bash" in said
