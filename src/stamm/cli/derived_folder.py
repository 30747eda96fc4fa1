"""The folder that `stamm derive` writes: what is in it, when it is whole, when it may be replaced."""

from __future__ import annotations

import contextlib
import os
import pprint
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stamm
from stamm.activations.cache import primitives_hash
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec_files import STORED
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file, write_json

RECEIPT = "derived.json"
KERNEL = "kernel.py"
CERTIFICATE = "certificate.json"
GOLDEN = "golden"
README = "README.md"
TOLD = ("content_hash", "command", "known", "facts", "accuracy", "findings")
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

    Every file is hashed; one that was changed or is gone makes it None.
    """
    receipt = _receipt(folder)
    if receipt is None or receipt.get("stamm") != stamm.__version__:
        return None
    if set(receipt) != {"stamm", *TOLD, "files"}:
        return None
    try:
        if read_json(folder / STORED) != to_plain(spec):
            return None
        files = dict(receipt["files"])
        whole = all(sha256_file(folder / name) == digest for name, digest in files.items())
    except (DataError, OSError, KeyError, TypeError, ValueError):
        return None
    return receipt if whole else None


def refuse_replacing(folder: Path, *, force: bool) -> None:
    """Raise when `folder` cannot be written: it holds something, and `force` does not help.

    force   replace what `stamm derive` wrote; anything else is never deleted
    Raises  ConfigError that names what is in the way.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", fix="Choose another --out")
    held = sorted(path.name for path in folder.iterdir())
    if not held:
        return
    receipt = _receipt(folder)
    foreign = _foreign(folder, receipt) if receipt else held
    if foreign:
        raise ConfigError(
            f"{folder} holds {foreign[0]}, which `stamm derive` did not write",
            fix="Move it away, or choose another --out",
        )
    if not force:
        raise ConfigError(
            f"{folder} holds another derivation, or one that was changed",
            fix="--force replaces it, --out writes elsewhere",
        )


@contextlib.contextmanager
def whole(folder: Path, receipt: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well.

    receipt   what `derived.json` shall say under each key of TOLD; the version and the files'
              hashes are added
    Edge      when the block raises, what was there before is untouched.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        files = {
            str(path.relative_to(temporary).as_posix()): sha256_file(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        told = {"stamm": stamm.__version__, **receipt, "files": files}
        write_json(temporary / RECEIPT, told)
        if folder.exists():
            old = folder.with_name(f".{folder.name}.{os.getpid()}.old.part")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old)
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
    try:
        found = read_json(folder / RECEIPT)
    except (DataError, OSError):
        return None
    files = found.get("files") if isinstance(found, dict) else None
    return found if isinstance(files, dict) else None


def _foreign(folder: Path, receipt: dict[str, Any]) -> list[str]:
    """Files in the folder that the receipt does not list; what Python compiled is no one's work."""
    ours = {*receipt["files"], RECEIPT}
    found = (path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink())
    names = (str(path.relative_to(folder).as_posix()) for path in found)
    return [name for name in names if name not in ours and "__pycache__/" not in f"{name}"]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
