"""Data mixture: the stage, repeats and position of each document in the training stream.

Each source is read in its own order, by SHA-256 of "pack {seed} epoch {e} {document_id}", and again
from the start, in another order, when it ends. A stage reads tokens of each of its sources according
to its shares, from where the previous stage stopped. The documents of a stage are then sorted by
SHA-256 of "pack {seed} {stage} {document_id} {occurrence}", so that its sources are mixed evenly. The
order depends on content, seed and configuration only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.corpus.held_out import HELD_OUT, TRAIN
from stamm.corpus.pack_config import PackConfig, SourceShare, Stage
from stamm.corpus.query import Query, pattern

Where = tuple[str, dict[str, str]]
"""A condition on `source` and `language`, and the values that it names."""

_OWN = f"split = '{TRAIN}' and probe_id is null"
ORDER_COLUMNS = (
    "number, stage, shard, start, tokens, bytes, document_id, language, source, licence, url, "
    "probe_id, occurrence"
)


def order_documents(query: Query, config: PackConfig) -> list[dict[str, Any]]:
    """Create the table `ordered`: every occurrence of a document in train or held_out, numbered.

    query    has a view called documents (tokenize_job.INDEX_SCHEMA and `shard`)
    Returns  documents and tokens of each source in each stage of the training stream
    Raises   DataError when a stage names a missing source, would repeat one more often than its
             `most_epochs`, or gets no document.
    """
    query.run(
        "create temp table occurrences (split varchar, stage integer, shard integer, "
        "start bigint, occurrence bigint, key varchar)"
    )
    _whole(query, config, HELD_OUT)
    if not config.stages:
        _whole(query, config, TRAIN)
        stages: list[dict[str, Any]] = []
    else:
        stages = _staged(query, config)
    query.run(
        "create temp table ordered as select o.split, "
        "row_number() over (partition by o.split order by o.stage, o.key, d.document_id, "
        "o.occurrence, d.probe_id nulls first) - 1 as number, o.stage, o.shard, d.start, d.tokens, d.bytes, "
        "d.document_id, d.language, d.source, d.licence, d.url, d.probe_id, o.occurrence "
        "from occurrences o join documents d on o.shard = d.shard and o.start = d.start"
    )
    return stages


def write_order(query: Query, split: str, path: Path) -> None:
    """Write the occurrences of one split to a Parquet file, in their order."""
    query.write(
        f"select {ORDER_COLUMNS} from ordered where split = '{split}' order by number", path
    )


def _whole(query: Query, config: PackConfig, split: str) -> None:
    """Every document `repeat` times: the stream without stages."""
    query.run(
        "insert into occurrences select d.split, 0, d.shard, d.start, r.occurrence, "
        "sha256('pack ' || $seed || ' ' || d.document_id || ' ' || r.occurrence) "
        "from documents d, lateral (select unnest(range(d.repeat)) as occurrence) r "
        "where d.split = $split",
        {"seed": str(config.seed), "split": split},
    )


def _staged(query: Query, config: PackConfig) -> list[dict[str, Any]]:
    _plant(query, config)
    query.run(
        "create temp table sources as select source, language, sum(tokens)::bigint as tokens "
        f"from documents where {_OWN} group by source, language"
    )
    taken: dict[tuple[str, str], float] = {}
    held: dict[tuple[str, str], int] = {}
    read: list[tuple[int, Where, float, float]] = []
    stages = []
    for number, stage in enumerate(config.stages):
        wheres = [_matching(config, number, position) for position in range(len(stage.sources))]
        shares = []
        for share, where in zip(stage.sources, wheres, strict=True):
            key = share.source, share.language
            size = _tokens(query, where)
            if not size:
                raise _nothing_left(stage, share)
            if held.setdefault(key, size) != size:
                raise _other_documents(stage, share)
            begin = taken.get(key, 0.0)
            epochs = _epochs(stage, share, size)
            before = sum(
                (last - first) * (_tokens(query, where, other) / size)
                for _, other, first, last in read
            )
            _check_epochs(stage, share, size, before, epochs)
            taken[key] = begin + epochs
            shares.append(
                {
                    "source": share.source,
                    "language": share.language,
                    "tokens_there": size,
                    "epochs_before": round(begin, 6),
                    "epochs_after": round(begin + epochs, 6),
                }
            )
            read.append((number, where, begin, begin + epochs))
        stages.append({"name": stage.name, "sources": shares})
    for number, where, begin, end in read:
        _take(query, config, number, where, begin, end)
    _check_stages(query, config)
    return stages


def _check_stages(query: Query, config: PackConfig) -> None:
    found = query.rows(
        "select distinct stage from occurrences where split = $split", {"split": TRAIN}
    )
    for number, stage in enumerate(config.stages):
        if (number,) not in found:
            raise DataError(
                f"stage {stage.name} contains no document: none begins in the part of its sources "
                "that it reads",
                where="pack.stages",
                fix="Give it more tokens or epochs",
            )


def _plant(query: Query, config: PackConfig) -> None:
    """Insert planted documents into one stage, with their repeats."""
    names = [stage.name for stage in config.stages]
    stage = names.index(config.planted_in) if config.planted_in else 0
    query.run(
        "insert into occurrences select d.split, $stage, d.shard, d.start, r.occurrence, "
        "sha256('pack ' || $seed || ' ' || $name || ' ' || d.document_id || ' ' || r.occurrence) "
        "from documents d, lateral (select unnest(range(d.repeat)) as occurrence) r "
        "where d.split = $split and d.probe_id is not null",
        {"stage": stage, "seed": str(config.seed), "name": names[stage], "split": TRAIN},
    )


def _matching(config: PackConfig, number: int, position: int) -> Where:
    """The documents of a share: those it matches and no earlier share of the stage does."""
    clauses: list[str] = []
    values: dict[str, str] = {}
    for at, share in enumerate(config.stages[number].sources[: position + 1]):
        name = f"{number}_{at}"
        clause = f"(source glob $source{name} and language glob $language{name})"
        clauses.append(clause if at == position else f"not {clause}")
        values |= {
            f"source{name}": pattern(share.source),
            f"language{name}": pattern(share.language),
        }
    return " and ".join(clauses), values


def _tokens(query: Query, *wheres: Where) -> int:
    """Tokens of the documents that several shares match, read once."""
    clauses = " and ".join(clause for clause, _ in wheres)
    values = {name: value for _, values in wheres for name, value in values.items()}
    ((size,),) = query.rows(
        f"select coalesce(sum(tokens), 0)::bigint from sources where {clauses}", values
    )
    return int(size)


def _epochs(stage: Stage, share: SourceShare, size: int) -> float:
    """Number of epochs of a share in a stage."""
    if share.epochs is not None:
        return share.epochs
    total = sum(other.weight or 0.0 for other in stage.sources)
    return (stage.tokens or 0) * (share.weight or 0.0) / total / size


def _check_epochs(
    stage: Stage, share: SourceShare, size: int, before: float, epochs: float
) -> None:
    """Raise DataError when a weight repeats its documents too often over all stages so far.

    before   epochs in earlier stages; the mean where their shares match only some documents
    """
    if share.epochs is not None or before + epochs <= share.most_epochs * (1 + 1e-9):
        return
    after = f", after {before:.2f} times in the stages before it" if before else ""
    raise DataError(
        f"stage {stage.name} would read source {share.source!r} {epochs:.2f} times{after}: "
        f"it has {size} tokens and {round(epochs * size)} are required",
        where="pack.stages",
        fix=f"Lower its weight, or set most_epochs={math.ceil(before + epochs)}",
    )


def _nothing_left(stage: Stage, share: SourceShare) -> DataError:
    return DataError(
        f"stage {stage.name}: no document of source {share.source!r} in language "
        f"{share.language!r} is left for it",
        where="pack.stages",
        fix="Correct the pattern, or put the narrower share before the wider one",
    )


def _other_documents(stage: Stage, share: SourceShare) -> DataError:
    return DataError(
        f"stage {stage.name}: source {share.source!r} in language {share.language!r} "
        "does not hold the documents that it held in an earlier stage",
        where="pack.stages",
        fix="Put the same narrower shares before it in every stage that reads it",
    )


def _take(
    query: Query, config: PackConfig, number: int, where: Where, begin: float, end: float
) -> None:
    """Put the documents of a source that begin between two points of its endless stream in.

    A point counts epochs: 1.25 is a quarter of the second reading.
    """
    clause, values = where
    for epoch in range(math.floor(begin), math.ceil(end)):
        low, high = max(begin - epoch, 0.0), min(end - epoch, 1.0)
        query.run(
            "insert into occurrences select 'train', $stage, shard, start, $epoch::bigint, "
            "sha256('pack ' || $seed || ' ' || $name || ' ' || document_id || ' ' || $epoch) from ("
            "select d.shard, d.start, d.document_id, "
            "(sum(d.tokens) over reading - d.tokens) / (sum(d.tokens) over ())::double as place "
            f"from documents d where {_OWN} and {clause} window reading as (order by "
            "sha256('pack ' || $seed || ' epoch ' || $epoch || ' ' || d.document_id), "
            "d.document_id rows unbounded preceding)) where place >= $low and place < $high",
            values
            | {
                "stage": number,
                "epoch": str(epoch),
                "seed": str(config.seed),
                "name": config.stages[number].name,
                "low": low,
                "high": high,
            },
        )
