"""The output folder of `stamm derive`: its files, integrity check and atomic replacement."""

from __future__ import annotations

import contextlib
import errno
import os
import pprint
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stamm.activations.cache import primitives_hash
from stamm.activations.catalog.registry import STORED
from stamm.activations.spec import Gated, Spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.files import (
    atomic_folder,
    folder_part,
    read_json,
    sha256_file,
    sha256_value,
    write_json,
)
from stamm.version import VERSION

RECEIPT = "derived.json"
KERNEL = "kernel.py"
CERTIFICATE = "certificate.json"
GOLDEN = "golden"
README = "README.md"
RECEIPT_HASH = "sha256"  # key of the receipt with the hash of all its other values
RECEIPT_FIELDS = {
    "content_hash": str,
    "command": str,
    "known": str | None,
    "facts": dict,
    "accuracy": dict,
    "findings": list,
}
_TYPES = {"stamm": str, **RECEIPT_FIELDS, "files": dict, RECEIPT_HASH: str}
_LARGEST = 2**24  # bytes of a receipt; typical: 2**14
_MANIFEST = f"{GOLDEN}/manifest.json"
_VECTORS = re.compile(rf"{GOLDEN}/[0-9a-f]{{16}}-[a-z]+-(bfloat16|float16|float32)\.safetensors")
_LONGEST_VECTORS = f"{'0' * 16}-initial-bfloat16.safetensors"
_COMPILED = re.compile(r"__pycache__/[^/]+\.pyc(\.\d+)?")  # numbered while it is written
# A module file with one of these names would shadow another module.
_TAKEN = {"kernel", "stamm", "torch", "numpy", "sympy", "mpmath", "transformers", "safetensors"}
_INSIDE = {"build_activation", "from_plain", "register_kernel_source"}


def file_names(name: str) -> list[str]:
    """Files in the folder of the spec called `name`, in the order in which they are listed."""
    return [
        f"{name}.py", f"{name}_torch.py", f"{name}.html", STORED, KERNEL, CERTIFICATE, f"{GOLDEN}/",
        README, RECEIPT,
    ]  # fmt: skip


def check_module_name(name: str) -> None:
    """Check that a module file called `name` shadows no other module.

    Raises   ConfigError when it would.
    """
    if name in sys.stdlib_module_names or name in _TAKEN or name in _INSIDE:
        raise ConfigError(
            f"{name}.py would shadow another module called {name!r}",
            fix="Choose another --name",
        )


def intact(folder: Path, spec: Spec) -> dict[str, Any] | None:
    """The receipt of a folder with the complete derivation of `spec` by this version, or None.

    Every file is hashed; a changed, missing or additional file makes it None.

    Checked  tests/unit/activations/test_derived_folder.py
    """
    receipt = _receipt(folder)
    own = {"stamm": VERSION, "content_hash": spec.content_hash}
    if receipt is None or any(receipt[key] != value for key, value in own.items()):
        return None
    files = receipt["files"]
    # No name is opened before it is known to be one of ours.
    if not all(_is_ours(name, spec.name) for name in files):
        return None
    try:
        if _other_files(folder, {*files, RECEIPT}.__contains__):
            return None
        if any(sha256_file(folder / name) != digest for name, digest in files.items()):
            return None
        vectors = {f"{GOLDEN}/{name}" for name in read_json(folder / _MANIFEST)["files"]}
        complete = set(files) == {*_singles(spec.name), _MANIFEST, *vectors} - {RECEIPT}
        return receipt if complete and read_json(folder / STORED) == to_plain(spec) else None
    except (DataError, OSError, KeyError, TypeError):
        return None


def check_writable(folder: Path) -> None:
    """Check, before the work, that `folder` can be written.

    A folder is created and removed in the nearest existing one, because permissions do not show a
    read-only mount or /proc.

    Raises   ConfigError with the error of the operating system.
    Checked  tests/unit/cli/test_derive.py
    """
    nearest = next(ancestor for ancestor in folder.absolute().parents if os.path.lexists(ancestor))
    try:
        _check_length(folder_part(folder_part(folder, ".old") / GOLDEN / _LONGEST_VECTORS), nearest)
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".stamm-"):
            pass
    except OSError as error:
        raise _unwritable(folder, f"{error.strerror} ({nearest})") from None
    for directory in (folder, folder / GOLDEN):
        # Its content is renamed and deleted at the end.
        closed = directory.is_dir() and not os.access(directory, os.R_OK | os.W_OK | os.X_OK)
        if closed or os.path.ismount(directory):
            raise _unwritable(folder, f"{directory} cannot be replaced")


def check_replaceable(folder: Path, name: str, *, force: bool) -> None:
    """Check that `folder` is empty or may be replaced.

    name    of the spec to write; with a damaged receipt only files of its names may be replaced
    force   replace what `stamm derive` wrote; anything else is never deleted
    Raises  ConfigError with the file that must not be replaced.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        kind = "a symbolic link" if folder.is_symlink() else "not a folder"
        raise ConfigError(f"{folder} is {kind}", fix="Choose another --out")
    held = sorted(path.name for path in folder.iterdir())
    if not held:
        return
    receipt = _receipt(folder)
    damaged = receipt is None and RECEIPT in held
    if receipt is not None:
        others = _other_files(folder, {*receipt["files"], RECEIPT}.__contains__)
    elif damaged and f"{name}.py" in held:
        others = _other_files(folder, lambda file: _is_ours(file, name))
    else:
        others = held
    state = f"{folder / RECEIPT} is damaged, or of another version of stamm"
    if others:
        if damaged:
            what = f"{state}, and {others[0]} beside it may be yours"
        else:
            what = f"{folder} holds {others[0]}, which `stamm derive` did not write"
        raise ConfigError(what, fix="Move it away, or choose another --out")
    if not force:
        raise ConfigError(
            state if damaged else f"{folder} holds another derivation, or one that was changed",
            fix="--force replaces it, --out writes elsewhere",
        )


@contextlib.contextmanager
def replaced(folder: Path, receipt: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder that replaces `folder` when the block ends without an error.

    receipt   values of `derived.json` for each key of RECEIPT_FIELDS; version and hashes are added
    Edge      when the block raises, the previous folder is unchanged; when the process is killed,
              `recover_folder` restores it.
    """
    with atomic_folder(folder) as temporary:
        yield temporary
        files = {
            str(path.relative_to(temporary).as_posix()): sha256_file(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        content = {"stamm": VERSION, **receipt, "files": files}
        write_json(temporary / RECEIPT, {**content, RECEIPT_HASH: sha256_value(content)})


def module_source(spec: Spec, kernel: str) -> str:
    """Source of an importable module: the spec, its kernel and one function.

    Importing it registers the kernel under the spec's hash, so SymPy is not needed.
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
        "Written by `stamm derive`. Contains its kernel: SymPy is not needed.\n"
        '"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Any\n\n"
        f"from stamm.activations import {kind}, build_activation\n"
        "from stamm.activations.cache import register_kernel_source\n"
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
    """The README of the folder."""
    name, number = spec.name, 0 if isinstance(spec.arity, Gated) else 2
    return (
        f"# {name}\n\n"
        f"    from {name} import {name}      # {name}.py, copied beside your model\n"
        f"    activation = {name}()          # a torch module with its own shape parameters\n\n"
        f"A recipe takes it as `ffn.activation=FOLDER`, this folder: `stamm run demo "
        f"arms.{number}.ffn.activation=derived/{name}`.\n\n"
        f"`{name}_torch.py` holds the same as one module that imports torch alone.\n"
        f"`{name}.html` shows it. `{STORED}` is the spec, `{KERNEL}` the torch functions derived\n"
        f"from it, `{CERTIFICATE}` what is proved and measured, `{GOLDEN}/` exact outputs to test any\n"
        "other implementation by:\n\n"
        f"    stamm check {STORED} --against yours.py:function\n\n"
        f"Content hash {spec.content_hash}.\n"
        f"Written by `{command}` (stamm {VERSION}).\n"
    )


def _receipt(folder: Path) -> dict[str, Any] | None:
    """The content of `derived.json`, or None when it is not exactly as `replaced` wrote it."""
    path = folder / RECEIPT
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > _LARGEST:
            return None
        receipt = read_json(path)
        if not isinstance(receipt, dict) or set(receipt) != set(_TYPES):
            return None
        content = {key: value for key, value in receipt.items() if key != RECEIPT_HASH}
        if receipt[RECEIPT_HASH] != sha256_value(content):
            return None
    except (
        DataError,
        OSError,
        ValueError,
        RecursionError,
    ):  # ValueError: an incomplete UTF-8 character
        return None
    typed = all(isinstance(receipt[key], kind) for key, kind in _TYPES.items())
    return receipt if typed and _is_well_formed(receipt) else None


def _is_well_formed(receipt: dict[str, Any]) -> bool:
    name = receipt["facts"].get("name")
    return (
        isinstance(name, str)
        and all(_is_ours(file, name) for file in receipt["files"])
        and all(isinstance(text, str) for text in receipt["accuracy"].values())
        and all(
            isinstance(f, dict) and isinstance(f.get("sentence"), str) for f in receipt["findings"]
        )
    )


def _singles(name: str) -> set[str]:
    return {file for file in file_names(name) if not file.endswith("/")}


def _is_ours(file: str, name: str) -> bool:
    """Whether `stamm derive` writes such a file for the spec called `name`."""
    return file in _singles(name) or file == _MANIFEST or _VECTORS.fullmatch(file) is not None


def _other_files(folder: Path, ours: Callable[[str], bool]) -> list[str]:
    """Content of the folder other than regular files that are `ours` and compiled Python."""
    unexpected = []
    for path in sorted(folder.rglob("*")):
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode):
            if name not in (GOLDEN, "__pycache__"):
                unexpected.append(f"{name}/")
        elif not stat.S_ISREG(mode) or not (ours(name) or _COMPILED.fullmatch(name)):
            unexpected.append(name)
    return unexpected


def _check_length(path: Path, nearest: Path) -> None:
    """Check that the file system of `nearest` allows the length of `path`; raises OSError."""
    long = any(len(os.fsencode(n)) > os.pathconf(nearest, "PC_NAME_MAX") for n in path.parts)
    if long or len(os.fsencode(path)) >= os.pathconf(nearest, "PC_PATH_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _unwritable(folder: Path, why: str) -> ConfigError:
    shown = visible(str(folder), 300)
    return ConfigError(f"{shown} cannot be written: {why}", fix="Choose another --out")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
