"""Every file of `bench/` runs: in its quickest form here, in another test, or not, with the reason.

The numbers of so short a form mean nothing. The tests show that a benchmark fits the package of today,
ends with exit code 0 and prints a figure of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from stamm.activations.fused import build
from tests.conftest import ROOT, environment

DEMO = ROOT / "src" / "stamm" / "corpus" / "demo_data"
# What each form prints: a regular expression with the figure in it. MADE are inputs that this file
# makes, RUN is an arm of the smoke recipe, OUT is written by the benchmark.
QUICK: dict[str, list[tuple[str, str]]] = {
    "accountability": [
        (
            "--tokens 100000 --rows 50",
            r"(?s)trace by url .*seconds \d.*receipt +rows 50 +seconds \d",
        )
    ],
    "align_speed": [
        (
            "--arms stamm-eager loop --tasks dpo --rounds 1 --steps 1 --warm-up 0 --threads 1",
            r"\| stamm-eager \| [\d,]+ .*\n\| loop \| [\d,]+",
        ),
        (
            "--arms stamm-eager --tasks sft --rounds 1 --steps 1 --warm-up 0 --threads 1",
            r"\| \d\.\d{4} \|",
        ),
    ],
    "align_study": [("--tables bench/results/align_study.jsonl --figures OUT", r"\d\.\d{3}")],
    "align_truth": [
        (
            "--questions curve binary outlier --seeds 0 --steps 3",
            r"(?s)\| rebel \| 0\.5 \| 1 \| \d.*\| mid, exact \| \d.*\| qrpo \| 1 of 1 \| 0\.\d",
        )
    ],
    "attention": [("--quick", r" 64 +32 +\d.* \d+\.\d\d\n")],
    "classifiers": [("MADE/sets --only fastText,cases,speed", r'"documents_per_s": \d+')],
    "corpus": [
        (
            "DEMO/rights.jsonl.zst --arms stamm --rounds 1 --datatrove-python none"
            " --evaluation MADE/asked.jsonl",
            r"stamm.*\d\.\d",
        )
    ],
    "corpus_memory": [
        (
            "DEMO/pages.warc.gz --sizes 1 --pages 5 --changes tokenizer.vocab_size=1024",
            r"\| 1 filter \| \d+",
        )
    ],
    "cpu": [("--quick --capability native --only attention --out OUT", "attention: ")],
    "decode": [
        (
            "--models llama --sizes tiny --rows 1 --rounds 1 --tokens 2",
            r"llama tiny +1 +\d+\.\d{3} +\d+\.\d{3} +\d+\.\d{3} +\d+\.\d\d",
        ),
        (
            "--models apertus --sizes tiny --rows 2 --rank 32 --rounds 1 --tokens 2",
            r"apertus tiny +2( +\d+\.\d{3}){3}",
        ),
    ],
    "dedup": [
        ("recall MADE/texts.jsonl", r'"recall": 1\.0'),
        ("recall DEMO/rights.jsonl.zst --sample 20", r'"joined": 0\}'),
        ("memory --documents 200", r'"peak_mib": \d+'),
    ],
    "entries": [("--names relu --dtypes float32 --shape 64x64 --rounds 2", r"relu +float32 .*\d")],
    "evaluation": [("RUN --items 4 --batch 4 --threads 1 --rounds 1", r'"ratio": \d')],
    "export_rounding": [("RUN --types F32", r"F32 +\d\.\d{5} bits per byte")],
    "extraction": [
        ("MADE/pages --articles MADE/articles", r'"recall": 1\.0.*"articles": \{"pages": 8')
    ],
    "filters": [("DEMO/rights.jsonl.zst --documents 5", r'"quality".*"documents_per_s": \d')],
    "gpu": [
        ("--device cpu --quick --only block --only loss --out OUT/gpu.jsonl", r"\) ms \| \d+\.\d")
    ],
    "gpu_training": [("xielu --device cpu --quick", r'"tokens_per_s": \[\d')],
    "linear_cross_entropy": [("--quick", r"float32 +[\d,.]+ +[\d,.]+")],
    "memory_policies": [("--rounds 1", r"xielu +activation checkpointing +\d+\.\d MiB +\d")],
    "optimizer": [("--quick", r"fused +\d+\.\d\d +1\.00")],
    "patching": [
        ("--quick --rounds 1", r"shared \d+\.\d\d and \d+\.\d\d times as fast; \d\.\de-0\d apart")
    ],
    "pii": [("--corpus DEMO/rights.jsonl.zst", r"stamm +email 1\.000[^$]*phone +\d+\.\d MB/s")],
    "plan_time": [("--cases small --seconds 0.01 --threads 1 --no-compile", r"small +12 +\d+\.\d")],
    "portable_bits": [("--plain --steps 3", r'"ms": \{"plain": \[\d')],
    "robots": [("--addresses 2", r"\d   shuffled\n")],
    "sampling": [
        (
            "--models llama --sizes small --threads 1 --rounds 1 --tokens 4",
            r"llama small +[\d,]+ +\d",
        )
    ],
    "sizes": [("--quick", r"silu float32 both 2\^3: stamm, exact \d")],
    "sparse_decode": [("--sizes tiny --rounds 1", r"tiny +gated +0\.1 +\d+\.\d{3} +\d+\.\d\d")],
    "start": [("--rounds 1", r"stamm ls recipes +\d\.\d{3} s")],
    "tokenizer": [("--quick", r"hostile strings: \d+ the quick way, 0 with other ids")],
    "trainers": [
        (
            "--arms stamm-eager trainer --rounds 1 --steps 1 --warm-up 1 --threads 1 --no-commands",
            r"\| trainer \| [\d,]+ ",
        )
    ],
    "structured": [
        ("--size tiny --rounds 1 --steps 1", r"block shuffle, 1/4 +\d+\.\d +\d+\.\d\d +0\.\d\d")
    ],
    "training_step": [
        (
            "--arms swiglu --eager --rounds 1 --steps 1 --warm-up 0",
            r"swiglu +[\d,]+ +[\d,]+ +\d\.\d\d",
        )
    ],
}
ELSEWHERE = {
    "carve": "tests/unit/adapt/test_carve_bench.py",
    "corpus_stamm": "tests/cli/test_benchmarks.py",  # the half of "corpus" that is run above
    "gpu_page": "tests/house/test_gpu_page.py",
    "plan_memory": "tests/unit/pretrain/test_plan_benches.py",
    "pfo_study": "tests/unit/align/test_pfo_study.py",
    "replay": "tests/unit/release/test_replay.py",
}
LEFT_OUT = {
    "corpus_datatrove": "the other half: needs an interpreter with datatrove, which the tests do not have",
}
PARTS = {  # no command line of their own: imported by the benchmark named
    "align_study_figures": "align_study",
    "align_study_page": "align_study",
    "align_study_plan": "align_study",
    "align_study_run": "align_study",
    "align_study_world": "align_study",
    "align_truth_page": "align_truth",
    "capability": "cpu",
    "gpu_work": "gpu",
}
SETS = (  # that `bench.classifiers` reads
    "toxicity/natural_5lang", "toxicity/hatecheck_11lang", "eltec-novels/eltec_chapters",
    "opensource-guide/articles", "fedlex-ch/laws", "udhr/udhr", "tldr-pages/pages",
    "us-speeches/speeches", "peps/peps", "18f-blog/posts", "helm-docs/docs", "bible-pd/chapters",
    "eval/xquad", "eval/xcopa", "instruct-gsm8k/gsm8k",
)  # fmt: skip
COMPILE = (
    "attention",
    "cpu",
    "entries",
    "gpu",
    "gpu_training",
    "optimizer",
    "portable_bits",
)  # need a C++ compiler
MAY_MISS = ("start",)  # exits with 1 where a machine is slower than its aims


def test_every_benchmark_is_named_once() -> None:
    named = [*QUICK, *ELSEWHERE, *LEFT_OUT, *PARTS]
    assert sorted(named) == sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    for path in (ROOT / "bench").glob("*.py"):
        text = path.read_text()
        assert ('__name__ == "__main__"' in text) == (path.stem not in PARTS), path.stem
        assert path.stem in PARTS or f"python -m bench.{path.stem}" in text, path.stem
    for name, importer in PARTS.items():
        assert f"from bench.{name} import" in (ROOT / "bench" / f"{importer}.py").read_text()
    for name, test in ELSEWHERE.items():
        assert (ROOT / test).is_file() and name in (ROOT / test).read_text()


def test_one_spelling_starts_a_benchmark() -> None:
    """`python bench/NAME.py` would find no `bench` to import from."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.py")]
    assert not [path for path in texts if re.search(r"python bench/\w+\.py", path.read_text())]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of the benchmarks that need data of others, as small as they can be."""
    folder = tmp_path_factory.mktemp("bench")
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in ("ra", "so", "ti", "ve")]
    dice = random.Random(0)
    texts = [f"{' '.join(dice.choices(words, k=80)).capitalize()}." for _ in range(40)]
    rows = [{"id": f"{n}", "text": text} for n, text in enumerate([*texts, f"{texts[0]} Yes."])]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "asked.jsonl").write_text(json.dumps({"text": texts[5]}) + "\n")
    _write_pages(folder, texts)
    for name in SETS:
        rows = [
            {"id": f"{n}", "text": f"{name} {text}", "label": n % 2, "language": "eng_Latn"}
            | {"source": name, "title": f"{n}"}
            for n, text in enumerate(texts)
        ]
        path = folder / "sets" / f"{name}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    return folder


def _write_pages(folder: Path, texts: list[str]) -> None:
    """Annotated pages, in the layouts of the two sets that `bench.extraction` reads."""
    (folder / "pages" / "tests" / "cache").mkdir(parents=True)
    (folder / "articles" / "html").mkdir(parents=True)
    annotations, articles = {}, {}
    for number in range(8):
        first, second = texts[2 * number : 2 * number + 2]
        page = (
            f"<html><body><nav><a href='/'>Home {number}</a></nav><main><p>{first}</p>"
            f"<p>{second}</p></main></body></html>"
        )
        (folder / f"pages/tests/cache/{number}.html").write_text(page)
        (folder / f"articles/html/{number}.html.gz").write_bytes(gzip.compress(page.encode()))
        annotations[f"https://{number}.example/"] = {
            "file": f"{number}.html", "with": [first, second], "without": [f"Home {number}"],
        }  # fmt: skip
        articles[f"{number}"] = {"articleBody": f"{first} {second}"}
    (folder / "pages/tests/evaldata.json").write_text(json.dumps(annotations))
    (folder / "articles/ground-truth.json").write_text(json.dumps(articles))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "figure"),
    [(name, *form) for name, forms in QUICK.items() for form in forms],
    ids=[f"{name}-{number}" for name, forms in QUICK.items() for number in range(len(forms))],
)
def test_a_benchmark_runs(
    name: str, form: str, figure: str, made: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folders = {"MADE": made, "DEMO": DEMO, "OUT": tmp_path}
    if form.startswith("RUN"):
        folders["RUN"] = request.getfixturevalue("smoke_run") / "arms" / "xielu"
    if name in COMPILE and (why := build.unavailable_reason()):
        pytest.skip(why)
    for word, folder in folders.items():
        form = form.replace(word, str(folder))
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *shlex.split(form)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in ((0, 1) if name in MAY_MISS else (0,)), done.stderr[-3000:]
    assert re.search(figure, done.stdout), done.stdout[-3000:]


def test_points_of_the_ladder_run_side_by_side(smoke_run: Path, tmp_path: Path) -> None:
    """`bench/gpu_ladder.sh` without a GPU: a tuned point, and one that is refused and so fails the whole."""
    script = ROOT / "bench" / "gpu_ladder.sh"
    settings = "tokens_a_parameter=0.18 pretrain.engine.compile=off pretrain.model.num_layers=1"
    points = [f"size=0.35 {settings} rates=near tuning.refinements=0", "size=7"]
    done = subprocess.run(
        ["bash", script, smoke_run, tmp_path / "out", "2", *points],
        env={**environment(), "DEVICE": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    tuned, refused = done.stdout.splitlines()
    assert "plan: done" in tuned and "size = 7 is not a size of the ladder" in refused
    assert list((tmp_path / "out").glob("*rates=near*/tune/xielu/chosen/chosen.json"))
