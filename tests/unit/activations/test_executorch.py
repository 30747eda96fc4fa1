"""Modules in ExecuTorch through `torch.export`: the recipe of docs/activations.md."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("executorch") is None, reason="ExecuTorch is not installed"
    ),
]
PAGE = (ROOT / "docs" / "activations.md").read_text(encoding="utf-8")
# Largest difference from the module in units of the last place.
ULPS = {
    "golu": 0,
    "mish": 0,
    "pau": 0,
    "swiglu": 0,
    "relu2": 0,
    "xielu": 1,
    "xatlu": 1,
    "symexp": 1,
}
MEASURED = """
import numpy as np
from stamm.activations.module.ops import Portable
x = torch.cat([x, torch.tensor([0.0, -0.0, 1e-40, 3e38, -3e38, float("inf"), float("nan")])])
def ulps(name):
    activation = stamm.activation(name).eval()
    given = (x, torch.cos(x.nan_to_num(0, 0, 0))) if name == "swiglu" else (x,)
    if name == "gelu":
        given = (torch.linspace(-5, 9, 1000),)
        with Portable():
            program = torch.export.export(activation, given)
    else:
        program = torch.export.export(activation, given)
    with open("one.pte", "wb") as file:
        file.write(to_edge(program).to_executorch().buffer)
    (y,) = Runtime.get().load_program("one.pte").load_method("forward").execute(list(given))
    with torch.no_grad():
        true = activation(*given)
    same = (y == true) | (y.isnan() & true.isnan())
    apart = torch.from_numpy(np.spacing(true.abs().numpy()))
    return float(torch.where(same, torch.zeros(()), (y - true).abs() / apart).max())
"""


def test_the_recipe_of_the_page_and_several_entries(tmp_path: Path) -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "executorch" in b)
    check = (
        "with torch.no_grad():\n    assert (y - activation(x)).abs().max() < 5e-8\n"
        f"{MEASURED}\n"
        f"for name, allowed in {ULPS!r}.items():\n    assert ulps(name) <= allowed, (name, ulps(name))\n"
        "assert ulps('gelu') < 50\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"{block}\n{check}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
