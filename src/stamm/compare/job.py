"""The comparison's report: one self-contained page and the same as numbers.

Reads    run (the run folder)
Leaves   comparison.html, comparison.json
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from stamm.base.files import write_json, write_text
from stamm.base.units import count_text, flops_text, seconds_text
from stamm.compare.figures import comparison_figures
from stamm.compare.noise import noise_table
from stamm.compare.results import Compared
from stamm.compare.verdict import SCALES, ArmLine, Judgement, judged
from stamm.corpus.section import corpus_facts
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import ABSENT
from stamm.pages.frame import fill
from stamm.pages.text import one_line
from stamm.pretrain.page.events import events_table
from stamm.runs.again import again_section, run_facts
from stamm.runs.job import Workspace
from stamm.runs.own_sections import own_sections

SCHEMA = 1
PAGE, NUMBERS = "comparison.html", "comparison.json"
TEMPLATE, PACKAGE = "comparison.html", "stamm.compare"
CONTENTS = (
    ("verdict", "Verdict"),
    ("figures", "Differences and curves"),
    ("noise", "Noise"),
    ("cost", "Cost"),
)


def run(config: ReportConfig, workspace: Workspace) -> None:
    """Write the page and the numbers of the comparison in inputs["run"]."""
    workspace.progress.begin("compare", 1, "page")
    compared, judgement = judged(workspace.inputs["run"])
    write_json(workspace.folder / NUMBERS, numbers(compared, judgement))
    write_text(workspace.folder / PAGE, render_comparison(compared, judgement, config))
    workspace.progress.end()


def write_comparison(run_folder: Path, out: Path, config: ReportConfig) -> Judgement:
    """Write the page about the comparison in `run_folder` to `out`; return its verdict."""
    compared, judgement = judged(run_folder)
    write_text(out, render_comparison(compared, judgement, config))
    return judgement


def judgement_in(run_folder: Path) -> Judgement:
    """The verdict of the comparison in `run_folder`, finished or not."""
    return judged(run_folder)[1]


def render_comparison(compared: Compared, judgement: Judgement, config: ReportConfig) -> str:
    """The page as HTML text; the template engine escapes every value."""
    own = own_sections(compared.view, config, [key for key, _ in CONTENTS])
    ending = (*own, again_section(compared.view, config))
    names = [one_line(arm.name, 40) for arm in compared.arms]
    context = {
        "run": compared.view,
        "title": one_line(config.title, 200) or one_line(compared.view.recipe, 120),
        "facts": (
            ", ".join(names),
            *(("exploratory",) if judgement.exploratory else ()),
            f"equal {compared.matched}",
            *((SCALES[compared.scale],) if compared.scale else ()),
            f"{len(compared.seeds)} seeds",
            *corpus_facts(compared.view),
            *run_facts(compared.view),
        ),
        "contents": (*CONTENTS, *((section.key, section.title) for section in ending)),
        "ending": ending,
        "judgement": judgement,
        "figures": comparison_figures(compared, judgement, config),
        "noise": noise_table(compared),
        "cost": cost_table(judgement),
        "events": events_table(
            [(f"{a.name}, seed {run.seed}", run.training) for a in compared.arms for run in a.runs],
            config.rows,
        ),
    }
    page = fill(TEMPLATE, context, PACKAGE, excerpt_characters=config.excerpt_characters)
    return str(page)


def cost_table(judgement: Judgement) -> DataTable:
    """Cost of each arm: parameters, work and time of a run, and of its tuning."""
    return DataTable(
        columns=(
            "arm", "activation, and width", "parameters", "tokens, of a run", "work, of a run",
            "training, of a run", "tuning, all short runs",
        ),
        rows=tuple(_cost(line) for line in judgement.lines),
        words=2,
        note="Work and time are means over seeds. Time of training is that of its steps alone; "
        "time of tuning is that of whole steps of this run, from building models to saving them.",
    )  # fmt: skip


def _cost(line: ArmLine) -> tuple[str, ...]:
    return (
        one_line(line.name, 40),
        ABSENT if line.activation is None else one_line(f"{line.activation} {line.width}", 40),
        ABSENT if line.parameters is None else f"{line.parameters:,}",
        ABSENT if line.tokens is None else count_text(line.tokens),
        ABSENT if line.flops is None else flops_text(line.flops),
        ABSENT if line.seconds is None else seconds_text(line.seconds),
        seconds_text(line.tuning_seconds),
    )


def numbers(compared: Compared, judgement: Judgement) -> dict[str, Any]:
    """The judgement as JSON values; non-finite numbers are null. Times are only on the page."""
    plain = dataclasses.asdict(judgement)
    for line in plain["lines"]:
        del line["seconds"], line["tuning_seconds"]
    by_seed = {
        arm.name: {
            "bits_per_byte": {str(seed): value for seed, value in arm.bits().items()},
            "loss_nats": {str(seed): value for seed, value in arm.nats().items()},
        }
        for arm in compared.arms
    }
    json_values: dict[str, Any] = _finite(
        {
            "schema": SCHEMA,
            "matched": compared.matched,
            "scale": compared.scale,
            **plain,
            "by_seed": by_seed,
        }
    )
    return json_values


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
