"""The plan of the house as tests: floors, no rings, no hidden imports, one door per third party."""

from __future__ import annotations

import ast
import functools
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stamm"

FLOORS = (
    ("base",),
    ("statistics", "pages", "chat", "tokenizer", "losses"),
    ("runs",),
    ("activations",),
    ("optim", "models", "corpus"),
    ("engine", "evaluate", "audit", "observe", "export"),
    ("pretrain",),
    ("adapt", "release", "compare", "align", "swap", "steer"),
    ("search",),
    ("reports",),
    ("recipes",),
    ("cli",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# The public function of a verb is in verb.py of its subject. It resolves a run, its settings and its
# model as a recipe's execution does, so that it stands above recipes; cli, the face and other verbs call it.
VERB = "verb.py"
GROUND = ["stamm", "version"]  # below every room
TOP = max(FLOOR.values()) + 1  # of the face, `import stamm`, above every room
# The only files that may import these, and the only ones that may do so inside a function.
DOORS = {
    "transformers": {"models/hub.py"},
    "rich": {"base/console.py"},
    "tokenizers": {"tokenizer/*", "corpus/tokenizer/*"},
    "matplotlib": {"pages/svg_figure.py"},
    "jinja2": {"pages/frame.py", "chat/template_sandbox.py"},
    "sympy": {"activations/*/*"},
    "mpmath": {"activations/*/*"},
    "resiliparse": {"corpus/*", "corpus/licences/markup.py", "corpus/readers/*"},
    "duckdb": {"corpus/query.py"},
    "datatrove": {"corpus/adapters/datatrove.py"},
    "fasttext": {"corpus/language/ngrams.py"},
    "httpcore2": {"corpus/consent/fetch.py", "align/judge/endpoint.py"},
    "idna": {"corpus/consent/hosts.py"},
    "cachetools": {"corpus/consent/snapshot.py"},
    "phonenumbers": {"corpus/pii/phone.py"},
    "pycld2": {"corpus/language/identify.py"},
    "tiktoken": {"tokenizer/fast.py"},
    "jsonschema": {"align/rewards/rules.py"},
    "referencing": {"align/rewards/rules.py"},
    "torchao": {"engine/float8.py"},
    "trackio": {"runs/trackers.py"},
    "wandb": {"runs/trackers.py"},
    "vllm": {"align/sampling/vllm_engine.py"},
    "datasets": {"evaluate/harness_task.py"},
    "yaml": {"evaluate/harness_task.py"},
    "lm_eval": {"evaluate/harness_model.py", "evaluate/harness_task.py"},
    "model_signing": {"release/signature.py"},
    "huggingface_hub": {"evaluate/harness_task.py", "release/push.py"},
    "httpx2": {"release/push.py"},
    "gguf": {"export/gguf_file.py"},
    "xllamacpp": {"export/llama_cpp.py"},
    "onnx": {"activations/emitters/onnx.py"},
    "onnxruntime": {"activations/board/onnx_library.py"},
    "jax": {"activations/board/jax_library.py"},
    "mlx": {"activations/board/mlx_library.py"},
    "executorch": {"activations/board/executorch_library.py"},
}
# Deriving a spec of the user's own needs sympy; a built-in one must never load it.
SYMPY_DOOR = (
    "activations/codegen/kernel_lookup.py",
    (
        "stamm.activations.cache",
        "stamm.activations.derivation.derive",
        "stamm.activations.codegen.kernel",
    ),
)


@dataclass(frozen=True)
class Import:
    file: Path
    module: str
    line: int
    hidden: bool


def _is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def _walk(nodes: list[ast.stmt], file: Path, hidden: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, alias.name, node.lineno, hidden)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from stamm.recipes import apertus` imports a module, not a name of its package.
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = {name if _is_module(name) else node.module for name in whole}
            for name in sorted(modules):
                yield Import(file, name, node.lineno, hidden)
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                deeper = hidden or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield from _walk(inner, file, deeper)


@functools.cache
def imports() -> tuple[Import, ...]:
    found: list[Import] = []
    for file in sorted(SOURCE.rglob("*.py")):
        found.extend(_walk(ast.parse(file.read_text()).body, file.relative_to(SOURCE), False))
    return tuple(found)


def _room(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) > 1 else ""


def test_every_room_has_a_floor() -> None:
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and not p.name.startswith("__")}
    assert rooms == set(FLOOR)


def test_files_import_only_from_lower_floors_or_their_own_folder() -> None:
    wrong = []
    for item in imports():
        target = item.module.split(".")
        if target[0] != "stamm" or target == GROUND:
            continue
        here, there = _room(item.file.parts), target[1] if len(target) > 1 else "the face"
        verb = item.file.name == VERB
        if item.module.endswith(".verb") and not (verb or here in ("", "cli")):
            wrong.append(f"{item.file}:{item.line} imports {item.module}")
        if here in ("", there) or item.module.endswith(".records"):
            continue
        if FLOOR.get(there, TOP) >= FLOOR["cli" if verb else here]:
            wrong.append(f"{item.file}:{item.line} imports {item.module}")
    assert not wrong, wrong


def test_records_know_numbers_and_other_records_only() -> None:
    """Any room may read the files of another, so that what describes them must stand low."""
    wrong = [
        f"{item.file}:{item.line} imports {item.module}"
        for item in imports()
        if item.file.name == "records.py"
        and item.module.startswith("stamm.")
        and not item.module.endswith(".records")
        and not item.module.startswith(("stamm.base.", "stamm.statistics."))
    ]
    assert not wrong, wrong


def test_no_ring_of_files() -> None:
    """Imports for types alone, under TYPE_CHECKING, count like any other."""
    edges: dict[str, set[str]] = {}
    for item in imports():
        if item.module.startswith("stamm."):
            here = ".".join(("stamm", *item.file.with_suffix("").parts)).removesuffix(".__init__")
            if item.module != here:
                edges.setdefault(here, set()).add(item.module)
    done: set[str] = set()

    def visit(node: str, path: tuple[str, ...]) -> None:
        assert node not in path, " -> ".join((*path[path.index(node) :], node))
        if node not in done:
            for target in sorted(edges.get(node, ())):
                visit(target, (*path, node))
            done.add(node)

    for start in sorted(edges):
        visit(start, ())


def _chain(edges: dict[str, set[str]], node: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The longest chain of imports that begins at `node`."""
    assert node not in above, " -> ".join((*above, node))
    chains = (_chain(edges, target, (*above, node)) for target in sorted(edges.get(node, ())))
    return (node, *max(chains, key=len, default=()))


@pytest.mark.parametrize("package", sorted(FLOOR))
def test_a_package_has_few_inner_layers_and_no_rings_of_folders(package: str) -> None:
    """Its files and folders import one another in chains of at most 8; those of reports, 10."""
    edges: dict[str, set[str]] = {}
    for item in imports():
        target = item.module.split(".")
        if item.file.parts[0] != package or target[:2] != ["stamm", package] or len(target) < 3:
            continue
        here = item.file.parts[1].removesuffix(".py")
        if here not in ("__init__", target[2]) and item.file.name != VERB:
            edges.setdefault(here, set()).add(target[2])
    chain = max((_chain(edges, node) for node in sorted(edges)), key=len, default=())
    assert len(chain) <= (10 if package == "reports" else 8), " > ".join(chain)


def test_no_import_is_hidden_in_a_function() -> None:
    hidden = []
    for item in imports():
        if not item.hidden or item.file.parts[0] == "cli":
            continue
        library = item.module.split(".")[0]
        sympy_door = str(item.file) == SYMPY_DOOR[0] and item.module in SYMPY_DOOR[1]
        if not sympy_door and not _is_door(library, item.file):
            hidden.append(f"{item.file}:{item.line} imports {item.module}")
    assert not hidden, hidden


def _is_door(library: str, file: Path) -> bool:
    return any(file.match(pattern) for pattern in DOORS.get(library, ()))


def test_one_door_per_third_party() -> None:
    wrong = []
    for item in imports():
        library = item.module.split(".")[0]
        if library in DOORS and not _is_door(library, item.file):
            wrong.append(f"{item.file}:{item.line} imports {library}")
    assert not wrong, wrong


def test_no_job_imports_another_job() -> None:
    wrong = [
        f"{item.file}:{item.line} imports {item.module}"
        for item in imports()
        if item.file.name == "job.py"
        and item.module.endswith(".job")
        and item.module.startswith("stamm.")
        and item.module != "stamm.runs.job"
    ]
    assert not wrong, wrong


def test_packages_only_re_export() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("__init__.py")):
        for node in ast.parse(file.read_text()).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
            plain = isinstance(
                node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If)
            )
            if not (docstring or lazy or plain):
                wrong.append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert not wrong, wrong


def test_every_file_of_the_package_is_installed_with_it() -> None:
    """An editable install reads files that a wheel would lack."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = declared["tool"]["setuptools"]["package-data"]["stamm"]
    installed = {path for pattern in patterns for path in SOURCE.glob(pattern)}
    tracked = subprocess.run(
        ["git", "ls-files", "src/stamm"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    missing = [
        name for name in tracked if not name.endswith(".py") and ROOT / name not in installed
    ]
    assert tracked and not missing
