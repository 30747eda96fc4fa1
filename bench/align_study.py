"""Alignment objectives on a small language model: six questions with equal tuning and 5 or 8 seeds.

The plan is in `bench/align_study_plan.py`.

Run      python -m bench.align_study --dialogues FILE --out FILE.jsonl [--questions tuning curve ..]
         [--until HH:MM]; --dialogues: utterances of the Schema-Guided Dialogue data (CC-BY-SA-4.0,
         google-research-datasets/dstc8-schema-guided-dialogue), JSON lines with "messages", zstd
         python -m bench.align_study --tables FILE.jsonl [--figures FOLDER]
Resumes  a line of the file is a finished run; a run that has one is not repeated
Prints   tables. One thread; 100 CPU seconds for the start model, then 2 to 3 for a run
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path

from bench.align_study_figures import figures
from bench.align_study_page import page
from bench.align_study_plan import BEST_OF, FEW, QUESTIONS, Line, runs_of
from bench.align_study_run import best_of, performed
from bench.align_study_world import Reward, Sizes, World, build_world
from bench.capability import processor_facts
from stamm.base.files import write_text
from stamm.models.determinism import set_determinism


def perform(world: World, questions: Sequence[str], out: Path, until: str) -> None:
    """Do the runs of `questions` that `out` does not have."""
    rewards = functools.lru_cache(maxsize=2)(lambda seed: Reward(world, seed))
    lines = read_lines(out)
    done = {x["key"] for x in lines}
    if not lines:
        _append(out, [{"key": "machine", **world.facts, **processor_facts()}])
    for question in questions:
        began, count = time.process_time(), 0
        for run in runs_of(question, read_lines(out)):
            if run.key in done:
                continue
            if until and time.strftime("%H:%M") >= until:
                print(f"stopped at {until}; the same command continues", flush=True)
                return
            _append(out, [{"key": run.key, **performed(world, rewards(run.seed), run)}])
            done.add(run.key)
            count += 1
        for seed in range(FEW) if question == "proxy" else ():
            key = f"best of N {seed}"
            if key not in done:
                found = best_of(world, rewards(seed), seed, BEST_OF)
                _append(out, [{"key": key, **line} for line in found])
        seconds = time.process_time() - began
        print(f"{question}: {count} runs, {seconds:.0f} CPU s", flush=True)


def read_lines(path: Path) -> list[Line]:
    """The lines of a file of results; none where there is no file."""
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, lines: Sequence[Line]) -> None:
    with path.open("a") as out:
        out.write("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    """Run the questions, or print the tables of a file and draw its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dialogues", type=Path)
    parser.add_argument("--world", type=Path, default=Path("build/align_study"))
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--until", default="", help="do not begin a run after this time, HH:MM")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--figures", type=Path, help="with --tables: folder to draw into")
    options = parser.parse_args()
    if options.tables:
        lines = read_lines(options.tables)
        print(page(lines))
        for name, svg in figures(lines).items() if options.figures else ():
            write_text(options.figures / f"{name}.svg", svg)
        return
    if not options.dialogues or not options.out:
        parser.error("--dialogues and --out are needed")
    set_determinism(1)
    world = build_world(Sizes(), options.dialogues, options.world)
    print(json.dumps(world.facts), flush=True)
    perform(world, options.questions, options.out, options.until)


if __name__ == "__main__":
    main()
