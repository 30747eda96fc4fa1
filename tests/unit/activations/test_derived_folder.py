"""The folder of `stamm derive`: damaged receipts, what `--force` may delete, killed processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.activations import derived_folder
from stamm.activations.spec import Piece, Spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import recover_folder, sha256_value, write_json, write_text
from tests.conftest import environment

SEVEN = Spec(
    name="seven", title="7x", pieces=(Piece(where="all x", formula="7*x"),), source="a test"
)
TOLD: dict[str, Any] = {
    "content_hash": SEVEN.content_hash,
    "command": "stamm derive 'all x: 7*x' --name seven",
    "known": None,
    "facts": {"name": "seven", "cost": {"numbers": [1e-5, 0.1, -0.0]}, "title": "é"},
    "accuracy": {"float32": "at most function 0 ulp"},
    "findings": [{"name": "relu2", "sentence": "None."}],
}
WRONG: list[Any] = [
    None,
    True,
    1,
    0.5,
    "",
    "../../x",
    [],
    ["../../x"],
    {},
    {"../../x": "y"},
    [[{}]],
]
# What a process does in the temporary folder, and at which rename it is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.activations.test_derived_folder import TOLD, fill
from stamm.activations import derived_folder

folder, moment, rename = Path(sys.argv[1]), sys.argv[2], Path.rename
renames = iter(range(9))

def counted(self, target):
    if moment == f"before rename {next(renames)}":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

with derived_folder.replaced(folder, {**TOLD, "command": "the second"}) as place:
    fill(place)
    if moment == "in the work":
        os.kill(os.getpid(), signal.SIGKILL)
    Path.rename = counted
"""


def fill(place: Path) -> None:
    """Files of the right names, as `stamm derive` writes them for SEVEN."""
    vectors = f"{SEVEN.content_hash[:16]}-initial-float32.safetensors"
    for name in (
        "seven.py",
        "seven_torch.py",
        "seven.html",
        "kernel.py",
        "README.md",
        f"golden/{vectors}",
    ):
        write_text(place / name, name)
    write_json(place / "spec.json", to_plain(SEVEN))
    write_json(place / "certificate.json", {})
    write_json(place / "golden" / "manifest.json", {"files": {vectors: {}}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A derivation of SEVEN, with a file of the user's beside it."""
    (tmp_path / "x").write_text("mine")
    folder = tmp_path / "derived" / "seven"
    with derived_folder.replaced(folder, TOLD) as place:
        fill(place)
    assert derived_folder.intact(folder, SEVEN) is not None
    return folder


def _receipt(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "derived.json").read_text())
    return found


def _rewrite(folder: Path, receipt: dict[str, Any]) -> None:
    """Write a receipt whose own hash is right."""
    told = {key: value for key, value in receipt.items() if key != "sha256"}
    write_json(folder / "derived.json", {**told, "sha256": sha256_value(told)})


def _refused(folder: Path, says: str, *, force: bool, name: str = "seven") -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        derived_folder.check_replaceable(folder, name, force=force)
    assert len(str(caught.value).splitlines()) == 1


def _damaged(folder: Path) -> None:
    """The receipt is not trusted; only --force replaces the folder."""
    assert derived_folder.intact(folder, SEVEN) is None
    _refused(folder, "derived.json is damaged", force=False)
    derived_folder.check_replaceable(folder, "seven", force=True)


def test_a_receipt_says_what_was_told(folder: Path) -> None:
    receipt = derived_folder.intact(folder, SEVEN)
    assert receipt is not None
    assert {key: receipt[key] for key in TOLD} == TOLD


def test_a_truncated_receipt_is_damaged(folder: Path) -> None:
    path = folder / "derived.json"
    right = path.read_bytes()
    for length in range(0, len(right) - 2, 7):  # without the last newline it says the same
        path.write_bytes(right[:length])
        _damaged(folder)


def test_a_flipped_bit_is_damage_unless_it_says_the_same(folder: Path) -> None:
    path = folder / "derived.json"
    right, told = path.read_bytes(), _receipt(folder)
    draw = random.Random(20261121)
    seen = 0
    for _ in range(600):
        wrong = bytearray(right)
        wrong[draw.randrange(len(right))] ^= 1 << draw.randrange(8)
        path.write_bytes(wrong)
        try:
            same = json.loads(bytes(wrong).decode()) == told  # 1e-05 and 1E-05
        except ValueError:
            same = False
        if not same:
            seen += 1
            _damaged(folder)
    assert seen > 550


@pytest.mark.parametrize("key", ["stamm", *TOLD, "files", "sha256"])
def test_a_wrong_type_under_any_key_is_damage(folder: Path, key: str) -> None:
    right = _receipt(folder)
    kinds = (str, type(None)) if key == "known" else (type(right[key]),)
    for wrong in WRONG:
        write_json(folder / "derived.json", {**right, key: wrong})
        if wrong != right[key]:
            _damaged(folder)
        if key != "sha256" and type(wrong) not in kinds:
            _rewrite(folder, {**right, key: wrong})  # its own hash does not make it right
            _damaged(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["files"].clear(),
        lambda told: told["files"].pop("kernel.py"),
        lambda told: told["files"].pop("golden/manifest.json"),
        lambda told: told["files"].update({"../../../x": "0"}),
        lambda told: told["files"].update({"/etc/passwd": "0"}),
        lambda told: told["files"].update({"golden/../../../x": "0"}),
        lambda told: told["files"].update({"notes.txt": "0"}),
        lambda told: told["files"].update({"kernel.py": None}),
        lambda told: told.update(content_hash="0" * 64),
        lambda told: told.update(stamm="0.0.0"),
        lambda told: told["facts"].update(name="eight"),
        lambda told: told["facts"].update(name=["seven"]),
        lambda told: told["facts"].pop("name"),
        lambda told: told["facts"].clear(),
        lambda told: told["accuracy"].update(float32=None),
        lambda told: told["findings"].append("../../x"),
        lambda told: told["findings"].append({"sentence": []}),
        lambda told: told.pop("known"),
        lambda told: told.update(more=1),
    ],
)
def test_a_receipt_of_other_content_is_not_trusted(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
) -> None:
    """Its own hash is right, so what it says is judged; a path in it is never opened."""
    receipt = _receipt(folder)
    change(receipt)
    _rewrite(folder, receipt)
    opened: list[Path] = []
    hashed = derived_folder.sha256_file
    monkeypatch.setattr(
        derived_folder, "sha256_file", lambda path: (opened.append(path), hashed(path))[1]
    )
    assert derived_folder.intact(folder, SEVEN) is None
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in opened)
    _refused(folder, "damaged|holds another derivation|did not write", force=False)
    assert (tmp_path / "x").read_text() == "mine"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b'"x"', b"NaN", b"\xff\xfe{}", b"[" * 100_000,
        b'{"a":' * 100_000, b'{"stamm": ' + b"9" * 5000 + b"}", b'{"stamm": "\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_no_receipt_is_damaged(folder: Path, data: bytes) -> None:
    (folder / "derived.json").write_bytes(data)
    _damaged(folder)


def test_half_a_character_in_a_receipt_is_damage(folder: Path) -> None:
    text = json.dumps({**_receipt(folder), "command": "\ud800"})
    (folder / "derived.json").write_text(text)
    _damaged(folder)


def test_a_huge_receipt_is_not_read(folder: Path) -> None:
    os.truncate(folder / "derived.json", 2**40)  # sparse
    _damaged(folder)


@pytest.mark.parametrize("name", ["derived.json", "kernel.py", "spec.json", "golden/manifest.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_plain_file_is_neither_read_nor_replaced(
    folder: Path, tmp_path: Path, name: str, kind: str
) -> None:
    path = folder / name
    kept = tmp_path / "kept"
    path.rename(kept)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kept)
    assert derived_folder.intact(folder, SEVEN) is None
    _refused(folder, name, force=True)
    _refused(folder, name, force=False)


@pytest.mark.parametrize(
    "stranger",
    [
        "notes.txt",
        "golden/notes.txt",
        "deep/seven.py",
        "other.py",
        "__pycache__/notes.txt",
        "empty/",
    ],
)
def test_a_file_of_the_users_is_never_ours_to_delete(folder: Path, stranger: str) -> None:
    path = folder / stranger
    path.parent.mkdir(exist_ok=True)
    if stranger.endswith("/"):
        path.mkdir()
    else:
        path.write_text("mine")
    assert derived_folder.intact(folder, SEVEN) is None
    for force in (False, True):
        _refused(folder, f"holds {stranger.split('seven.py')[0]}", force=force)
    (folder / "derived.json").write_text("{}")
    for force in (False, True):
        _refused(folder, "damaged.*may be yours", force=force)


def test_a_damaged_receipt_speaks_for_no_folder_of_another_name(folder: Path) -> None:
    """The names alone tell what is ours: README.md and derived.json may be anyone's."""
    (folder / "derived.json").write_text("{}")
    _refused(folder, "damaged.*may be yours", force=True, name="eight")
    (folder / "seven.py").unlink()
    _refused(folder, "damaged.*may be yours", force=True)
    (folder / "derived.json").unlink()
    _refused(folder, "which `stamm derive` did not write", force=True)


def test_what_python_compiled_is_no_ones_work(folder: Path) -> None:
    write_text(folder / "__pycache__" / "seven.cpython-311.pyc", "")
    assert derived_folder.intact(folder, SEVEN) is not None


@pytest.mark.parametrize(
    "moment", ["in the work", "before rename 0", "before rename 1", "before rename 2"]
)
def test_after_a_kill_one_whole_derivation_is_there(folder: Path, moment: str) -> None:
    """Before the new one has its name the old one is there, or is put back; nothing is left over."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), moment],
        env={**environment(), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.parent.iterdir())) == 2
    assert folder.exists() == (moment != "before rename 1")
    recover_folder(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["seven"]
    receipt = derived_folder.intact(folder, SEVEN)
    assert receipt is not None
    new = moment == "before rename 2"
    assert receipt["command"] == ("the second" if new else TOLD["command"])


def test_what_a_living_process_writes_is_left_alone(folder: Path) -> None:
    beside = [f".seven.{os.getppid()}.part", ".seven.part", ".other.1.part", ".seven.x.part"]
    for name in beside:
        folder.with_name(name).mkdir()
    folder.with_name(".seven.999999999.part").write_text("a file of somebody")
    stale = folder.with_name(f".seven.{os.getpid()}.part")  # our number was another's before
    stale.mkdir()
    with derived_folder.replaced(folder, TOLD) as place:
        fill(place)
    left = sorted(path.name for path in folder.parent.iterdir())
    assert left == sorted([*beside, ".seven.999999999.part", "seven"])


def test_leftovers_are_found_beside_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a[b]*"
    for name in (".a[b]*.999999999.part", ".ab.999999999.part"):
        (tmp_path / name).mkdir()
    recover_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == [".ab.999999999.part"]
