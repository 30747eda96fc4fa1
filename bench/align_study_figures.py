"""Figures of `bench.align_study`, as SVG files in the colours of the light theme."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from bench.align_study_page import CURVE, at_chosen, blocks, difference, few, peaks, select
from bench.align_study_plan import BEST_OF, SETTINGS, SWEEP, Line
from stamm.pages.svg_figure import Axes, draw, legend
from stamm.pages.theme import LIGHT, drawn, painted_in, series

_MARKS = "osD^vPX"


def figures(lines: Sequence[Line]) -> dict[str, str]:
    """The SVG text of each figure whose runs are there, by name."""
    makers: dict[str, tuple[int, Callable[[Sequence[Line], list[Axes]], None]]] = {
        "curve": (1, _curve),
        "length": (1, _length),
        "proxy": (len(SWEEP), _proxy),
        "references": (1, _references),
    }
    needed: dict[str, list[Line]] = {
        "curve": select(lines, arm="rebel"),
        "length": select(lines, arm="qrpo", rho=0.6),
        "proxy": select(lines, arm="rebel", reward="proxy"),
        "references": select(lines, arm="qrpo", references=1, source="own"),
    }
    found = {}
    for name, (panels, paint) in makers.items():
        if len(needed[name]) > 1:
            with painted_in(LIGHT):
                svg = draw(f"study-{name}", 3.4, functools.partial(paint, lines), panels=panels)
            paper = f"background:{LIGHT['paper']};font-family:sans-serif"
            head = f'<svg xmlns="http://www.w3.org/2000/svg" style="{paper}" '
            found[name] = svg.replace("<svg ", head, 1).replace(' aria-hidden="true"', "", 1) + "\n"
    return found


def _points(
    axes: Axes, groups: Sequence[Sequence[Line]], name: str, place: int, label: str
) -> None:
    """Mean of a measure against mean KL, with both intervals."""
    x = [difference(blocks(of, "kl")) for of in groups]
    y = [difference(blocks(of, name)) for of in groups]
    axes.errorbar(
        [mean for mean, _, _ in x], [mean for mean, _, _ in y],
        xerr=[half for _, half, _ in x], yerr=[half for _, half, _ in y],
        fmt=_MARKS[place % len(_MARKS)] + ("-" if len(groups) > 1 else ""), color=series(place),
        ms=4.5, lw=1.2, elinewidth=0.8, label=label,
    )  # fmt: skip


def _frontier(axes: Axes, last: float) -> None:
    kl = np.linspace(0, last, 200)
    axes.plot(kl, CURVE.quantile(kl), color=drawn("muted"), lw=1.2, label="closed form")


def _curve(lines: Sequence[Line], panels: list[Axes]) -> None:
    axes, rate = panels[0], at_chosen(lines, "qrpo")[0]["rate"]
    every = select(lines, arm="qrpo", rate=rate)
    betas = sorted({x["beta"] for x in every})
    groups = [[x for x in every if x["beta"] == beta] for beta in betas]
    groups = [of for of in groups if len(of) > 1]
    ends = [statistics.fmean(x["kl"] for x in of) for of in groups]
    for place, arm in enumerate(SETTINGS):
        of = groups if arm == "qrpo" else [at_chosen(lines, arm)]
        _points(axes, of, "quantile", place, "qrpo, all β" if arm == "qrpo" else arm)
        ends.append(statistics.fmean(x["kl"] for x in of[-1]))
    _frontier(axes, 1.1 * max(ends))
    axes.set_xlabel("KL from the start model, nats")
    axes.set_ylabel("mean quantile")
    legend(axes, 4)


def _length(lines: Sequence[Line], panels: list[Axes]) -> None:
    axes = panels[0]
    for place, arm in enumerate(SETTINGS):
        of = [(rho, at_chosen(lines, arm, rho=rho)) for rho in (0.0, 0.3, 0.6)]
        of = [(rho, x) for rho, x in of if len(x) > 1]
        found = [difference(blocks(x, "excess")) for _, x in of]
        axes.errorbar(
            [rho + 0.006 * (place - 3) for rho, _ in of], [mean for mean, _, _ in found],
            yerr=[half for _, half, _ in found], fmt=_MARKS[place] + "-", color=series(place),
            ms=4, lw=1.1, label=arm,
        )  # fmt: skip
    axes.set_xlabel("correlation of the reward with length")
    axes.set_ylabel("excess length, tokens")
    legend(axes, 4)


def _proxy(lines: Sequence[Line], panels: list[Axes]) -> None:
    best = [x for x in lines if x.get("arm") == "best of N"]
    of_n = [[x for x in best if x["n"] == n] for n in BEST_OF]
    of_n = [of for of in of_n if of]
    for axes, arm in zip(panels, SWEEP, strict=True):
        groups = peaks(lines, arm)[0]
        _points(axes, groups, "quantile", 0, "proxy")
        _points(axes, groups, "gold", 1, "gold")
        axes.plot(
            [of[0]["kl"] for of in of_n],
            [statistics.fmean(x["gold"] for x in of) for of in of_n],
            color=drawn("muted"), lw=1.2, label="gold, best of N",
        )  # fmt: skip
        axes.set_xlabel(f"KL of {arm}, nats")
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xticks([0, 1, 3, 10, 30], ["0", "1", "3", "10", "30"])
        axes.minorticks_off()
        axes.set_ylim(0.45, 1.0)
    panels[0].set_ylabel("mean quantile")
    panels[-1].legend(loc="lower right")


def _references(lines: Sequence[Line], panels: list[Axes]) -> None:
    names = {"own": "off-policy: own answers", "other": "offline: another model's"}
    for place, (source, label) in enumerate(names.items()):
        of = [(n, few(lines, "qrpo", references=n, source=source)) for n in BEST_OF]
        of = [(n, x) for n, x in of if len(x) > 1]
        found = [difference(blocks(x, "below")) for _, x in of]
        panels[0].errorbar(
            [n for n, _ in of], [mean for mean, _, _ in found],
            yerr=[half for _, half, _ in found], fmt=_MARKS[place] + "-", color=series(place),
            ms=4.5, lw=1.2, label=label,
        )  # fmt: skip
    panels[0].set_xscale("log", base=2)
    panels[0].set_xticks(list(BEST_OF), [str(n) for n in BEST_OF])
    panels[0].set_xlabel("references of a prompt, n")
    panels[0].set_ylabel("mean quantile below the curve")
    legend(panels[0], 2)
