"""A Slurm of one machine: sbatch, srun, sacct and scancel, so far as submitit asks for them.

The folder in FAKE_SLURM is its state: JOB_RANK.pid and .end of each rank, and what was submitted
and cancelled, and `environment`: names of Slurm's variables. `refuse` there holds what sbatch says instead of taking the next array, `limit` its
MaxArraySize; `no accounts` makes sacct refuse.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")


def install(folder: Path) -> Path:
    """Make the commands in `folder`; what PATH must begin with."""
    for name in COMMANDS:
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        call = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)} {name}"
        path.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        path.chmod(0o755)
    return folder / "bin"


def sbatch(state: Path, words: list[str]) -> int:
    """Start the ranks of a script, each in a session of its own."""
    text = Path(words[0]).read_text()  # Slurm keeps a copy: submitit moves the file afterwards
    found = re.search(r"--array=0-([0-9]+)%", text)
    count = int(found[1]) + 1 if found else 1
    limit, refuse = state / "limit", state / "refuse"
    if limit.exists() and count > int(limit.read_text()):
        refuse.write_text("Batch job submission failed: Invalid job array specification")
    if refuse.exists():
        sys.stderr.write(f"sbatch: error: {refuse.read_text()}\n")
        return 1
    job = str(time.time_ns() // 1000)
    (state / f"{job}.sh").write_text(text)
    names = [name for name in os.environ if name.startswith(("SLURM_", "SRUN_", "SBATCH_"))]
    (state / "environment").write_text("\n".join(sorted(names)))
    for rank in range(count):
        name = f"{job}_{rank}" if found else job
        array = {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(rank)} if found else {}
        script, end = shlex.quote(str(state / f"{job}.sh")), shlex.quote(str(state / f"{name}.end"))
        process = subprocess.Popen(
            ["bash", "-c", f"bash {script}; echo $? > {end}"],
            env={**os.environ, "SLURM_JOB_ID": job, **array},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (state / f"{name}.pid").write_text(str(process.pid))
    with (state / "submitted").open("a") as log:
        log.write(f"{job} {count}\n")
    if (state / "refuse after").exists():
        (state / "refuse after").rename(refuse)
    print(f"Submitted batch job {job}")
    return 0


def srun(state: Path, words: list[str]) -> int:
    """Do a command with its streams in files, whose names hold the rank's numbers."""
    job = os.environ["SLURM_JOB_ID"]
    numbers = {"%A": job, "%a": os.environ.get("SLURM_ARRAY_TASK_ID", ""), "%j": job, "%t": "0"}
    while words[0].startswith("--"):
        option = words.pop(0)
        if option in ("--output", "--error"):
            path = words.pop(0)
            for pattern, number in numbers.items():
                path = path.replace(pattern, number)
            stream = 1 if option == "--output" else 2
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), stream)
    os.execvp(words[0], words)


def sacct(state: Path, words: list[str]) -> int:
    """Tell the state of every rank of the jobs asked about."""
    if (state / "no accounts").exists():
        sys.stderr.write("Slurm accounting storage is disabled\n")
        return 1
    print("JobID|State|NodeList")
    for job in words[words.index("-j") + 1 :: 2]:
        for path in [state / f"{job}.pid", *state.glob(f"{job}_*.pid")]:
            if path.exists():
                print(f"{path.stem}|{_state(path)}|here")
    return 0


def scancel(state: Path, words: list[str]) -> int:
    """Kill the ranks of a job."""
    with (state / "cancelled").open("a") as log:
        log.write(f"{words[0]}\n")
    for path in [state / f"{words[0]}.pid", *state.glob(f"{words[0]}_*.pid")]:
        if path.exists() and _state(path) == "RUNNING":
            os.killpg(int(path.read_text()), signal.SIGKILL)
    return 0


def _state(path: Path) -> str:
    end = path.with_suffix(".end")
    if end.exists():
        return "COMPLETED" if end.read_text().strip() == "0" else "FAILED"
    try:
        os.killpg(int(path.read_text()), 0)
    except ProcessLookupError:
        return "NODE_FAIL"
    return "RUNNING"


if __name__ == "__main__":
    COMMAND = {"sbatch": sbatch, "srun": srun, "sacct": sacct, "scancel": scancel}[sys.argv[1]]
    sys.exit(COMMAND(Path(os.environ["FAKE_SLURM"]), sys.argv[2:]))
