"""Rules for every file: length, types, docstrings, environment variables, no machine names."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stamm"
LONGEST = 800
MEDIAN = 180
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}


def _python(*folders: str) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        found.extend(sorted((ROOT / folder).rglob("*.py")))
    return found


def _is_generated(file: Path) -> bool:
    return "generated" in file.parts


def test_no_file_is_long() -> None:
    lengths = {
        str(f.relative_to(ROOT)): len(f.read_text().splitlines())
        for f in _python("src", "tests", "bench", "tools")
        if not _is_generated(f)
    }
    assert not {name: n for name, n in lengths.items() if n > LONGEST}
    source = [n for name, n in lengths.items() if name.startswith("src")]
    assert statistics.median(source) <= MEDIAN


def test_files_are_named_for_what_they_hold() -> None:
    assert not [f for f in _python("src", "tests") if f.name in FORBIDDEN_NAMES]


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list):
                continue  # documented where it is implemented
            yield node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                        yield inner


def test_every_public_thing_is_documented_and_typed() -> None:
    wrong = []
    for file in _python("src"):
        if _is_generated(file):
            continue
        tree = ast.parse(file.read_text())
        if not ast.get_docstring(tree):
            wrong.append(f"{file.relative_to(ROOT)}: no docstring")
        for node in _public(tree):
            where = f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
            if not ast.get_docstring(node):
                wrong.append(f"{where}: no docstring")
            if isinstance(node, ast.FunctionDef):
                arguments = [a for a in node.args.args + node.args.kwonlyargs if a.arg != "self"]
                bare = [a.arg for a in arguments if a.annotation is None and a.arg != "cls"]
                if bare or node.returns is None:
                    wrong.append(f"{where}: untyped {bare or 'result'}")
    assert not wrong, "\n".join(wrong)


def test_environment_variables_are_few_and_change_no_number() -> None:
    touched: set[str] = set()
    for file in _python("src"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
                touched.add(str(file.relative_to(SOURCE)))
    # Set: TOKENIZERS_PARALLELISM, thread counts of workers, GOMP_SPINCOUNT. Hidden: a Slurm job's.
    # Read: torchrun's ranks, XDG_CACHE_HOME; the API key of a judge, from a variable that the
    # configuration names. With engine.portable_bits: the code that torch and MKL choose.
    # No other file may use the environment.
    known = {
        "align/judge/endpoint.py",
        "base/cache_folder.py",
        "base/processor.py",
        "cli/main.py",
        "cli/run.py",
        "runs/local_pool.py",
        "runs/torchrun_env.py",
    }
    assert touched == known


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by name alone: of two alike it loads one."""
    seen: dict[str, Path] = {}
    for file in _python("tests"):
        other = seen.setdefault(file.name, file)
        assert other == file or file.name == "conftest.py", f"{file} and {other}"


def test_no_pickle_is_loaded() -> None:
    wrong = []
    for file in _python("src"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            loads = isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"
            if loads or {"pickle", "dill", "joblib", "shelve"} & set(names):
                wrong.append(f"{file.relative_to(ROOT)}: {ast.unparse(node)}")
    assert not wrong


def test_results_of_submitit_jobs_are_not_unpickled() -> None:
    """`job.result()` and its kin load a pickle from the run folder; ranks leave JSON instead."""
    unpickle = {"result", "results", "exception", "submission", "result_pickle"}
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for file in _python("src")
        if "submitit" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in unpickle
        and ast.unparse(node.value).endswith("job")
    ]
    assert not wrong


_CPU_INDEX = "https://download.py" + "torch.org/whl/cpu"


def test_nothing_names_a_machine_or_leaves_work_behind() -> None:
    # The patterns are spelled in two halves so that this file does not match itself.
    patterns = [
        re.compile("/" + r"(work|root|home)/"),
        re.compile("TO" + r"DO|FIX" + "ME|XX" + "X"),
        re.compile(r"files\.pythonhosted|download\.py" + "torch"),
        re.compile(r"@[A-Z]{3,}@"),  # a place left to be filled in
    ]
    wrong = []
    texts = [*_python("src", "tests", "bench", "tools"), *sorted(ROOT.glob("*.md"))]
    texts += [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "Makefile", ROOT / "pyproject.toml"]
    for file in texts:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            # Except the public index of torch without CUDA, which a reader without a GPU installs from.
            line = line.replace(_CPU_INDEX, "")
            if any(pattern.search(line) for pattern in patterns):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not wrong, "\n".join(wrong)


def test_every_test_that_a_docstring_names_exists() -> None:
    missing = []
    for file in _python("src"):
        for path, name in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", file.read_text()):
            named = ROOT / path
            if not named.is_file() or (name and f"def {name}(" not in named.read_text()):
                missing.append(f"{file.relative_to(ROOT)}: {path} {name}")
    assert not missing
