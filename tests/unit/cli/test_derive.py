"""`stamm derive` and `stamm show` for specs of the user's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stamm.activations import derived_folder
from stamm.activations.catalog.registry import load_spec
from stamm.activations.cpu_limit import cpu_limit
from stamm.activations.spec import Piece, Spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file
from stamm.cli.activation_show import spec_named
from stamm.cli.main import main

pytestmark = pytest.mark.slow  # derives a module

ROOT = Path(__file__).parents[3]
WORDS = (
    "x > 0: 2*a*x + 1", "x <= 0: exp(x)", "--parameter", "a=0.8:softplus", "--name", "bent",
)  # fmt: skip
OWN = """
from stamm.activations import Piece, Spec

ONE = Spec(name="one", title="One", pieces=(Piece(where="all x", formula="3*x**2"),), source="me")
TWO = Spec(name="two", title="Two", pieces=(Piece(where="all x", formula="5*x**4"),), source="me")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a home of its own, in which `bent` is derived."""
    folder = tmp_path_factory.mktemp("derive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(Path, "home", lambda: folder / "home")
        assert main(["derive", *WORDS]) == 0
        yield folder


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_folder_is_complete(place: Path) -> None:
    folder = place / "derived" / "bent"
    for name in derived_folder.file_names("bent"):
        assert (folder / name).exists(), name
    assert sorted(p.name for p in folder.parent.iterdir()) == ["bent"]
    receipt = json.loads((folder / "derived.json").read_text())
    assert receipt["files"] == {
        name: digest for name, digest in _files(folder).items() if name != "derived.json"
    }
    assert load_spec(str(folder)).content_hash == receipt["content_hash"]
    assert receipt["facts"]["function"][1]["formula"] == "a*x**2 + x"
    assert any("xielu" in finding["sentence"] for finding in receipt["findings"])
    assert set(receipt["accuracy"]) == {"bfloat16", "float16", "float32"}


def test_the_second_time_nothing_is_done(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _files(place / "derived")
    assert main(["derive", *WORDS]) == 0
    out = capsys.readouterr().out
    assert out.startswith("already derived")
    assert "a*x**2 + x" in out
    assert "df/da" in out
    assert _files(place / "derived") == before


def test_the_second_time_loads_neither_torch_nor_sympy(place: Path) -> None:
    code = (
        "import sys; from stamm.cli.main import main; assert main(sys.argv[1:]) == 0;"
        "print([m for m in ('torch', 'sympy', 'matplotlib') if m in sys.modules])"
    )
    done = _python("-c", code, "derive", *WORDS, folder=place)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_module_file_works_alone_and_derives_nothing(place: Path, tmp_path: Path) -> None:
    source = place / "derived" / "bent" / "bent.py"
    (tmp_path / "bent.py").write_bytes(source.read_bytes())
    code = (
        "import sys, torch; from bent import bent\n"
        "one, other = bent(), bent()\n"
        "x = torch.tensor([-2.0, 0.5], dtype=torch.float64)\n"
        "print(*one(x).tolist(), one.a is other.a)\n"
        "print('stamm.activations.derivation.derive' in sys.modules)"
    )
    done = _python("-c", code, folder=tmp_path)
    numbers, derived = done.stdout.splitlines()
    left, right, shared = numbers.split()
    assert float(left) == pytest.approx(-0.8646647167633873, rel=1e-7)
    assert float(right) == pytest.approx(0.8 * 0.25 + 0.5, rel=1e-7)
    assert (shared, derived) == ("False", "False"), done.stderr


def test_a_missed_budget_is_refused_and_nothing_is_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tanh(c*x)", "--parameter", "c=0.7:identity", "--name", "free_scale")
    assert main(["derive", *words]) == 1
    told = capsys.readouterr()
    *stages, refusal = told.err.splitlines()
    assert told.out == ""
    assert "free_scale does not hold its accuracy budget, and nothing is written" in refusal
    assert "slope_in_c is" in refusal and "c=1:softplus" in refusal
    assert all(line.startswith("[") for line in stages)
    assert not (place / "derived" / "free_scale").exists()
    assert not list((place / "home").rglob("*free_scale*"))


def test_every_stage_is_a_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", "all x: 4*x**3", "--name", "quartic", "--out", "quartic"]) == 0
    lines = capsys.readouterr().err.splitlines()
    total = len(lines)
    assert [line.split(" ")[:2] for line in lines] == [
        [f"[{i}/{total}]", "quartic:"] for i in range(1, total + 1)
    ]


def test_json_is_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", *WORDS, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["already_derived"] is True
    assert told["facts"]["parameters"][0]["constraint"] == "a = softplus(raw)"


def test_a_changed_folder_is_neither_trusted_nor_overwritten(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = place / "derived" / "bent" / "kernel.py"
    right = kernel.read_bytes()
    kernel.write_bytes(right + b"# mine\n")
    assert main(["derive", *WORDS]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert main(["derive", *WORDS, "--force", "--dry-run"]) == 0
    kernel.write_bytes(right)
    stranger = place / "derived" / "bent" / "notes.txt"
    stranger.write_text("mine")
    assert main(["derive", "all x: 7*x", "--out", "derived/bent", "--force", "--dry-run"]) == 2
    assert "notes.txt, which `stamm derive` did not write" in capsys.readouterr().err
    stranger.unlink()


def test_a_damaged_receipt_is_told_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = place / "derived" / "bent" / "derived.json"
    right = receipt.read_bytes()
    for wrong in (b"", b"[]", b"\xff", right[:-3], right.replace(b'"bfloat16"', b'"bfloat17"')):
        receipt.write_bytes(wrong)
        assert main(["derive", *WORDS]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert len(told.err.splitlines()) == 1
        assert "bent/derived.json is damaged" in told.err
        assert "--force replaces it" in told.err
        assert main(["derive", *WORDS, "--force", "--dry-run"]) == 0
        capsys.readouterr()
    receipt.write_bytes(right)
    assert main(["derive", *WORDS]) == 0


def test_what_a_kill_between_two_renames_hid_is_put_back(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, before = place / "derived" / "bent", _files(place / "derived" / "bent")
    dead = _python("-c", "import os; print(os.getpid())", folder=place).stdout.strip()
    folder.rename(folder.with_name(f".bent.{dead}.old.part"))
    folder.with_name(f".bent.{dead}.part").mkdir()
    assert main(["derive", *WORDS]) == 0
    assert capsys.readouterr().out.startswith("already derived")
    assert _files(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["bent"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", ""], "--out '' is empty"),
        (["--name", ""], "--name '' is empty"),
        (["--out", "file/mine"], "file/mine cannot be written: Not a directory"),
        (["--out", "file/deeper/mine"], "cannot be written: Not a directory"),
        (["--out", "/proc/mine"], "/proc/mine cannot be written: "),
        (["--out", "/proc/self/deeper/mine"], "/proc/self/deeper/mine cannot be written: "),
        (["--out", "/dev/null"], "/dev/null "),
        (["--out", "/dev/null/mine"], "cannot be written: Not a directory"),
        (["--out", "n" * 256], "cannot be written: File name too long"),
        (["--out", "n" * 250], "cannot be written: File name too long"),
        (["--out", "n" * 256 + "/mine"], "cannot be written: File name too long"),
        (["--out", "n/" * 2500 + "mine"], "cannot be written: File name too long"),
        (["--out", "link"], "link is a symbolic link"),
        (["--out", "dangling"], "dangling is a symbolic link"),
        (["--out", "dangling/mine"], "dangling/mine cannot be written: "),
        (["--out", "loop"], "loop is a symbolic link"),
        (["--out", "loop/mine"], "loop/mine cannot be written: "),
        (["--out", "empty/.."], "is the working directory"),
        (["--out", "empty/../../.."], "is the working directory or contains it"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stamm.activations.page.verb.derive_into", _no_work)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name, target in {"link": "empty", "dangling": "nowhere", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(target)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for more in ([], ["--dry-run"], ["--force"]):
        assert main(["derive", "all x: 7*x", *words, *more]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert says in told.err
        assert len(told.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
@pytest.mark.parametrize("closed", ["parent", "parent/mine", "parent/mine/golden"])
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_a_place_without_permission_is_refused_before_the_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    closed: str,
    mode: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stamm.activations.page.verb.derive_into", _no_work)
    Path("parent/mine/golden").mkdir(parents=True)
    Path(closed).chmod(mode)
    try:
        assert main(["derive", "all x: 7*x", "--out", "parent/mine"]) == 2
    finally:
        Path(closed).chmod(0o755)
    err = capsys.readouterr().err
    assert "parent/mine cannot be written: " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("out", ["new", "deeply/new", "empty", "a[b]*?", "empty/inner/.."])
def test_a_place_of_its_own_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["derive", "all x: 7*x", "--out", out, "--dry-run"]) == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_failure_leaves_nothing_half_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stamm.activations.derived_folder.readme_text", refuse)
    monkeypatch.setattr("stamm.activations.equivalence.compare.rediscover", lambda _: [])
    assert main(["derive", "all x: 7*x", "--name", "seven"]) == 1
    assert "no space left to write derived/seven" in capsys.readouterr().err
    assert sorted(p.name for p in (place / "derived").iterdir()) == ["bent"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tanh(x)", "--name", "silu"], "the name 'silu' is taken"),
        (["tanh(x)", "--name", "torch"], "another module called 'torch'"),
        (["tanh(x)", "--name", "kernel"], "another module called 'kernel'"),
        (["tanh(x)", "--name", "json"], "another module called 'json'"),
        (["tanh(x)", "--name", "../x"], "is not a name"),
        (["tanh(x)", "--out", "own.py"], "is not a folder"),
        (["tanh(x)", "--out", "."], "is the working directory"),
        (["x > 0: 1", "x <= 0: 0"], "jumps at x = 0"),
        (["x > 0: b", "x <= 0: 0"], "'b' is used in the formulas"),
        (["__import__('os').system('true')"], "not part of a formula"),
        (["own.py"], "own.py:ONE, own.py:TWO"),
        (["own.py:ONE", "--gated", "1"], "--gated cannot be combined"),
        (["own.py:ONE", "x"], "another THING cannot be combined"),
        (["missing.py"], "missing.py does not exist"),
        (["broken.py"], "ZeroDivisionError"),
        (["escaping.json"], "is not one line of printable text"),
    ],
)
def test_what_cannot_be_derived_is_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    (place / "own.py").write_text(OWN)
    (place / "broken.py").write_text("1 / 0\n")
    spec = Spec(
        name="e", title="x", pieces=(Piece(where="all x", formula="5*x"),), source="a stranger"
    )
    escaping = {**to_plain(spec), "title": 'x"""\nprint(1)\n"""'}
    (place / "escaping.json").write_text(json.dumps(escaping))
    assert main(["derive", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert len(told.err.splitlines()) == 1
    assert not (place / "derived" / "silu").exists()


def test_a_derivation_without_end_is_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["all x: abs(tanh(x - k))", "--parameter", "k=0.5:identity", "--name", "endless"]
    before = signal.getsignal(signal.SIGPROF)
    assert main(["derive", *words, "--cpu-seconds", "2"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "'all x: abs(tanh(x - k))' was not derived in 2 s of CPU time" in last
    assert "--cpu-seconds 20" in last
    assert not (place / "derived" / "endless").exists()
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_dry_run_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "own.py").write_text(OWN)
    before = _files(place / "derived")
    assert main(["derive", "own.py:ONE", "--name", "third", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "derived/third/third.py" in out
    assert "3*x**2" in out
    assert _files(place / "derived") == before


def test_a_known_gradient_is_recognised(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "x>0: 2*alpha_p*x+beta", "x<=0: alpha_n*(exp(x)-1)+beta",
        "--parameter", "alpha_p=0.8:softplus", "--parameter", "alpha_n=0.8:softplus>beta",
        "--parameter", "beta=0.5:fixed", "--dry-run",
    ]  # fmt: skip
    assert main(["derive", *words]) == 0
    assert "xielu, a catalogue entry" in capsys.readouterr().out
    assert main(["derive", *words, "--name", "xielu", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["known"] == "xielu"
    assert plan["spec"]["compat"]["name"] == "eps"  # the entry itself


def test_a_formula_may_be_longer_than_a_file_name(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formula = "x + " + " + ".join(f"0.{i:03d}*x" for i in range(10, 40))
    assert len(formula) > 255
    assert main(["derive", formula, "--name", "long", "--dry-run"]) == 0
    assert formula in " ".join(capsys.readouterr().out.split())
    assert spec_named(formula) is None
    assert spec_named("x" * 300 + ".py") is None
    assert spec_named("x" * 300 + ".json") is None


def test_show_certifies_a_spec_of_the_users_own(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "derived/bent", "--json"]) == 0
    certificate = json.loads((place / "derived" / "bent" / "certificate.json").read_text())
    assert json.loads(capsys.readouterr().out)["certificate"] == certificate
    assert main(["show", "derived/bent", "--page", "certified.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("certificate ") for line in lines) > 5
    assert "Certificate" in (place / "certified.html").read_text()


@pytest.mark.parametrize("path", ["derived/bent/bent.py", "derived/bent/bent.py:SPEC"])
def test_show_takes_the_module_that_was_written(
    place: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    assert main(["show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "bent"


@pytest.mark.parametrize("word", ["relu", "own.py:ONE"])
def test_show_refuses_settings_of_an_activation(
    place: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    (place / "own.py").write_text(OWN)
    assert main(["show", word, "a=1"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"'a=1' cannot be applied: {word} is an activation, not a recipe" in told.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sign(x)"], "declared continuous, but the gradient jumps at x = 0"),
        (["(x-3.3)**(0-1)"], "has a pole at x = 3.3"),
        (["x > 1/0: 1", "x <= 1/0: 1"], "the knot '1 / 0' of piece"),
    ],
)
def test_a_gradient_without_a_finite_value_is_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main(["derive", *words, "--dry-run"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert problem in told.err
    assert len(told.err.splitlines()) == 1


def test_show_tells_a_spec_of_the_users_own(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "own.py").write_text(OWN)
    assert main(["show", "own.py:ONE", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["function"] == [{"where": "all x", "formula": "x**3"}]
    assert told["cost"]["saved_inputs"] == 1
    assert main(["show", "derived/bent", "--plot", "bent.svg", "--page", "bent.html"]) == 0
    printed = capsys.readouterr()
    assert "a = softplus(raw), starts at 0.8 (raw 0.203382321)" in printed.out
    assert printed.err == "Written: bent.svg\nWritten: bent.html\n"
    assert (place / "bent.svg").read_text().startswith("<svg xmlns=")
    assert "<h1>bent</h1>" in (place / "bent.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["xielu", "--plot", "a.jpg"], "does not end in .svg or .png"),
        (["xielu", "--page", "a.txt"], "does not end in .html"),
        (["demo", "--plot", "a.png"], "is not an activation"),
        (["own.py:THREE"], "THREE"),
        (["xieluu"], "Did you mean 'xielu'"),
    ],
)
def test_show_refuses_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    (place / "own.py").write_text(OWN)
    assert main(["show", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_file_of_recipes_that_imports_a_spec_is_still_a_recipe(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine.py").write_text(
        "from stamm.activations.catalog import XIELU\nfrom stamm.recipes import catalog\n\n\n"
        "def mine():\n    return catalog.get('smoke').build()\n"
    )
    assert main(["show", "mine.py"]) == 0
    assert "recipe" in capsys.readouterr().out


def _no_work(*_: Any, **__: Any) -> dict[str, Any]:
    raise AssertionError("the derivation began")


def _python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]),
        "HOME": str(folder / "nobody"),
        "XDG_CACHE_HOME": "",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
        timeout=120,
    )


def test_a_parameter_that_no_formula_uses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", "all x: 7*x", "--parameter", "b=1:softplus", "--dry-run"]) == 2
    assert "the parameter 'b' is used in no formula" in capsys.readouterr().err


def test_outside_the_main_thread_the_time_is_not_limited() -> None:
    """Only the main thread may set a handler for a signal."""

    def limited() -> int:
        with cpu_limit(1, ConfigError("too long")):
            return 7

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(limited).result() == 7
