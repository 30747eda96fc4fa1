"""Code that passes tests, and hostile code: what it may not do, it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.align.rewards import code as code_module
from stamm.align.rewards.code import CodeReward, _others, code_of, run_code
from stamm.align.rewards.config import Code
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, rewards_of
from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn

SMALL = Code(seconds=1.0, memory_mib=128, output_kib=16, processes=4)
TESTS = "assert double(2) == 4\nassert double(-1.5) == -3\n"
RIGHT = "def double(x):\n    return 2 * x\n"


def isolates() -> bool:
    try:
        CodeReward(Code())
    except ConfigError:
        return False
    return True


needs_namespaces = pytest.mark.skipif(not isolates(), reason="the kernel gives no namespaces")


def answer(text: str, **row: object) -> Answer:
    prompt = Conversation(turns=(UserTurn("Double."),))
    return Answer(prompt, AssistantTurn((Response(text),)), {"tests": TESTS, **row})


@needs_namespaces
def test_right_code_passes_and_wrong_code_fails() -> None:
    reward = load_reward(Code())
    texts = [
        f"So:\n```python\n{RIGHT}```\nDone.",
        RIGHT,
        f"```\nraise ValueError\n```\nBetter:\n```python\n{RIGHT}```",
        "```python\ndef double(x):\n    return x\n```",
        "I do not know.",
        "",
    ]
    assert rewards_of(reward, [answer(text) for text in texts]) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    (error,) = rewards_of(reward, [answer(RIGHT, tests=" ")])
    assert isinstance(error, DataError) and "no column tests" in error.line()


def test_the_last_block_is_the_code() -> None:
    assert code_of("```py\na = 1\n```\nor\n```\nb = 2\n```\n") == "b = 2\n"
    assert code_of("a ``` b") == "a ``` b"
    listed = "1. So:\n   ```python\n   def f():\n       return '''\n   a'''\n   ```\n2. Or not."
    assert code_of(listed) == "def f():\n    return '''\na'''\n"
    nested = "```\ndef f():\n    '''\n    ```\n    f()\n    ```\n    '''\n```\n"
    assert code_of(nested) == nested[4:-4]


@needs_namespaces
@pytest.mark.parametrize(
    ("hostile", "outcome"),
    [
        ("while True: pass", "timed out|failed"),
        ("import time; time.sleep(1000)", "timed out"),
        ("x = bytearray(10**9)", "failed"),
        ("while True: print('x' * 1000)", "too much output"),
        ("import os\nwhile True: os.write(2, b'y' * 1000)", "too much output"),
        ("open('big', 'wb').write(b'0' * 10**6)", "failed"),
        ("import sys; sys.exit(0)", "failed"),
        ("import os; os._exit(0)", "failed"),
        ("import os; os._exit(113)", "failed"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timed out|failed"),
        ("import os\nos.kill(0, 9)", "failed"),
        ("import os\n[os.open('answer.py', 0) for _ in range(100)]", "failed"),
        ("import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\n" + RIGHT, "passed"),
    ],
)  # fmt: skip
def test_hostile_code_ends(
    hostile: str, outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code_module.tempfile, "tempdir", str(tmp_path))
    began = time.monotonic()
    assert run_code(hostile, TESTS, SMALL) in outcome.split("|")
    assert time.monotonic() - began < 60  # the limits are 6 s, of a machine that may be busy
    assert list(tmp_path.iterdir()) == []


WRONG = "def double(x):\n    return 0\n"
CHEATS = {
    "reads the word from its input": "print('\\n' + sys.stdin.readline(), flush=True)\nos._exit(0)",
    "reads the word from file 0": "os.write(1, b'\\n' + os.read(0, 33) + b'\\n')\nos._exit(0)",
    "hides the tests": "sys.stdin = io.StringIO('')",
    "does not run the tests": "builtins.exec = lambda *given: None",
    "compiles other tests": "real = compile\nbuiltins.compile = lambda s, *g, **o: real('', *g, **o)",
    "changes a built-in": "builtins.all = lambda given: True",
    "changes imports": "builtins.__import__ = lambda *given: os._exit(0)",
    "looks in the main module": (
        "main = vars(sys.modules['__main__'])\n"
        "main.update(dict.fromkeys([*main, 'tests', 'source'], ''))\n"
        "print('\\n' + str(main.get('word', '')), flush=True)\nos._exit(0)"
    ),
    "ends at the end": "atexit.register(os._exit, 0)",
    "ends at an error": "sys.excepthook = lambda *given: os._exit(0)",
    "ends in a thread": "threading.Timer(0.05, os._exit, [0]).start()",
    "ends at a signal": (
        "signal.signal(signal.SIGALRM, lambda *given: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "def double(x):\n    time.sleep(9)"
    ),
    "ends in its own function": "def double(x):\n    os._exit(0)",
    "ends after a fork": "if os.fork():\n    os._exit(0)",
    "ends the child of a fork": "if not os.fork():\n    os._exit(0)",
    "ends by SystemExit": "def double(x):\n    raise SystemExit(0)",
    "changes how the word is written": "os.write = lambda *given: 0\nos._exit = lambda code: None",
    "replaces the output": "sys.stdout = sys.__stdout__ = type(sys.stdout)(open('out', 'wb'))",
    "rewrites the harness": "open('harness.py', 'w').write('')",
}  # fmt: skip


@needs_namespaces
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_wrong_answer_does_not_pass_by_a_cheat(cheat: str) -> None:
    imports = "import atexit, builtins, io, os, signal, sys, threading, time\n"
    tests = "import math\n" + TESTS + "assert all(double(x) == 2 * x for x in (1, 2))\n"
    config = replace(SMALL, processes=8)
    assert run_code(imports + WRONG + CHEATS[cheat], tests, config) in ("failed", "timed out")


@needs_namespaces
@pytest.mark.parametrize(
    "extra",
    [
        "try:\n    input()\nexcept EOFError:\n    pass",
        "import atexit\natexit.register(print, 'ended')",
        "import sys, io\nsys.stdout = io.StringIO()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import pickle\nclass Pair:\n    pass\npickle.loads(pickle.dumps(Pair()))",
        "import typing\nfrom dataclasses import dataclass\n@dataclass\nclass Pair:\n    x: 'int'",
    ],
)
def test_a_right_answer_passes_whatever_else_it_does(extra: str) -> None:
    assert run_code(f"{RIGHT}{extra}\n", TESTS, SMALL) == "passed"


@needs_namespaces
def test_tests_that_decide_nothing_are_named() -> None:
    """HumanEval's column defines check(candidate), and leaves the call to the program that runs it."""
    check = "METADATA = {'author': 'a'}\n\ndef check(candidate):\n    assert candidate(2) == 4\n"
    texts = [check, "assert double(2) = 4", check + "check(double)\n", "double(2) == 4 or 1 / 0"]
    texts += [
        "from answer import double\nassert double(2) == 4",
        "import numpy.linalg as n\nassert n",
        "def run():\n    assert double(2) == 4\nif __name__ == '__main__':\n    run()",
        "import unittest\nunittest.main()",
        "if __name__ == '__main__':\n    import unittest\n    unittest.main()\nelse:\n    assert double(2) == 4",
    ]
    found = rewards_of(load_reward(Code()), [answer(WRONG, tests=tests) for tests in texts])
    assert "only define names" in str(found[0]) and "are not Python" in str(found[1])
    assert found[2:5] == [0.0, 0.0, 0.0]
    assert "import numpy, which the sandbox does not have" in str(found[5])
    assert "only define names" in str(found[6]) and "by unittest.main()" in str(found[7])
    assert found[8] == 0.0


@needs_namespaces
def test_a_list_of_tests_runs_as_one_program() -> None:
    tests = ["import math", "assert double(2) == 4", "assert double(math.inf) == math.inf"]
    rows = [answer(text, tests=tests) for text in (RIGHT, WRONG)]
    rows += [answer(RIGHT, tests=tests) for tests in ([], ["assert double(2) == 4", 3])]
    found = rewards_of(load_reward(Code()), rows)
    assert found[:2] == [1.0, 0.0]
    assert all("no column tests with tests" in str(error) for error in found[2:])


@needs_namespaces
def test_a_fork_bomb_stays_small_and_leaves_no_process() -> None:
    mark = f"bomb-{os.getpid()}"
    bomb = (
        f"import os, time, ctypes\nctypes.CDLL(None).prctl(15, b'{mark[:15]}')\nstarted = 1\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            time.sleep(100)\n"
        "        started += 1\n"
        "    except OSError:\n"
        "        break\n"
        "assert started == 4, started\n"
    )
    assert run_code(bomb + RIGHT, TESTS, SMALL) == "passed"
    names = [
        path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()
    ]
    assert mark[:15] not in names


@needs_namespaces
def test_it_sees_no_network_no_home_and_no_processes(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        looks = f"""
import os, socket, sys
def refused(work):
    try:
        work()
    except (OSError, PermissionError):
        return True
    return False
assert refused(lambda: socket.create_connection(("127.0.0.1", {port}), timeout=1))
assert refused(lambda: socket.create_connection(("1.1.1.1", 53), timeout=1))
assert refused(lambda: socket.getaddrinfo("example.org", 80))
assert refused(lambda: open({str(secret)!r}))
assert refused(lambda: os.listdir("/proc"))
assert refused(lambda: open("/dev/sda"))
assert refused(lambda: os.listdir("/home")) and refused(lambda: os.listdir("/run"))
assert refused(lambda: open("/usr/written", "w")) and refused(lambda: open("/written", "w"))
assert refused(lambda: os.chmod(sys.executable, 0o777))
assert refused(lambda: os.mount) if hasattr(os, "mount") else True
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"none", b"/usr", None, 32 | 4096, None) < 0
assert libc.unshare(0x10000000) < 0 and libc.setresuid(0, 0, 0) < 0 and libc.chroot(b"/") < 0
assert sorted(os.listdir(".")) == ["answer.py", "harness.py"] and os.getpid() == 2
assert not {{"HOME", "USER", "PYTHONPATH"}} & set(os.environ)
open("mine", "w").write("x")
"""
        assert run_code(looks + RIGHT, TESTS, SMALL) == "passed"
        server.settimeout(0.0)
        with pytest.raises(OSError):
            server.accept()
    assert not Path("/written").exists()


def test_without_namespaces_it_is_refused_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = code_module._LAUNCHER.replace('call("unshare", ', 'call("unshare", 1 | ')  # EINVAL
    monkeypatch.setattr(code_module, "_LAUNCHER", broken)
    with pytest.raises(ConfigError, match=r"without network here.*allow_network=true"):
        load_reward(Code())
    reward = load_reward(Code(allow_network=True))
    assert rewards_of(reward, [answer(RIGHT), answer("def double(x): return 0")]) == [1.0, 0.0]
    assert run_code("import time; time.sleep(1000)", "", SMALL, isolated=False) == "timed out"


@needs_namespaces
def test_the_sandbox_is_the_same_in_a_process_without_a_home() -> None:
    """The interpreter is found without the environment."""
    program = (
        "from stamm.align.rewards.code import run_code\n"
        "from stamm.align.rewards.config import Code\n"
        "print(run_code('x = 1', 'assert x == 1', Code()))\n"
    )
    source = str(Path(code_module.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "passed", done.stderr[-500:]


def test_a_process_that_ends_while_processes_are_counted_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Path("/proc/0/task/0")
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*real(self, pattern), ended])
    assert _others(isolated=False) > 2
