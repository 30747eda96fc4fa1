"""The plan of a comparison: written before its first counted run, checked when it is reported.

Reads    chosen.ARM (chosen.json of each arm); the pilot's folder, where one is named
Leaves   plan.json, plan.sha256 (`sha256sum -c plan.sha256` checks it)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file, write_text
from stamm.base.receipts import is_present
from stamm.base.schema import decode, read_record, read_record_if_present, write_record
from stamm.compare.config import PLAN, PLAN_SHA256, PlanConfig, config_hash
from stamm.compare.records import PlanFile, PlannedArm
from stamm.compare.results import Compared, read_comparison
from stamm.pages.text import one_line
from stamm.pretrain.records import ChosenRate
from stamm.runs.job import Workspace
from stamm.runs.records import ConfigFile, ReceiptFile
from stamm.statistics.power import Spread, detectable, pooled_spread
from stamm.statistics.sequential import SPENDING

PRIMARY = "held-out bits per byte: mean over seeds of the difference to the baseline of the seed"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The plan of a comparison as its report names it.

    sha256       of plan.json; "" where there is none
    deviations   from the plan; with one, the result is exploratory
    output_deviations   by arm: standard deviation of an output of its blocks at the start
    """

    sha256: str
    deviations: tuple[str, ...]
    output_deviations: Mapping[str, float] = field(default_factory=dict)


def run(config: PlanConfig, workspace: Workspace) -> None:
    """Write the plan with the rates, and the lengths, that tuning chose."""
    workspace.progress.begin("plan", 1, "file")
    chosen = {
        arm.name: read_record(ChosenRate, workspace.inputs[f"chosen.{arm.name}"])
        for arm in config.arms
    }
    spread = (
        pilot_spread(config.pilot, config.baseline, [arm.name for arm in config.arms])
        if config.pilot
        else None
    )
    arms = [asdict(_with_choice(arm, chosen[arm.name])) for arm in config.arms]
    plan = {
        **asdict(config),
        "arms": arms,
        "primary": PRIMARY,
        "spending": SPENDING,
        "stopping": stopping_rule(config.looks, config.difference),
        "spread": spread.value if spread else None,
        "detectable": detectable(config.looks, len(arms) - 1, config.confidence),
    }
    path = workspace.folder / PLAN
    write_record(path, PlanFile, plan)
    write_text(workspace.folder / PLAN_SHA256, f"{sha256_file(path)}  {PLAN}\n")
    workspace.progress.end()


def stopping_rule(looks: Sequence[int], difference: float | None) -> str:
    """The rule that ends a comparison, as text."""
    end = f"The comparison ends after {looks[-1]} seeds"
    if len(looks) == 1:
        return f"{end}, with one look."
    early = ", ".join(map(str, looks[:-1]))
    excluded = (
        ""
        if difference is None
        else (f", or its interval excludes differences of {difference:g} bits per byte and more")
    )
    return (
        f"{end}, or after {early} if every arm is decided: its difference is shown{excluded}, or a "
        "run diverged."
    )


def pilot_spread(folder: str, baseline: str, arms: Sequence[str]) -> Spread:
    """The spread of the paired difference in the comparison in `folder`.

    Raises   ConfigError when it has no two seeds of two arms; RunError when it is not a comparison
    """
    pilot = read_comparison(Path(folder))
    bits = {arm.name: arm.judged() for arm in pilot.arms}
    spread = pooled_spread(bits, baseline if baseline in bits else pilot.baseline, arms)
    if spread is None:
        raise ConfigError(
            f"pilot = {folder} has no two arms that two seeds finished",
            fix="Finish it, or name another comparison",
        )
    return spread


def registration(run_folder: Path, compared: Compared) -> Registration:
    """The plan of the comparison in `run_folder`, and how what was run deviates from it.

    Raises   DataError when plan.json does not follow its schema
    """
    path = run_folder / "plan" / PLAN
    plan = read_record_if_present(PlanFile, path)
    if plan is None:
        return Registration(sha256="", deviations=("no plan was written before the runs",))
    sha256 = sha256_file(path)
    said = [*_file_deviations(run_folder, plan, sha256)]
    planned = {arm.name: arm for arm in plan.arms}
    for arm in compared.arms:
        if arm.name not in planned:
            said.append(f"{one_line(arm.name, 40)} is not an arm of the plan")
        else:
            said += _run_deviations(run_folder / "final" / arm.name, planned[arm.name], plan)
    return Registration(
        sha256=sha256,
        deviations=tuple(said),
        output_deviations={
            arm.name: arm.output_deviation for arm in plan.arms if arm.output_deviation is not None
        },
    )


def _file_deviations(run_folder: Path, plan: PlanFile, sha256: str) -> list[str]:
    said = []
    stored = read_record(ConfigFile, run_folder / "config.json").config
    if config_hash(stored) != plan.config_sha256:
        said.append("the configuration is not the plan's")
    if plan.primary != PRIMARY:
        said.append("the plan has another primary measure")
    steps = run_folder / "steps"
    receipt = read_record_if_present(ReceiptFile, steps / "plan.json")
    if receipt is None or receipt.outputs[PLAN].sha256 != sha256:
        said.append("plan.json is not the file that was registered")
    elif any(
        read_record(ReceiptFile, path).ended < receipt.ended
        for path in steps.glob("pretrain.*.json")
    ):
        said.append("runs were finished before the plan was written")
    return said


def _run_deviations(folder: Path, arm: PlannedArm, plan: PlanFile) -> list[str]:
    said, name = [], one_line(arm.name, 40)
    there = [path.name for path in sorted(folder.glob("*")) if is_present(path / "summary.json")]
    added = [seed for seed in there if seed not in set(map(str, plan.seeds))]
    if added:
        said.append(f"{name} has seeds that are not in the plan: {one_line(', '.join(added), 60)}")
    for seed in there:
        path = folder / seed / "config.json"
        plain = read_record(ConfigFile, path).config
        trained: _Trained = decode(_Trained, plain, str(path), "config")
        peak = trained.schedule.peak
        if peak is not None and peak != arm.rate:
            said.append(
                f"{name} with seed {seed} has the learning rate {peak:.4g}, not {arm.rate:.4g}"
            )
        factor = trained.optimizer.shape_lr_factor
        if arm.shape_factor is not None and factor != arm.shape_factor:
            said.append(
                f"{name} with seed {seed} has shape_lr_factor {factor}, not {arm.shape_factor:g}"
            )
        if trained.sequences is not None and trained.sequences != arm.sequences:
            said.append(
                f"{name} with seed {seed} has {trained.sequences:,} sequences, not {arm.sequences:,}"
            )
    return said


@dataclass(frozen=True, kw_only=True)
class _Peak:
    peak: float | None = None


@dataclass(frozen=True, kw_only=True)
class _ShapeFactor:
    shape_lr_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Trained:
    sequences: int | None = None
    schedule: _Peak = _Peak()
    optimizer: _ShapeFactor = _ShapeFactor()


def _with_choice(arm: PlannedArm, chosen: ChosenRate) -> PlannedArm:
    """`arm` at its chosen rate, and with its length where that was measured (equal time)."""
    final = chosen.runs.get("final", {})
    sequences = (
        int(final.get("sequences", arm.sequences)) if isinstance(final, dict) else arm.sequences
    )
    tokens = arm.tokens // arm.sequences * sequences
    return replace(
        arm,
        rate=chosen.rate,
        shape_factor=chosen.shape_factor,
        sequences=sequences,
        tokens=tokens,
    )
