"""Writes a small run folder with every part a report can show, written from numbers made up here."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

STEPS = 60
HOSTILE = '<script>alert("x")</script><img src=http://evil.example/a.png onerror=alert(1)>'
LANGUAGES = ("eng_Latn", "deu_Latn", "ell_Grek", "tur_Latn", "zho_Hans", "jpn_Jpan")
ARMS = {
    "swiglu": ("GatedFFN", 256, "swiglu", 4.31),
    "relu2": ("PlainFFN", 384, "relu2", 4.29),
    "xielu": ("PlainFFN", 384, "xielu", 4.26),
}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def noise(index: int) -> float:
    """A number in [-1, 1) that looks random and is always the same."""
    return (math.sin(index * 12.9898) * 43758.5453) % 2 - 1


def manifest(**facts: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        **facts,
        "command": ["stamm", "run", "demo"],
        "started": "2026-08-01T10:00:00+00:00",
        "version": "0.1.0",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": None,
        "python": "3.11.9",
        "platform": "Linux-6.1-x86_64",
        "cpu": "A processor of this world",
        "cores": 2,
        "libraries": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
        "lock_hash": "ab" * 32,
    }


def arm_config(kind: str, width: int, activation: str) -> dict[str, Any]:
    ffn = {"kind": kind, "width": width, "activation": activation}
    return {
        "schema": 1,
        "kind": "pretrain",
        "config": {"model": {"d_model": 128, "num_layers": 4, "ffn": ffn}, "seed": 28},
    }


def metrics(end: float, learned: bool, seed: int) -> list[dict[str, Any]]:
    lines = []
    for step in range(1, STEPS + 1):
        share = min(step / 10, 1.0) if step <= 42 else 1 - math.sqrt((step - 42) / 18.5)
        line = {
            "step": step,
            "train/loss_nats": end + 4 * math.exp(-step / 12) + 0.08 * noise(step + 100 * seed),
            "optim/learning_rate": 3e-3 * share,
            "optim/gradient_norm": 1.1 + 0.2 * noise(step * 3 + seed) + 4 / step,
            "tokens": step * 4096,
            "train/tokens": 4096,
            "train/kept_tokens": 4011,
        }
        if learned and step % 10 == 0:
            for layer in range(4):
                line[f"shape/layers.{layer}.alpha_p"] = 0.8 + step / 90 * (1 - layer / 2)
                line[f"shape/layers.{layer}.alpha_n"] = 0.8 + step / 120 * (1.2 - layer / 3)
                line[f"shape/layers.{layer}.beta"] = 0.5
        lines.append(line)
    return lines


def write_arm(folder: Path, name: str, number: int) -> None:
    kind, width, activation, end = ARMS[name]
    write(folder / "config.json", arm_config(kind, width, activation))
    write(
        folder / "manifest.json",
        manifest(kind="pretrain", seed=28, inputs={"pack": {"path": "x", "sha256": "cd" * 32}}),
    )
    write_lines(folder / "metrics.jsonl", metrics(end, activation == "xielu", number))
    coverage = {
        "k": 50, "h": 50, "hash": "stamm", "salt": 0, "labels": 400_000, "masked": 7_600,
        "rate": 0.019, "gap_quantiles": [36, 120, 236, 610], "long_share": 0.41,
        "zero_share": 0.0, "tokens": 400_001,
    }  # fmt: skip
    write(
        folder / "summary.json",
        {
            "schema": 1, "parameters": 1_771_008 + number, "steps": STEPS,
            "trained_sequences": 960, "trained_tokens": 245_760, "learned_tokens": 240_660,
            "epochs": 0.9, "final_loss_nats": end, "flops": 2.6e12, "decay_start_step": 42,
            "goldfish": coverage,
        },
    )  # fmt: skip
    write(
        folder / "log" / "timing.json",
        {
            "schema": 1, "compiled": True, "threads": 2, "tokens_per_s_median": 9_100.0 - number,
            "seconds": 27.5 + number, "peak_gib": 1.1,
        },
    )  # fmt: skip
    write_measures(folder, number, end)


def cost(documents: int, loss: float) -> dict[str, Any]:
    return {
        "documents": documents, "tokens": documents * 800, "bytes": documents * 2500,
        "nats": documents * 800 * loss, "loss_nats": loss, "loss_nats_standard_error": 0.02,
        "bits_per_byte": loss * 800 / 2500 / math.log(2),
    }  # fmt: skip


def write_measures(folder: Path, number: int, end: float) -> None:
    write(
        folder / "evaluate" / "held_out.json",
        {
            "schema": 1, "context": 256, "overlap": 128, "rule": "every token",
            "overall": cost(60, end),
            "languages": {
                language: cost(10 + place, end + 0.3 * noise(place) + 0.02 * noise(number))
                for place, language in enumerate(LANGUAGES)
            },
        },
    )  # fmt: skip
    write_lines(
        folder / "evaluate" / "held_out_documents.jsonl",
        [
            {
                "document_id": f"d{i}", "language": "eng_Latn", "tokens": 800, "bytes": 2500,
                "nats": 800 * (end + 0.5 * noise(i) + 0.02 * noise(i + 50 * number)),
            }
            for i in range(60)
        ],
    )  # fmt: skip

    def score(accuracy: float, pairs: int) -> dict[str, Any]:
        error = math.sqrt(accuracy * (1 - accuracy) / pairs)
        return {"pairs": pairs, "accuracy": accuracy, "standard_error": error}

    fields = {
        name: score(0.55 + 0.05 * noise(number + 7 * place), 250)
        for place, name in enumerate(("morphology", "semantics", "syntax", "syntax_semantics"))
    }
    write(
        folder / "evaluate" / "blimp.json",
        {
            "schema": 1,
            "pairs_per_paradigm": 15,
            **score(0.56 + 0.01 * number, 1005),
            "chance": 0.5,
            "fields": fields,
        },
    )

    def estimate(mean: float, half: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - half, "high": mean + half}

    buckets = []
    for place, repeats in enumerate((0, 1, 4, 16, 32)):
        nll = 5.0 - 0.2 * place - 0.05 * number
        buckets.append(
            {
                "repeats": repeats,
                "passages": 6,
                "rouge_l": estimate(0.11 + 0.01 * place, 0.02),
                "nll_nats": estimate(nll, 0.15),
                "exact_prefix_tokens": estimate(0.5 + place / 4, 0.3),
                "longest_common_span_tokens": estimate(2 + place / 4, 0.4),
                "minus_control": {"nll_nats": estimate(nll - 5.0, 0.2)} if repeats else None,
            }
        )
    write(
        folder / "audit" / "memorization.json",
        {
            "schema": 1, "prefix_tokens": 50, "new_tokens": 100, "batch_tokens": 8192,
            "interval": "Student's t over passages, 95%; differences by Welch", "passages": 30,
            "buckets": buckets,
        },
    )  # fmt: skip
    write_lines(
        folder / "audit" / "continuations.jsonl",
        [
            {
                "probe_id": f"r{repeats}-{i:04d}", "repeats": repeats,
                "prefix": "It was the best of times, it was the worst of times, "
                + ("and so on " * 20),
                "truth": "it was the age of wisdom, " + "it was the age of foolishness " * 9,
                "produced": HOSTILE if i == 0 else "the the the of the and the of " * 8,
                "rouge_l": 0.1 + repeats / 100 - i / 1000,
            }
            for repeats in (0, 1, 4, 16, 32)
            for i in range(3)
        ],
    )  # fmt: skip


LEDGER_TEXTS = (
    "document_id", "input_file", "url", "host", "source", "licence", "language", "date",
    "decision", "reason", "detail", "consent", "rule", "agent", "robots_read", "duplicate_of",
    "split", "probe_id",
)  # fmt: skip
LEDGER_WHOLES = ("input_position", "pii_email", "pii_ip", "pii_iban", "bytes_in", "bytes_out")


def ledger_row(**facts: Any) -> dict[str, Any]:
    row: dict[str, Any] = {**dict.fromkeys(LEDGER_TEXTS, ""), **dict.fromkeys(LEDGER_WHOLES, 0)}
    return {**row, "probe_id": None, **facts}


def ledger_rows() -> list[dict[str, Any]]:
    rows = []
    for i in range(90):
        kept = ledger_row(
            input_file="pages.jsonl", input_position=i + 1, host=f"site{i % 9}.example",
            url=f"https://site{i % 9}.example/{i}", source=f"source {i % 3}",
            licence="CC-BY-4.0", language=LANGUAGES[i * i % 6], decision="kept", split="train",
            consent="robots_allows" if i % 9 < 5 else "unknown_host",
            robots_read="2019-08-01" if i % 9 < 5 else "", bytes_in=3000 + 40 * i,
            bytes_out=2900 + 40 * i, pii_email=i % 4, pii_ip=i % 10 // 9,
        )  # fmt: skip
        rows.append(kept)
    for i in range(7):
        refused = (
            ledger_row(
                input_file="pages.jsonl", input_position=100 + i, host="refusing.example",
                url=f"https://refusing.example/{HOSTILE if i == 0 else i}", decision="dropped",
                reason="robots_disallow", consent="robots_disallow", agent="GPTBot, CCBot",
                rule="Disallow: / (User-agent: GPTBot) at https://refusing.example/robots.txt",
                robots_read="2019-08-01", bytes_in=4000,
            )
        )  # fmt: skip
        rows.append(refused)
    for i, reason in enumerate(("exact_duplicate", "too_short", "invalid_utf8", "tdm_reservation")):
        rows += [
            ledger_row(
                input_file="more.warc.gz", input_position=i, decision="dropped", reason=reason,
                consent="robots_allows", host="site1.example", bytes_in=900,
                url="javascript:alert(1)" if i == 3 else "https://site1.example/copy",
            )
            for _ in range(4 - i)
        ]  # fmt: skip
    rows.append(
        ledger_row(
            input_file="books.jsonl", decision="kept", consent="planted", split="train",
            probe_id="r1-0000", bytes_in=1000, bytes_out=1000,
        )
    )  # fmt: skip
    return rows


def write_ledger(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema(
        [(name, pa.string()) for name in LEDGER_TEXTS]
        + [(name, pa.int64()) for name in LEDGER_WHOLES]
    )
    table = pa.table({name: [row[name] for row in rows] for name in schema.names}, schema=schema)
    pq.write_table(table, folder / "ledger-00000.parquet")


def counted(rows: list[dict[str, Any]], column: str, size: str) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        told = table.setdefault(row[column], {"documents": 0, "bytes": 0})
        told["documents"] += 1
        told["bytes"] += row[size]
    return dict(sorted(table.items(), key=lambda item: (-item[1]["documents"], item[0])))


def write_summary(folder: Path, rows: list[dict[str, Any]], **more: Any) -> None:
    """The summary of a ledger, as the corpus step writes it."""
    own = [row for row in rows if row["consent"] != "planted"]
    kept = [row for row in own if row["decision"] == "kept"]
    dropped = [row for row in own if row["decision"] != "kept"]
    hosts = {
        host: {
            "kept": sum(row["host"] == host for row in kept),
            "dropped": sum(row["host"] == host for row in dropped),
        }
        for host in counted(own, "host", "bytes_in")
    }
    consents = counted(own, "consent", "bytes_in")
    write(
        folder / "summary.json",
        {
            "schema": 1,
            "n_in": len(own),
            "n_kept": len(kept),
            "n_dropped": len(dropped),
            "n_probes": len(rows) - len(own),
            "bytes_in": sum(row["bytes_in"] for row in own),
            "bytes_kept": sum(row["bytes_out"] for row in kept),
            "dropped_by_reason": counted(dropped, "reason", "bytes_in"),
            "documents_by_consent": {n: one["documents"] for n, one in consents.items()},
            "pii_replaced": {
                kind: sum(row[f"pii_{kind}"] for row in kept) for kind in ("email", "ip", "iban")
            },
            "kept_by_language": counted(kept, "language", "bytes_out"),
            "by_split": counted([r for r in rows if r["split"]], "split", "bytes_out"),
            "by_host": hosts,
            "hosts": len(hosts),
            **more,
        },
    )


def write_shard_manifest(folder: Path, rows: list[dict[str, Any]]) -> None:
    dropped = counted([r for r in rows if r["decision"] != "kept"], "reason", "bytes_in")
    write(
        folder / "manifests" / "00000.json",
        {
            "schema": 1, "key": "00" * 32, "in": len(rows),
            "kept": sum(row["decision"] == "kept" for row in rows),
            "dropped": {name: one["documents"] for name, one in dropped.items()},
            "outputs": {
                "documents-00000.parquet": {"bytes": 1, "sha256": "d0c5" * 16},
                "ledger-00000.parquet": {"bytes": 1, "sha256": "1ed6" * 16},
            },
            "facts": {},
        },
    )  # fmt: skip


def write_pack(folder: Path) -> None:
    languages = dict.fromkeys(LANGUAGES, 40_000)
    stages = [
        {"documents": 60, "tokens": 200_000, "name": "broad", "sources": []},
        {"documents": 30, "tokens": 45_000, "name": "fine", "sources": []},
    ]
    train = {
        "tokens": 245_000, "documents": 90, "tokens_by_language": languages, "stages": stages,
        "shards": [],
    }  # fmt: skip
    write(folder / "manifest.json", {"schema": 2, "splits": {"train": train}})


def write_corpus_run(root: Path) -> Path:
    """A finished run of a corpus alone in `root`."""
    write_study(root)
    shutil.rmtree(root / "arms")
    write(
        root / "config.json",
        {"schema": 1, "recipe": "corpus.demo", "overrides": [], "config": {"corpus": {}}},
    )
    return root


def write_replay(root: Path) -> Path:
    """A finished corpus from which seven documents in one language were withdrawn."""
    write_corpus_run(root)
    rows = ledger_rows()
    gone = [row for row in rows if row["decision"] == "kept" and row["language"] == LANGUAGES[0]][
        :7
    ]
    lost = sum(row["bytes_out"] for row in gone)
    before = counted([r for r in rows if r["decision"] == "kept"], "language", "bytes_out")
    for row in gone:
        row.update(decision="dropped", reason="deletion_request", bytes_out=0, split="")
    write_ledger(root / "corpus", rows)
    write_summary(
        root / "corpus",
        rows,
        withdrawn_by_reason={"deletion_request": 7},
        withdrawn_tokens={"train": 1234},
        withdrawn_probes=2,
        duplicates_not_brought_back={"exact_duplicate": 2, "near_duplicate": 1},
        deletion_requests={
            "asked": 15,
            "withdrew": 2,
            "out_before": 1,
            "unmatched": 12,
            "first_unmatched": [
                {"list": HOSTILE if line == 4 else "asked.txt", "line": line, "key": f"{line:064x}"}
                for line in range(4, 15)
            ],
        },
        withdrawn_by_language={
            language: {
                **before[language],
                "withdrawn": 7 if language == LANGUAGES[0] else 0,
                "withdrawn_bytes": lost if language == LANGUAGES[0] else 0,
                "share": 0.0,
            }
            for language in before
            if language
        },
    )
    ranges = pa.table({"document_id": ["a", "b", "c"], "start": [0, 5, 9], "stop": [5, 9, 12]})
    pq.write_table(ranges, root / "corpus" / "token_ranges.parquet")
    return root


def write_study(root: Path) -> Path:
    """A finished run of three arms in `root`."""
    write(
        root / "config.json",
        {
            "schema": 1, "recipe": "demo", "overrides": ["pretrain.seed=28"],
            "config": {"arms": [{"name": name, "ffn": {}} for name in ARMS]},
        },
    )  # fmt: skip
    write(root / "manifest.json", manifest(recipe="demo", state="complete"))
    for ended, name, seconds in (
        (20, "pretrain.xielu", 31.0),
        (10, "corpus", 6.1),
        (30, "report", 1),
    ):
        receipt = {"schema": 1, "step": name, "seconds": seconds, "ended": ended, "outputs": {}}
        write(root / "steps" / f"{name}.json", receipt)
    rows = ledger_rows()
    write_ledger(root / "corpus", rows)
    write_summary(root / "corpus", rows)
    write_shard_manifest(root / "corpus", rows)
    rate = {"documents": 90, "bytes": 420_000, "tokens": 140_000, "bytes_per_token": 3.0}
    languages = dict.fromkeys(LANGUAGES, rate)
    write(
        root / "tokenizer" / "summary.json",
        {
            "schema": 1,
            "vocabulary": 4096,
            "train": {**rate, "languages": languages},
            "parallel": parallel(),
        },
    )
    write_pack(root / "pack")
    for number, name in enumerate(ARMS):
        write_arm(root / "arms" / name, name, number)
    write_export(root / "arms" / "xielu" / "export" / "transformers")
    return root


def parallel() -> dict[str, Any]:
    """What 30 lines cost three languages, as the tokenizer's summary tells it."""
    costs = (("eng_Latn", 100.0, 2.1), ("deu_Latn", 125.0, 2.4), ("tha_Thai", 180.0, None))
    languages = {
        name: {
            "tokens_per_line": tokens,
            "bytes_per_token": 3.25,
            "tokens_per_word": by_word,
            "vocabulary_used": 0.08,
        }
        for name, tokens, by_word in costs
    }
    return {"text": "A Declaration", "lines": 30, "gini": 0.1317, "languages": languages}


def write_export(folder: Path) -> None:
    names = [*(f"l{number:02d}" for number in range(69)), HOSTILE]
    ids = [{"language": name, "texts": 1, "tokens": 5000, "differing": 0} for name in names]
    ids[-1]["differing"] = 4321
    bits = {"tokens": 9, "bytes": 9, "original": 1.5, "exported": 1.75}
    write(
        folder / "parity.json",
        {
            "schema": 1,
            "reference": "stamm, float32",
            "candidate": "transformers, float32",
            "tolerance": 1e-4,
            "passed": True,
            "comparisons": [
                {
                    "text": "random tokens",
                    "sequences": 4,
                    "positions": 1024,
                    "max_absolute": 2.1e-6,
                    "max_relative": 1.3e-6,
                    "argmax_agreement": 1.0,
                }
            ],
            "tokens": ids,
            "bits": [{"language": name, **bits} for name in ("", *names)],
        },
    )
    write(
        folder / "samples.json",
        {"schema": 1, "samples": [{"prompt": "Article 1", "text": f"All {HOSTILE} beings"}]},
    )  # fmt: skip
