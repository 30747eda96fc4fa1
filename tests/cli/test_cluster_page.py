"""The sbatch scripts of docs/cluster.md: their syntax, and the one for several nodes with stand-ins for Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.recipes.resolve import resolve
from tests.cli.starter import ARM
from tests.cli.torchrun_runs import Place
from tests.conftest import ROOT, environment

SCRIPTS = re.findall(
    r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.S
)
# Each node is a torchrun of its own on this machine; it is the same command on all of them.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 1 2; do "$@" & done
wait -n && wait -n
"""


def test_the_scripts_are_bash_and_name_recipes_that_exist() -> None:
    assert len(SCRIPTS) == 3
    for script in SCRIPTS:
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "set -euo pipefail" in script and "#SBATCH" in script
        assert script.count("srun ") == script.count(
            'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" '
        )  # since Slurm 22.05 not inherited
        words = re.search(r"stamm run (.*?) --out", script.replace("\\\n", " "), re.S)
        assert words is not None
        name, *settings = shlex.split(words[1])
        resolve(name, settings)


@pytest.mark.slow  # needs whole runs
def test_two_nodes_of_two_processes_train(place: Place) -> None:
    folder = place.folder / "bin"
    folder.mkdir()
    programs = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho localhost\necho other\n",
        "torchrun": f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    script = SCRIPTS[2]
    for before, after in (
        ("--nproc-per-node 8", "--nproc-per-node 2"),
        ("pretrain.llama_1b_xielu", "mine.py"),
        ('pack="$SCRATCH/corpus/pack"', f"pack={place.pack}"),
        ('"$SCRATCH/llama-1b"', "four"),
        (":29500", ":29517"),
    ):
        assert before in script
        script = script.replace(before, after)
    slurm = {"SLURM_JOB_NODELIST": "two", "SLURM_NNODES": "2", "SLURM_JOB_ID": f"{os.getpid()}"}
    slurm["SLURM_CPUS_PER_TASK"] = "1"
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=place.folder,
        env={**environment(), **slurm, **path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    timing = json.loads((Path(place.folder) / "four" / ARM / "log" / "timing.json").read_text())
    assert timing["processes"] == {"data": 4, "context": 1, "tensor": 1}
