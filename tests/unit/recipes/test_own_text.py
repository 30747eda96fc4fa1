"""The recipe for the user's own text: sizes, what it asks for, and what it refuses."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.documents import InputRecord
from stamm.corpus.inputs import locate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.models.flops import count_parameters
from stamm.recipes.own_text import SIZES, OwnText, decoder_of, parameters_for
from stamm.recipes.resolve import build, resolve
from stamm.recipes.study import Study
from tests.unit.small_corpus import build_corpus


@functools.cache
def texts() -> tuple[str, ...]:
    """Shipped articles, cut to 1,500 characters."""
    path = locate("package:guides.jsonl.zst", "")
    records = itertools.islice(read_input(path.name, path, ReadLimits()), 40)
    found = [r.content.decode()[:1500] for r in records if isinstance(r, InputRecord)]
    return tuple(dict.fromkeys(found))


def text_of(number: int) -> str:
    return texts()[number]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.txt").write_text("\n\n".join(text_of(n) for n in range(20)))
    return str(tmp_path / "mine.txt")


@pytest.mark.parametrize("parameters", [50_000, 1_200_000, 3_000_000, 77_000_000, 2_000_000_000])
@pytest.mark.parametrize("text", [1e7, 1e11])
def test_a_decoder_has_about_the_parameters_that_were_asked_for(
    parameters: int, text: float
) -> None:
    decoder = decoder_of(parameters, text)
    assert count_parameters(decoder).total == pytest.approx(parameters, rel=0.25)


def test_the_default_size_follows_the_amount_of_text() -> None:
    sizes = [parameters_for(text) for text in (1e4, 1e6, 2e7, 1e9, 1e11)]
    assert sizes == sorted(sizes)
    assert sizes[2] == SIZES["tiny"]
    assert sizes[3] == 1e9 / 4 / 20  # 20 tokens a parameter
    assert decoder_of(sizes[0], 1e4).vocab_size == 512  # more would not be found in it


def test_it_is_one_arm_with_every_filter_and_nothing_planted(mine: str) -> None:
    study = build("train.own", f"inputs={mine}")
    assert isinstance(study, Study)
    corpus = study.corpus
    assert [arm.ffn.spec.name for arm in study.arms] == ["xielu"]
    assert (corpus.consent.unknown_host, corpus.consent.no_url) == ("drop", "own")
    assert corpus.consent.robots == ()
    assert corpus.licences is not None and corpus.licences.unknown == "own"
    assert corpus.quality is not None and corpus.dedup is not None
    assert corpus.probes is None and study.audit is None
    jobs = [step.job for step in study.steps()]
    assert "canaries" not in jobs
    assert {"evaluate", "export", "report"} <= set(jobs)


def test_what_is_planted_is_audited(mine: str) -> None:
    study = build("train.own", f"inputs={mine}", "planted=package:probe_books.jsonl.zst")
    jobs = [step.job for step in study.steps()]
    assert jobs[0] == "canaries"
    assert "audit" in jobs


def test_every_setting_of_its_study_can_be_changed(mine: str) -> None:
    recipe = resolve(
        "own", [f"inputs={mine}", "size=3M", "pretrain.epochs=2", "corpus.fields.text=body"]
    )
    study = recipe.config
    assert isinstance(study, Study) and recipe.is_own
    assert (study.pretrain.epochs, study.corpus.fields.text) == (2.0, "body")
    assert study.pretrain.model.vocab_size == study.tokenizer.vocab_size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["size=3M", "pretrain.epochs=2"], "there is no text to train on. Set inputs=FILES"),
        (["inputs=FILE", "corpus.inputs=x"], "corpus.inputs=x is set by inputs"),
        (["inputs=FILE", "size=smal"], "Did you mean 'small'? Known: auto, tiny"),
        (["inputs=FILE", "size=12"], "size = 12 lies outside 50k to 4B"),
        (["inputs=FILE", "sizes=3M"], "unknown key 'sizes'"),
        (["input=FILE"], "unknown key 'input' (set on the command line). Did you mean 'inputs'?"),
        (
            ["inputs=FILE", "arm=3"],
            "unknown key 'arm' (set on the command line). Did you mean 'arms'?",
        ),
        (["input=FILE", "siz=3M", "pretrain.epochs=2"], "2 problems: (1) unknown key 'input'"),
        (["inputs=FILE.pdf"], "FILE.pdf does not exist (corpus.inputs)"),
    ],
)
def test_what_it_refuses(changes: list[str], words: str, mine: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        resolve("train.own", [change.replace("FILE", mine) for change in changes])
    assert words.replace("FILE.pdf", f"{mine}.pdf") in caught.value.line()


def test_without_inputs_it_can_be_shown_and_has_no_steps() -> None:
    assert resolve("train.own", ["size=tiny"]).config == OwnText(size="tiny")
    with pytest.raises(ConfigError, match="Set inputs=FILES_OR_FOLDER"):
        OwnText().steps()


def test_whose_text_is_whose(tmp_path: Path) -> None:
    """Own text stays; of the web nothing whose host was not asked; a row that hides an address neither."""
    rows = [
        {"text": text_of(1)},
        {"text": text_of(2), "url": "https://unknown.example/a"},
        {"text": text_of(3), "url": ""},
        {"text": text_of(4), "id": "https://unknown.example/b"},
        {"text": text_of(5), "licence": "GPL-3.0-only"},
        {"text": text_of(6), "licence": "ask the author"},
        {"text": text_of(7), "url": "https://kept.example/a", "licence": "CC0-1.0"},
        {"text": text_of(8), "url": "https://kept.example/b"},
        {"text": text_of(9), "url": "https://refused.example/a", "licence": "CC0-1.0"},
        {"text": text_of(1)},
        {"text": "too short"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.txt").write_text(text_of(11))
    robots = tmp_path / "robots"
    robots.mkdir()
    (robots / "robots.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "kind": "robots",
                    "domain": host,
                    "url": f"https://{host}/robots.txt",
                    "status": 200,
                    "fetched": "2026-01-01",
                    "text": f"User-agent: *\n{rule}\n",
                }
            )
            + "\n"
            for host, rule in (("kept.example", "Allow: /"), ("refused.example", "Disallow: /"))
        )
    )
    inputs = (str(tmp_path / "rows.jsonl"), str(tmp_path / "mine.txt"))
    study = OwnText(inputs=inputs, robots=(str(robots),)).study()
    out = tmp_path / "out"
    out.mkdir()
    summary = json.loads((build_corpus(study.corpus, out) / "summary.json").read_text())
    assert {name: one["documents"] for name, one in summary["dropped_by_reason"].items()} == {
        "no_url": 2,
        "licence_unknown": 2,
        "exact_duplicate": 1,
        "licence_denied": 1,
        "quality": 1,
        "robots_disallow": 1,
        "unknown_host": 1,
    }
    kept = {name: one["documents"] for name, one in summary["kept_by_consent"].items()}
    assert kept == {"no_url": 2, "robots_allows": 1}
    assert summary["n_in"] == summary["n_kept"] + summary["n_dropped"] == 12
    assert sum(one["documents"] for one in summary["by_split"].values()) == summary["n_kept"]
