"""Reward of code that passes tests: it runs in a sandboxed process, isolated by namespaces and limits.

A process in new user, mount, process, network and IPC namespaces sees the interpreter and the system's
libraries, read-only, and an empty working folder; no home, no /proc, no sockets. It has no capabilities,
limits of time, memory, output, files and processes, and ends with everything that it started.

The tests come through its input, with a random word that must be the last output: an answer that ends
the process does not pass. Both are read before the answer runs, which finds an empty input.

Source   unshare(2), mount_setattr(2), user_namespaces(7), capabilities(7), prctl(2), getrlimit(2)
Checked  tests/unit/align/test_code_reward.py
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from stamm.align.rewards.config import Code
from stamm.align.rewards.reward import Answer
from stamm.base.errors import ConfigError, DataError

Outcome = Literal["passed", "failed", "timed out", "too much output", "not started"]

_FENCE = re.compile(r"^([ \t]*)```[^\n`]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")
_NOT_STARTED = 113  # exit code of the launcher where the sandbox could not be made
_FILES = 64  # open files of a process

# Nothing that the answer can change by name is read after it has run; its input is empty.
_HARNESS = """\
def main():
    import builtins, os, sys, types
    run, write, leave = exec, os.write, os._exit
    word, tests = sys.stdin.readline(), sys.stdin.read()
    last = ("\\n" + word).encode()
    with open("answer.py", encoding="utf-8") as file:
        answer = compile(file.read(), "answer.py", "exec", dont_inherit=True)
    tests = compile(tests, "tests.py", "exec", dont_inherit=True)
    module = types.ModuleType("answer")
    sys.modules["answer"], names = module, module.__dict__
    originals = dict(vars(builtins))
    run(answer, names)
    names["__builtins__"] = originals
    run(tests, names)
    write(1, last)
    leave(0)
main()
"""

# argv: folder, isolated, seconds, memory, output, processes, files, python, then what is mounted.
_LAUNCHER = r"""
import ctypes, math, os, resource, signal, sys
folder, isolated, seconds, memory, output, processes, files, python, *mounts = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        number = ctypes.get_errno()
        sys.stderr.write("%s: %s" % (name, os.strerror(number)))
        sys.stderr.flush()
        os._exit(113)
def text(path):
    return os.fsencode(path)
BIND, PRIVATE, REC = 4096, 1 << 18, 16384
work = folder + "/work"
if isolated == "1":
    if os.getuid() == 0:  # limits of processes do not hold for root; files are read as before
        os.setresuid(65534, 0, 0)
    # user, mount, process, network and IPC namespaces
    call("unshare", 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000)
    call("mount", None, b"/", None, REC | PRIVATE, None)
    root = folder + "/root"
    call("mount", text(root), text(root), None, BIND, None)
    for path in [*mounts, "/dev/null"]:
        call("mount", text(path), text(root + path), None, BIND | REC, None)
    class Attributes(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("set", "clear", "propagation", "userns")]
    read_only = Attributes(1 | 2, 0, 0, 0)  # and without set-user-ID
    call("syscall", 442, -100, text(root), 0x8000, ctypes.byref(read_only), ctypes.c_size_t(32))
    call("mount", text(work), text(root + "/work"), None, BIND, None)
    os.chroot(root)
    os.chdir("/work")
else:
    os.chdir(work)
first = os.fork()
if first:
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 255
    os._exit(1 if code == 113 else code)  # its own code for what was not started
call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # end with the launcher
child = os.fork()
if child:  # process 1 of its namespace: with it all others end
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 255)
cpu = math.ceil(float(seconds))
limits = {"CPU": cpu, "AS": int(memory), "FSIZE": int(output), "NOFILE": int(files), "CORE": 0}
if isolated == "1" or os.getuid():
    limits["NPROC"] = int(processes)
for name, limit in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
call("prctl", 38, 1, 0, 0, 0)  # no new privileges
if isolated == "1":
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, data)
os.execve(python, [python, "-I", "-S", "harness.py"], {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
"""


class CodeReward:
    """See `config.Code`.

    Raises   ConfigError where the kernel cannot isolate a process and allow_network is not set
    """

    name = "code"

    def __init__(self, config: Code) -> None:
        self._config = config
        self._isolated = True
        if self._works():
            return
        if not config.allow_network:
            raise ConfigError(
                "code cannot be run without network here: the kernel gives no namespaces, or "
                f"{config.memory_mib} MiB are too few for Python",
                fix="Allow user namespaces (sysctl user.max_user_namespaces) on Linux 5.12 or later, or "
                "set reward.allow_network=true where the machine holds nothing of value",
            )
        self._isolated = False
        if not self._works():
            raise ConfigError(
                "Python does not start with these limits",
                fix="Raise reward.memory_mib, or reward.seconds",
            )

    def _works(self) -> bool:
        """Whether code that does nothing passes."""
        return run_code("", "", self._config, isolated=self._isolated) == "passed"

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        tests = answer.row.get(self._config.column)
        if isinstance(tests, list) and all(isinstance(test, str) for test in tests):
            tests = "\n".join(tests)  # as MBPP has them
        if not isinstance(tests, str) or not tests.strip():
            raise DataError(
                f"the row has no column {self._config.column} with tests", fix="Set reward.column"
            )
        _check_tests(tests, self._config.column)
        outcome = run_code(code_of(answer.text), tests, self._config, isolated=self._isolated)
        if outcome == "not started":  # as it was when the reward was loaded
            raise ConfigError("the sandbox of code could not be started again", fix="Try again")
        return float(outcome == "passed")

    def many(self, answers: Sequence[Answer]) -> list[float | DataError]:
        """The reward of each answer, `workers` at a time."""

        def reward(answer: Answer) -> float | DataError:
            try:
                return self(answer)
            except DataError as error:
                return error

        with ThreadPoolExecutor(self._config.workers) as pool:
            return list(pool.map(reward, answers))


def code_of(text: str) -> str:
    """The last fenced block of an answer, or all of it without one."""
    blocks = _FENCE.findall(text)
    return textwrap.dedent(blocks[-1][1]) if blocks else text


def _check_tests(tests: str, column: str) -> None:
    """Raises   DataError for tests that no answer can pass, or that every answer passes."""
    try:
        statements = ast.parse(tests).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(
            f"the tests in column {column} are not Python: {error}", fix="Correct the row"
        ) from error
    for module in itertools.chain(*map(_imported, statements)):
        if module not in sys.stdlib_module_names | {"answer"}:
            raise DataError(
                f"the tests in column {column} import {module}, which the sandbox does not have",
                fix="Use Python's standard library alone",
            )
    if any(_is_call_of(statement, "unittest.main") for statement in statements):
        raise DataError(
            f"the tests in column {column} end the process by unittest.main(): no answer would pass",
            fix="Run the test case by unittest.TextTestRunner, and assert that it was successful",
        )
    if not any(_runs(statement) for statement in statements):
        raise DataError(
            f"the tests in column {column} only define names: every answer would pass",
            fix="End them with the call that runs them, such as check(double)",
        )


def _imported(statement: ast.stmt) -> list[str]:
    """Top-level modules that a statement imports, whatever the answer defines."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [(statement.module or "").partition(".")[0]]
    return []


def _is_call_of(statement: ast.stmt, name: str) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == name


def _runs(statement: ast.stmt) -> bool:
    """Whether a statement does more than define names; METADATA = {...} does not.

    Edge     the program is a module, not a script: `if __name__ == "__main__":` does not run
    """
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return any(map(_runs, statement.orelse))
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
        return any(isinstance(node, ast.Call | ast.Subscript) for node in ast.walk(statement))
    definitions = (
        ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    )
    return not isinstance(statement, definitions | ast.Pass)


def run_code(code: str, tests: str, config: Code, *, isolated: bool = True) -> Outcome:
    """Run an answer's code and then its tests; nothing of it is left afterwards.

    isolated   in namespaces of its own; else with the network and the files of this user
    """
    word = secrets.token_hex(16)
    with _folder() as folder:
        work = folder / "work"
        work.mkdir()
        (work / "answer.py").write_text(code, encoding="utf-8", errors="replace")
        (work / "harness.py").write_text(_HARNESS, encoding="utf-8")
        mounts = _new_root(folder / "root") if isolated else []
        words = [
            *(str(folder), str(int(isolated)), str(config.seconds), str(config.memory_mib << 20)),
            *(str(config.output_kib << 10), str(config.processes + _others(isolated=isolated))),
            *(str(_FILES), os.path.realpath(sys._base_executable), *mounts),  # type: ignore[attr-defined]
        ]
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd=folder,
            start_new_session=True,
        ) as process:
            try:
                return _outcome(process, f"{word}\n{tests}".encode(errors="replace"), word, config)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _outcome(process: subprocess.Popen[bytes], given: bytes, word: str, config: Code) -> Outcome:
    """Feed the process, and read its output up to the limits."""
    assert process.stdin is not None and process.stdout is not None
    source, sink = process.stdout.fileno(), process.stdin.fileno()
    os.set_blocking(sink, False)
    deadline = time.monotonic() + 4 * config.seconds + 2  # and the start of two interpreters
    shown, writing = b"", [sink]
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return "timed out"
        readable, writable, _ = select.select([source], writing, [], remaining)
        if writable:
            try:
                given = given[os.write(sink, given) :]
            except OSError:
                given = b""
            if not given:
                process.stdin.close()
                writing = []
        if readable:
            part = os.read(source, 1 << 16)
            if not part:
                break
            shown += part
            if len(shown) > config.output_kib << 10:
                return "too much output"
    try:
        code = process.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return "timed out"
    if code == _NOT_STARTED:
        return "not started"
    return "passed" if code == 0 and shown.endswith(f"\n{word}\n".encode()) else "failed"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new temporary folder, removed by `rm`, which can delete folders nested to any depth."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="stamm-code-")))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def _new_root(root: Path) -> list[str]:
    """Make the empty folders of the sandbox's root; what is mounted there."""
    for folder in (root, root / "work", root / "dev"):
        folder.mkdir()
    (root / "dev" / "null").touch()
    mounts: list[str] = []
    for path in map(Path, (*_SYSTEM, os.path.realpath(sys.base_prefix))):
        target = root / path.relative_to("/")
        if not path.exists() or any(path.is_relative_to(above) for above in mounts):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        target.mkdir() if path.is_dir() else target.touch()
        mounts.append(str(path))
    return mounts


def _others(*, isolated: bool) -> int:
    """Processes that the limit counts beside those of the answer."""
    if isolated:
        return 2
    num_threads = 0
    for folder in Path("/proc").glob("[0-9]*/task/*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            num_threads += folder.stat().st_uid == os.getuid()
    return 2 + num_threads
