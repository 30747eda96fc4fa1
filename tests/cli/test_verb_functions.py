"""The function of a verb has the verb's arguments, and leaves the same files."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stamm
from stamm.base.files import write_json
from stamm.cli.main import VERBS, main, verb_parser
from stamm.recipes.execute import RecipeRun
from tests.cli.test_python_page import TINY
from tests.unit.release.conftest import finished_run

NAMES = (
    "audit", "check", "compare", "derive", "emit", "evaluate", "export", "observe", "release", "report", "run", "sample",
    "score", "search", "steer", "verify",
)  # fmt: skip
# How results are printed, which a function leaves to its caller.
PRINTING = {"help", "json"}
# What a caller in Python gives in place of a terminal: a progress line, a callback.
CALLS = {"quiet", "before", "log", "settings", "written"}
ARM = "run/arms/xielu"
TIMES = ("seconds", "ended", "self_sha256")


def _actions(name: str) -> list[argparse.Action]:
    (verb,) = [verb for verb in VERBS if verb.name == name]
    return [action for action in verb_parser(verb)._actions if action.dest not in PRINTING]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_has_the_arguments_and_defaults_of_its_verb(name: str) -> None:
    parameters = inspect.signature(getattr(stamm, name)).parameters
    for action in _actions(name):
        parameter = parameters[action.dest]
        if action.nargs in ("*", "+"):
            assert parameter.kind is parameter.VAR_POSITIONAL
        elif action.option_strings:
            assert parameter.kind is parameter.KEYWORD_ONLY
            required = parameter.default is parameter.empty
            assert required == action.required
            assert required or (parameter.default or None) == (action.default or None)
        else:
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    assert set(parameters) - CALLS == {action.dest for action in _actions(name)}


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_keywords_where_the_verb_takes_key_value(name: str) -> None:
    parameters = inspect.signature(getattr(stamm, name)).parameters.values()
    takes = any(action.dest in ("changes", "rest") for action in _actions(name))
    assert takes == any(one.kind is one.VAR_KEYWORD for one in parameters)


def test_a_package_with_the_name_of_a_verb_is_called_and_imported_from() -> None:
    import stamm.audit.config as named
    from stamm.audit import config

    assert named is config is stamm.audit.config  # type: ignore[attr-defined]
    assert inspect.signature(stamm.audit).return_annotation == "Results[Audited]"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, prompts, answers and passages."""
    folder = tmp_path_factory.mktemp("verbs")
    arm = finished_run(folder / "run")
    shutil.rmtree(arm / "evaluate")  # written by hand for other tests
    write_json(arm / "config.json", {"schema": 1, "kind": "import", "config": {}})
    rows = {
        "prompts": [{"prompt": "The river"}, {"prompt": "Trees"}],
        "answers": [{"prompt": "1+1", "completion": "2", "sum": "2"}],
        "passages": [
            {"text": "The river is wide and the road is long. " * 4, "repeats": 2},
            {"text": "Der Fluss ist breit und der Weg ist weit. " * 4, "repeats": 0},
        ],
    }
    for name, lines in rows.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def _files(folder: Path) -> dict[str, Any]:
    """Every file below `folder` but logs; receipts without their times."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name.startswith("tiny/") and path.name in ("manifest.json", "report.html"):
            continue  # when, and how fast
        if "steps" in path.parts:
            continue
        if path.suffix == ".json" and "receipts" in path.parts:
            record = json.loads(path.read_text())
            found[name] = {key: value for key, value in record.items() if key not in TIMES}
        elif "log" not in path.parts and "lock" not in path.name:
            found[name] = path.read_bytes()
    return found


CASES: dict[str, tuple[list[str], Callable[[], object]]] = {
    "evaluate": (
        [ARM, "tasks=held_out", "context=64"],
        lambda: stamm.evaluate(ARM, "context=64", tasks=["held_out"]),
    ),
    "observe": ([ARM, "tokens=256"], lambda: stamm.observe(ARM, tokens=256)),
    "audit": (
        [ARM, "passages=passages.jsonl", "prefix_tokens=8", "new_tokens=4"],
        lambda: stamm.audit(ARM, passages="passages.jsonl", prefix_tokens=8, new_tokens=4),
    ),
    "export": (
        [ARM, "target=gguf", "quantization=F32", "--out", "exported"],
        lambda: stamm.export(ARM, target="gguf", quantization="F32", out="exported"),
    ),
    "release": (["run", "--out", "released"], lambda: stamm.release("run", out="released")),
    "report": (["run", "redact=true"], lambda: stamm.report("run", redact=True)),
    "sample": (
        [ARM, "prompts=prompts.jsonl", "n=2", "max_new_tokens=4"],
        lambda: stamm.sample(ARM, prompts="prompts.jsonl", n=2, max_new_tokens=4),
    ),
    "score": (
        ["answers.jsonl", "reward=Number", "reward.column=sum"],
        lambda: stamm.score("answers.jsonl", reward="Number", **{"reward.column": "sum"}),
    ),
    "check": (
        ["relu", "--write-golden", "golden", "--quick"],
        lambda: stamm.check("relu", write_golden="golden", quick=True),
    ),
    "run": (
        ["pretrain.llama_1b_xielu", *TINY, "pack=run/pack", "--out", "tiny"],
        lambda: stamm.run("pretrain.llama_1b_xielu", *TINY, pack="run/pack", out="tiny"),
    ),
}


QUICK = ("evaluate", "observe", "score")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_the_function_and_the_command_line_leave_equal_files(
    name: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, call = CASES[name]
    before = _files(finished)
    for place in ("line", "python"):
        shutil.copytree(finished, tmp_path / place)
    monkeypatch.chdir(tmp_path / "line")
    assert main([name, *words]) == 0
    monkeypatch.chdir(tmp_path / "python")
    call()
    written = _files(tmp_path / "line")
    assert set(written) > set(before)
    assert _files(tmp_path / "python") == written


@pytest.mark.slow
def test_a_derivation_is_the_same_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "line").mkdir()
    (tmp_path / "python").mkdir()
    monkeypatch.chdir(tmp_path / "line")
    pieces = ["x > 0: 2*a*x + 1", "x <= 0: exp(x)"]
    assert main(["derive", *pieces, "--parameter", "a=0.8:softplus", "--name", "mine"]) == 0
    monkeypatch.chdir(tmp_path / "python")
    made = stamm.derive(*pieces, parameter="a=0.8:softplus", name="mine")
    assert not made.before and made.receipt is not None
    assert _files(tmp_path / "python") == _files(tmp_path / "line")
    assert stamm.derive(*pieces, parameter=["a=0.8:softplus"], name="mine").before


@pytest.mark.parametrize(
    ("name", "overrides"), [("compare", ("seeds=[1,2,3]",)), ("search", ("screen.gain=[0.1,9]",))]
)
def test_runs_of_several_runs_begin_alike(
    name: str, overrides: tuple[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[str, str]] = []

    def execute(self: RecipeRun, *, quiet: bool = False, jobs: int = 1) -> None:
        began.append((str(self.root), f"{self.recipe} {self.steps}"))
        self.folder.open()
        raise KeyboardInterrupt

    monkeypatch.setattr(RecipeRun, "execute", execute)
    monkeypatch.chdir(tmp_path)
    assert main([name, "smoke", *overrides, "--out", "line", "--jobs", "2"]) == 130
    with pytest.raises(KeyboardInterrupt):
        getattr(stamm, name)("smoke", *overrides, out="python", jobs=2)
    (line, planned), (python, called) = began
    assert (line, python) == ("line", "python")
    assert planned == called
    assert (tmp_path / "line/config.json").read_bytes() == (
        tmp_path / "python/config.json"
    ).read_bytes()


@pytest.mark.slow
def test_a_dry_run_tells_the_places_and_writes_nothing(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    before = _files(finished)
    arm = Path(ARM)
    assert stamm.evaluate(ARM, dry_run=True).folders == {arm: arm / "evaluate"}
    assert stamm.observe(ARM, dry_run=True).places == {arm / "model": arm / "observe/observe.json"}
    assert stamm.audit(ARM, "passages=passages.jsonl", dry_run=True).places == {arm: arm / "audit"}
    exports = stamm.export(ARM, dry_run=True)
    assert exports.plans[arm].files and exports.places == {arm: arm / "export"}
    assert stamm.report("run", dry_run=True).file == Path("run/report.html")
    release = stamm.release("run", out="released", dry_run=True)
    assert release.files["release.json"] > 0
    derived = stamm.derive("all x: 7*x", name="seven", dry_run=True)
    assert derived.receipt is None and Path("derived/seven/seven.py") in derived.files
    for name in ("run", "compare", "search"):
        recipe = "demo" if name == "run" else "smoke"
        planned = getattr(stamm, name)(recipe, dry_run=True).execution
        assert len(planned.pending()) == len(planned.steps) > 2
    assert _files(finished) == before
    assert capsys.readouterr().out == ""


def test_records_are_read_by_model(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    exports = stamm.export(ARM, dry_run=True)
    assert exports[ARM].parities == exports.only.parities != ()
    several = stamm.observe(ARM, dry_run=True)
    several.places[Path("other")] = Path("other.json")
    with pytest.raises(stamm.RunError, match="there are results of 2 models"):
        _ = several.only


@pytest.mark.slow
def test_verify_and_check_return_what_they_find(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    folder = stamm.release("run", out=tmp_path / "released").folder
    sound = stamm.verify(folder, all=True)
    assert not sound.problems and sound.signature is None
    assert sound.record == stamm.release("run", out=folder).record
    (folder / "release.json").write_text("{}")
    assert stamm.verify(folder).problems[0].file == "release.json"
    mask = stamm.check("goldfish", "run", k=7).goldfish
    assert mask is not None and mask.config.k == 7
    with pytest.raises(stamm.ConfigError, match="goldfish takes no flags"):
        stamm.check("goldfish", "run", quick=True)


def test_a_model_is_looked_up_by_its_name_too(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    exports = stamm.export(ARM, dry_run=True)
    assert ARM in exports and exports[ARM] == exports[Path(ARM)]  # type: ignore[index]
    assert "run/arms/other" not in exports


def test_the_folder_of_a_release_is_printed_before_an_upload_that_fails(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> str:
        raise stamm.RunError("the Hub is not reached")

    monkeypatch.setattr("stamm.release.verb.push_folder", fails)
    monkeypatch.setattr("stamm.release.verb.check_repository", lambda name: None)
    monkeypatch.chdir(finished)
    out = str(tmp_path / "released")
    assert main(["release", "run", "--out", out, "--push", "me/mine"]) == 1
    assert capsys.readouterr().out.splitlines() == [out]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a continuity that is none": (
        lambda: stamm.derive("all x: 7*x", continuity="smooth", dry_run=True),  # type: ignore[call-overload]
        r"--continuity 'smooth' is not known\. Known: continuous, jump, singular",
    ),
    "a gated order that is none": (
        lambda: stamm.derive("all x: 7*x", gated=3, dry_run=True),  # type: ignore[call-overload]
        "--gated 3 is not 1 or 2",
    ),
    "no CPU time": (
        lambda: stamm.derive("all x: 7*x", cpu_seconds=0, dry_run=True),
        "--cpu-seconds 0 is below 1",
    ),
    "a Spec and a folder": (
        lambda: stamm.derive(stamm.activations.get("relu"), out="mine"),  # type: ignore[call-overload]
        "a Spec is derived alone, without out",
    ),
    "a Spec and a piece": (
        lambda: stamm.derive(stamm.activations.get("relu"), "all x: x"),  # type: ignore[call-overload]
        "a Spec is derived alone, without other pieces",
    ),
    "a misspelt argument of check": (
        lambda: stamm.check("relu", quik=True),
        "no setting 'quik'. Did you mean 'quick'",
    ),
    "settings of a finished comparison": (
        lambda: stamm.compare("run", seeds=[1]),
        "seeds is set, but run is a finished comparison",
    ),
    "a file without a recipe": (lambda: stamm.run(Path("mine.py")), "mine.py does not exist"),
    "a search that is no file": (lambda: stamm.search(Path("mine.py")), "mine.py does not exist"),
    "a text that is None": (
        lambda: stamm.report("run", title=None, dry_run=True),
        "title = 'None' is not text",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_would_be_ignored_or_misread_is_refused(
    name: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    call, message = REFUSED[name]
    with pytest.raises(stamm.ConfigError, match=message):
        call()


def test_a_recipe_is_executed_once_for_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def small() -> object:
        built.append(1)
        return stamm.recipes.build("compare.smoke")

    monkeypatch.chdir(tmp_path)
    planned = stamm.compare(small, seeds=[1, 2, 3], dry_run=True)  # type: ignore[arg-type]
    assert planned.root == Path("runs/small") and built == [1]


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
import stamm
for use in (lambda: stamm.score, lambda: stamm.ledger("runs/demo")):
    try:
        use()
    except stamm.RunError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.count("needs pyarrow, which is not installed. Run: pip install 'stamm[") == 2


@pytest.mark.parametrize("words", [["compare", "smoke", "--dry-run"], ["verify", "folder"]])
def test_a_plan_and_the_check_of_a_release_need_no_extra(words: list[str], tmp_path: Path) -> None:
    """What `pip install stamm` does not bring cannot be imported here."""
    code = f"""
import sys
from stamm.base.extras import EXTRA_OF
sys.modules |= dict.fromkeys(EXTRA_OF)
from stamm.cli.main import main
main({words!r})
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and "not installed" not in ran.stderr, ran.stderr
