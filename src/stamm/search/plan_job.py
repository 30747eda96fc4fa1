"""Register the plan of a search before its first training run.

Reads    costs (costs.json)
Leaves   plan.json, plan.sha256 (`sha256sum -c plan.sha256` checks it)
"""

from __future__ import annotations

from dataclasses import asdict

from stamm.base.files import sha256_file, write_text
from stamm.base.schema import read_record, write_record
from stamm.runs.job import Workspace
from stamm.search.config import SearchPlanConfig
from stamm.search.records import PLAN, PLAN_SHA256, CostsFile, SearchPlanFile


def run(config: SearchPlanConfig, workspace: Workspace) -> None:
    """Write the plan."""
    workspace.progress.begin("plan", 1, "file")
    passed = set(read_record(CostsFile, workspace.inputs["costs"]).passed)
    plan = asdict(config)
    plan["candidates"] = [
        asdict(candidate) for candidate in config.candidates if candidate.name in passed
    ]
    path = workspace.folder / PLAN
    write_record(path, SearchPlanFile, plan)
    write_text(workspace.folder / PLAN_SHA256, f"{sha256_file(path)}  {PLAN}\n")
    workspace.progress.end(f"{len(plan['candidates'])} candidates registered")
