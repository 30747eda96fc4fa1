"""Score the answers of a file as a step of a run.

Reads    answers (a file of rows with a prompt and a completion)
Writes   scored.jsonl (the rows with the column "reward"), scored.jsonl.manifest.json
"""

from __future__ import annotations

from stamm.align.rewards.reward_config import ScoreConfig
from stamm.align.rewards.score import score_file
from stamm.runs.job import Workspace

SCORED = "scored.jsonl"


def run(config: ScoreConfig, workspace: Workspace) -> None:
    """Score every answer of the input.

    Raises   as `score_file`
    """
    out = workspace.folder / SCORED
    out.unlink(missing_ok=True)  # of an attempt that was interrupted
    workspace.progress.begin("score", 1, "files")
    summary = score_file(workspace.inputs["answers"], out, config)
    bad = f", {summary.num_bad} without a reward" if summary.num_bad else ""
    workspace.progress.end(f"mean reward {summary.mean:.3f}{bad}")
