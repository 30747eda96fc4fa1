"""The folder that `stamm derive` writes: what is in it, when it is whole, when it may be replaced."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import pprint
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import stamm
from stamm.activations.cache import primitives_hash
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec_files import STORED
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.files import read_json, sha256_file, sha256_value, write_json

RECEIPT = "derived.json"
KERNEL = "kernel.py"
CERTIFICATE = "certificate.json"
GOLDEN = "golden"
README = "README.md"
OWN_HASH = "sha256"  # the receipt's key for the hash of all that it says besides
TOLD = {
    "content_hash": str,
    "command": str,
    "known": str | None,
    "facts": dict,
    "accuracy": dict,
    "findings": list,
}
_TYPES = {"stamm": str, **TOLD, "files": dict, OWN_HASH: str}
_LARGEST = 2**24  # bytes of a receipt; one has some 2**14
_MANIFEST = f"{GOLDEN}/manifest.json"
_VECTORS = re.compile(rf"{GOLDEN}/[0-9a-f]{{16}}-[a-z]+-(bfloat16|float16|float32)\.safetensors")
_LONGEST_VECTORS = f"{'0' * 16}-initial-bfloat16.safetensors"
_COMPILED = re.compile(r"__pycache__/[^/]+\.pyc(\.\d+)?")  # numbered while it is written
# A module file of one of these names would stand in the way of another one.
_TAKEN = {"kernel", "stamm", "torch", "numpy", "sympy", "mpmath", "transformers", "safetensors"}
_INSIDE = {"build_activation", "from_plain", "register_kernel_source"}


def file_names(name: str) -> list[str]:
    """What the folder of the spec called `name` holds, in the order in which it is told."""
    return [
        f"{name}.py", f"{name}.html", STORED, KERNEL, CERTIFICATE, f"{GOLDEN}/",
        README, RECEIPT,
    ]  # fmt: skip


def refuse_module_name(name: str) -> None:
    """Raise when a module file called `name` would hide another module.

    Raises   ConfigError that says so.
    """
    if name in sys.stdlib_module_names or name in _TAKEN or name in _INSIDE:
        raise ConfigError(
            f"{name}.py would stand in the way of another module called {name!r}",
            fix="Choose another --name",
        )


def intact(folder: Path, spec: Spec) -> dict[str, Any] | None:
    """The receipt of a folder that holds all of this very spec, as this stamm writes it, or None.

    Every file is hashed; one that was changed, is gone or came in beside them makes it None.

    Checked  tests/unit/cli/test_derived_folder.py
    """
    receipt = _receipt(folder)
    own = {"stamm": stamm.__version__, "content_hash": spec.content_hash}
    if receipt is None or any(receipt[key] != value for key, value in own.items()):
        return None
    files = receipt["files"]
    # No name is opened before it is known to be one of ours.
    if not all(_is_ours(name, spec.name) for name in files):
        return None
    try:
        if _foreign(folder, {*files, RECEIPT}.__contains__):
            return None
        if any(sha256_file(folder / name) != digest for name, digest in files.items()):
            return None
        vectors = {f"{GOLDEN}/{name}" for name in read_json(folder / _MANIFEST)["files"]}
        complete = set(files) == {*_singles(spec.name), _MANIFEST, *vectors} - {RECEIPT}
        return receipt if complete and read_json(folder / STORED) == to_plain(spec) else None
    except (DataError, OSError, KeyError, TypeError):
        return None


def refuse_unwritable(folder: Path) -> None:
    """Raise when the system would not let us write `folder`: before the work, not after it.

    A folder is made and removed in the nearest one that exists: permissions alone do not tell,
    neither in /proc nor on a disk that is mounted to be read.

    Raises   ConfigError that says what the system says.
    Checked  tests/unit/cli/test_derive.py
    """
    nearest = next(place for place in folder.absolute().parents if os.path.lexists(place))
    try:
        _refuse_long(_part(_part(folder, ".old") / GOLDEN / _LONGEST_VECTORS), nearest)
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".stamm-"):
            pass
    except OSError as error:
        raise _unwritable(folder, f"{error.strerror} ({nearest})") from None
    for place in (folder, folder / GOLDEN):
        # What stands there is renamed and deleted at the end.
        closed = place.is_dir() and not os.access(place, os.R_OK | os.W_OK | os.X_OK)
        if closed or os.path.ismount(place):
            raise _unwritable(folder, f"{place} cannot be replaced")


def refuse_replacing(folder: Path, name: str, *, force: bool) -> None:
    """Raise when `folder` cannot be written: it holds something, and `force` does not help.

    name    of the spec to write; where the receipt is damaged, files of its names alone are ours
    force   replace what `stamm derive` wrote; anything else is never deleted
    Raises  ConfigError that names what is in the way.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        kind = "a symbolic link" if folder.is_symlink() else "no folder"
        raise ConfigError(f"{folder} is {kind}", fix="Choose another --out")
    held = sorted(path.name for path in folder.iterdir())
    if not held:
        return
    receipt = _receipt(folder)
    damaged = receipt is None and RECEIPT in held
    if receipt is not None:
        foreign = _foreign(folder, {*receipt["files"], RECEIPT}.__contains__)
    elif damaged and f"{name}.py" in held:
        foreign = _foreign(folder, lambda file: _is_ours(file, name))
    else:
        foreign = held
    state = f"{folder / RECEIPT} is damaged, or of another version of stamm"
    if foreign:
        if damaged:
            what = f"{state}, and {foreign[0]} beside it may be yours"
        else:
            what = f"{folder} holds {foreign[0]}, which `stamm derive` did not write"
        raise ConfigError(what, fix="Move it away, or choose another --out")
    if not force:
        raise ConfigError(
            state if damaged else f"{folder} holds another derivation, or one that was changed",
            fix="--force replaces it, --out writes elsewhere",
        )


def recover(folder: Path) -> None:
    """Put back or clear what processes that were killed left beside `folder`.

    Killed between the two renames of `whole`, one leaves what was there before under another name,
    whole; anything else under such a name is half written or done with. Those of processes that
    live are left alone.

    Checked  tests/unit/cli/test_derived_folder.py
    """
    parts = re.compile(rf"\.{re.escape(folder.name)}\.(\d{{1,9}})(\.old)?\.part")
    pattern = f".{glob.escape(folder.name)}.*.part"
    # Where the parent cannot be listed there is nothing to do; Path.glob would raise.
    for name in glob.glob(pattern, root_dir=folder.parent):  # noqa: PTH207
        path, match = folder.with_name(name), parts.fullmatch(name)
        if match is None or path.is_symlink() or not path.is_dir() or _lives(int(match[1])):
            continue
        if match[2] and not os.path.lexists(folder):
            path.rename(folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def whole(folder: Path, receipt: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well.

    receipt   what `derived.json` shall say under each key of TOLD; the version, the files' hashes
              and a hash of all that are added
    Edge      when the block raises, what was there before is untouched; when the process is
              killed, `recover` brings it back.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    recover(folder)
    temporary = _part(folder)
    temporary.mkdir()
    try:
        yield temporary
        files = {
            str(path.relative_to(temporary).as_posix()): sha256_file(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        told = {"stamm": stamm.__version__, **receipt, "files": files}
        write_json(temporary / RECEIPT, {**told, OWN_HASH: sha256_value(told)})
        if folder.exists():
            old = _part(folder, ".old")
            folder.rename(old)
            temporary.rename(folder)
            old.rename(temporary)  # an .old.part is whole at any moment; this is deleted below
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def module_source(spec: Spec, kernel: str) -> str:
    """The source of a file that any model can import: the spec, its kernel and one function.

    The kernel is registered under the spec's hash when the file is imported, so SymPy never runs.
    """
    gated = isinstance(spec.arity, Gated)
    kind = "GatedActivation" if gated else "Activation"
    call = "activation(gate, up)" if gated else "activation(x)"
    stated = pprint.pformat(to_plain(spec), sort_dicts=False, width=92)
    quoted = repr(kernel) if "'''" in kernel or "\\" in kernel else f"r'''{kernel}'''"
    return (
        f'"""{spec.title.rstrip(".")}.\n\n'
        f"    from {spec.name} import {spec.name}\n\n"
        f"    activation = {spec.name}()  # a torch module; y = {call}\n\n"
        "Written by `stamm derive`. Its kernel stands below: SymPy is not needed.\n"
        '"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Any\n\n"
        "from stamm.activations.cache import register_kernel_source\n"
        f"from stamm.activations.module import {kind}, build_activation\n"
        "from stamm.activations.spec import Spec\n"
        "from stamm.base.config import from_plain\n\n"
        f"SPEC = from_plain(\n    Spec,\n{_indented(stated)},\n)\n"
        f"KERNEL = {quoted}\n"
        "register_kernel_source(\n"
        "    SPEC.content_hash,\n"
        "    KERNEL,\n"
        f'    primitives="{primitives_hash()}",\n'
        ")\n\n\n"
        f"def {spec.name}(**options: Any) -> {kind}:\n"
        '    """A new module with its own parameters; options as `build_activation` takes them."""\n'
        "    module = build_activation(SPEC, **options)\n"
        f"    assert isinstance(module, {kind})\n"
        "    return module\n"
    )


def readme_text(spec: Spec, command: str) -> str:
    """Ten lines on how to use the folder."""
    name = spec.name
    return (
        f"# {name}\n\n"
        f"    from {name} import {name}      # {name}.py, copied beside your model\n"
        f"    activation = {name}()          # a torch module with its own shape parameters\n\n"
        f"`{name}.html` shows it. `{STORED}` is the spec, `{KERNEL}` the torch functions derived\n"
        f"from it, `{CERTIFICATE}` what is proved and measured, `{GOLDEN}/` exact outputs to test any\n"
        "other implementation by:\n\n"
        f"    stamm check {STORED} --against yours.py:function\n\n"
        f"Content hash {spec.content_hash}.\n"
        f"Written by `{command}` (stamm {stamm.__version__}).\n"
    )


def _receipt(folder: Path) -> dict[str, Any] | None:
    """What `derived.json` says, or None where it is not, to the last value, as `whole` wrote it."""
    path = folder / RECEIPT
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > _LARGEST:
            return None
        found = read_json(path)
        if not isinstance(found, dict) or set(found) != set(_TYPES):
            return None
        told = {key: value for key, value in found.items() if key != OWN_HASH}
        if found[OWN_HASH] != sha256_value(told):
            return None
    except (DataError, OSError, ValueError, RecursionError):  # ValueError: half a character
        return None
    typed = all(isinstance(found[key], of) for key, of in _TYPES.items())
    return found if typed and _told_well(found) else None


def _told_well(receipt: dict[str, Any]) -> bool:
    name = receipt["facts"].get("name")
    return (
        isinstance(name, str)
        and all(_is_ours(file, name) for file in receipt["files"])
        and all(isinstance(said, str) for said in receipt["accuracy"].values())
        and all(
            isinstance(f, dict) and isinstance(f.get("sentence"), str) for f in receipt["findings"]
        )
    )


def _singles(name: str) -> set[str]:
    return {file for file in file_names(name) if not file.endswith("/")}


def _is_ours(file: str, name: str) -> bool:
    """Whether `stamm derive` writes such a file for the spec called `name`."""
    return file in _singles(name) or file == _MANIFEST or _VECTORS.fullmatch(file) is not None


def _foreign(folder: Path, ours: Callable[[str], bool]) -> list[str]:
    """What the folder holds besides plain files that are `ours`, and what Python compiled."""
    found = []
    for path in sorted(folder.rglob("*")):
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode):
            if name not in (GOLDEN, "__pycache__"):
                found.append(f"{name}/")
        elif not stat.S_ISREG(mode) or not (ours(name) or _COMPILED.fullmatch(name)):
            found.append(name)
    return found


def _part(path: Path, kind: str = "") -> Path:
    """The temporary name of `path` for this process."""
    return path.with_name(f".{path.name}.{os.getpid()}{kind}.part")


def _lives(process: int) -> bool:
    """Whether another process of this number runs; our own number was another's before."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def _refuse_long(path: Path, nearest: Path) -> None:
    """Raise OSError for a path that the disk of `nearest` cannot hold."""
    long = any(len(os.fsencode(n)) > os.pathconf(nearest, "PC_NAME_MAX") for n in path.parts)
    if long or len(os.fsencode(path)) >= os.pathconf(nearest, "PC_PATH_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _unwritable(folder: Path, why: str) -> ConfigError:
    told = visible(str(folder), 300)
    return ConfigError(f"{told} cannot be written: {why}", fix="Choose another --out")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
