"""Atomic, sharded checkpoints: safetensors with SHA-256 hashes, no pickle.

checkpoints/step-00000120/{shard-*.safetensors, state.json}: each process writes its shards, with several
replicas those of the first, and any number of processes can load them (torch.distributed.checkpoint). A checkpoint is written under a
temporary name and renamed when complete; state.json holds the hashes of the other files and its own.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from stamm.base.config import from_plain
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, DataError, RunError, StammError
from stamm.base.files import disk_full_error, flush, is_full, read_json, sha256_file, sha256_value
from stamm.base.schema import read_record
from stamm.engine.checkpoint_files import (
    GONE,
    PART,
    checkpoint_folder,
    checkpoint_steps,
    order_names,
    read_state,
    write_state,
)
from stamm.engine.distributed import DistributedContext
from stamm.engine.sharded_optimizer import STATE_PREFIX, ShardedOptimizer
from stamm.engine.stored_decoder import check_config, is_stored_decoder, load_stored_decoder
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.loading import OpenModel, with_tokenizer
from stamm.models.lora import base_parameters
from stamm.models.serialization import checked_config
from stamm.runs.records import ConfigFile

_VALUES = "optimizer"  # state of a user's optimizer that is not a tensor
_FROZEN = "frozen_sha256"  # of the start model, when its frozen weights are not in the checkpoint
_MODEL, _GUIDE = "model/", ".guide"
_ALONE = "torch.distributed is disabled"
_Failure = tuple[bool, str]  # whether the disk is full, and the error message


@dataclass(frozen=True)
class _Pending:
    """A checkpoint whose shards are being written."""

    step: int
    counts: list[int]
    values: dict[str, Any] | None
    metrics: str
    written: Future[Any]


class Checkpoints:
    """The checkpoints of one training run.

    folder       the folder "checkpoints" of the run
    keep         number of newest checkpoints to keep
    scheduled    whether the checkpoint of a step is due then; others, written when the process was
                 asked to end, are deleted with the next one
    stays        whether the checkpoint of a step is kept for good
    background   whether shards are written while training continues (asynchronous checkpointing)
    reach        number of steps that a rollback may go back: one checkpoint before them is kept, too
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        world: DistributedContext,
        *,
        background: bool = False,
        scheduled: Callable[[int], bool] = lambda step: True,
        stays: Callable[[int], bool] = lambda step: False,
        reach: int = 1,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self._scheduled, self._stays = scheduled, stays
        self._reach = reach
        self._world = world
        self._pending: _Pending | None = None
        self._group = dist.new_group(backend="gloo") if background and world.size > 1 else None
        self._background = background
        self._frozen: str | None = None
        if background:  # its thread outlives `_quiet`
            warnings.filterwarnings("ignore", message=_ALONE)

    def save(self, step: int, model: nn.Module, updater: ShardedOptimizer, metrics: str) -> None:
        """Write the state after `step` steps, or start to; then delete old checkpoints beyond `keep`.

        metrics  hash of the metrics up to this step, which a resumed run checks
        Raises   RunError when the disk is full or the folder cannot be written. Existing
                 checkpoints do not change.
        """
        self.finish()
        part = self._part(step)
        self._refuse(step, self._prepare(part))  # no process writes before the folder exists
        pieces = self._weights(model) | _optimizer(updater.tensors())
        writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
        # What several processes hold is written by the lowest of their ranks: those of one replica.
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=self._world.replicas > 1)
        alone = self._world.size == 1
        written: Future[Any] = Future()
        failure: _Failure | None = None
        try:
            with _quiet():
                if self._background:
                    begun = async_save(
                        pieces,
                        storage_writer=writer,
                        planner=planner,
                        process_group=self._group,
                        no_dist=alone,
                    )
                    assert isinstance(begun, Future)
                    written = begun
                else:
                    written.set_result(
                        save(pieces, storage_writer=writer, planner=planner, no_dist=alone)
                    )
        except (CheckpointException, OSError, RuntimeError) as error:
            failure = _failure_of(error)
        # In the background the other processes would wait for one that could not start.
        self._refuse(step, failure)
        self._pending = _Pending(step, updater.counts, updater.values(), metrics, written)
        if not self._background:
            self.finish()

    def advance(self) -> None:
        """Complete the checkpoint that is being written, if every process has written its shards."""
        if self._pending is None:
            return
        waiting = torch.tensor(0.0 if self._pending.written.done() else 1.0)
        if not self._world.all_reduce_sum(waiting.to(self._world.device)):
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and rename it to its final name.

        Raises   RunError when the disk is full, or when a process could not write its shards
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        self._refuse(pending.step, _failure(pending.written))
        self._refuse(pending.step, self._complete(pending, self._part(pending.step)))

    def restore(
        self,
        model: nn.Module,
        updater: ShardedOptimizer,
        metrics: Callable[[int], str],
        progress: Progress,
        at_most: int | None = None,
    ) -> int:
        """Resume: load the newest complete checkpoint and return its step; 0 when there is none.

        A checkpoint whose hashes do not match is reported, and the one before it is used.
        metrics  the hash, as for `save`, of the current metrics up to a step
        at_most  newest step to load; later checkpoints are deleted
        Raises   RunError when none can be used; with `at_most` also when there is none
        """
        if self._world.is_main_process:
            for ending in (PART, GONE):
                for leftover in self.folder.glob(f".step-*{ending}"):
                    shutil.rmtree(leftover)
        steps_here = [s for s in checkpoint_steps(self.folder) if at_most is None or s <= at_most]
        steps: list[int] = self._world.broadcast_object(sorted(steps_here, reverse=True))
        for step in steps:
            damage = self._damage(self._path(step), lambda: metrics(step))  # noqa: B023
            if not damage:
                damage = self._load(self._path(step), model, updater, moments=True)
            if not damage:
                self._drop_after(step)
                return step
            progress.log(f"Checkpoint step-{step:08d} is damaged ({damage}): not used.")
        if steps or at_most is not None:
            raise RunError(
                f"none of the {len(steps)} checkpoints in {self.folder} can be used"
                + ("" if at_most is None else f" to go back to step {at_most}"),
                fix="Restore the files, or delete that folder to train from the beginning",
            )
        return 0

    def load_step(self, step: int, model: nn.Module, updater: ShardedOptimizer) -> None:
        """Load the weights of this run after `step`; the optimizer state stays.

        Raises   RunError when the checkpoint is damaged or missing
        """
        path = self._path(step)
        damage = self._damage(path, None) or self._load(path, model, updater, moments=False)
        if damage:
            raise RunError(
                f"the checkpoint {path} cannot be used: {damage}",
                fix="Restore it, or train again in another folder",
            )

    def load(
        self, path: Path, model: nn.Module, updater: ShardedOptimizer, *, moments: bool
    ) -> str:
        """Load another run's checkpoint, or a stored decoder; its SHA-256.

        path      its folder
        moments   whether to load the optimizer state, too, or start with a new one
        Raises    DataError when it is damaged or of another model; ConfigError for the optimizer
                  state of a stored decoder, which has none
        """
        if self._world.broadcast_object(is_stored_decoder(path)):
            if moments:
                raise ConfigError(
                    f"{path} is a stored decoder, without optimizer state",
                    fix="Start with a new optimizer state, or from a folder checkpoints/step-…",
                )
            return load_stored_decoder(path, model, self._world)
        self._check_model(path, model)
        damage = self._damage(path, None) or self._load(
            path, model, updater, moments=moments, start=True
        )
        if damage:
            raise DataError(f"the checkpoint {path} cannot be used: {damage}")
        main = self._world.is_main_process
        return str(self._world.broadcast_object(sha256_value(read_state(path)) if main else ""))

    def load_frozen(self, path: Path, model: nn.Module, updater: ShardedOptimizer) -> None:
        """Load the start model of a run that trains adapters, before `restore`.

        Checkpoints then hold the trained parameters and the hash of the start model.

        path     a stored decoder, or a checkpoint of a run without adapters
        Raises   DataError when it is missing, damaged or of another model
        """
        if not self._world.broadcast_object(path.is_dir()):
            raise DataError(
                f"{path}, which this run starts from, does not exist",
                fix="Restore it: the checkpoints hold the adapters, not its frozen weights",
            )
        self._frozen = self.load(path, model, updater, moments=False)

    def _refuse(self, step: int, failure: _Failure | None) -> None:
        """Discard the checkpoint of `step` on all processes when one of them has failed."""
        failures = [f for f in self._world.all_gather_object(failure) if f]
        if not failures:
            return
        if self._world.is_main_process:
            shutil.rmtree(self._part(step), ignore_errors=True)
        full, told = failures[0]
        final = self._path(step)
        if full:
            raise disk_full_error(final if self.folder.is_dir() else self.folder)
        raise RunError(
            f"{final} was not written: {told}",
            fix="Make its folder writable, and run the same command again",
        )

    def _prepare(self, part: Path) -> _Failure | None:
        """Create an empty folder for the shards, on the main process; the failure, if any."""
        if self._world.is_main_process:
            try:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
            except OSError as error:
                return is_full(error), str(error)
        return None

    def _complete(self, pending: _Pending, part: Path) -> _Failure | None:
        """Hash and rename, on the main process; the failure, if any."""
        try:
            hashes = self._hashes(part, written=True)
            if not self._world.is_main_process:
                return None
            state: dict[str, Any] = {"step": pending.step, "counts": pending.counts}
            state |= {"sha256": hashes, "metrics_sha256": pending.metrics}
            if pending.values is not None:
                state[_VALUES] = pending.values
            if self._frozen is not None:
                state[_FROZEN] = self._frozen
            write_state(part, state)
            final = self._path(pending.step)
            self._drop(pending.step)
            part.replace(final)
            flush(self.folder)
            for old in self._outdated(pending.step):
                self._drop(old)
        except OSError as error:
            return is_full(error), str(error)
        except RunError as error:  # the disk was full for state.json
            return error.__cause__ is not None and is_full(error.__cause__), error.what
        return None

    def _outdated(self, step: int) -> list[int]:
        """The checkpoints to delete once that of `step` exists."""
        steps = checkpoint_steps(self.folder)
        back = max((s for s in steps if s <= step + 1 - self._reach), default=0)
        extra = [s for s in steps if s != step and not self._scheduled(s)]
        free = [s for s in steps if s not in extra and not self._stays(s)][: -self.keep]
        return [s for s in extra + free if s < back and s != step]

    def _hashes(self, folder: Path, *, written: bool = False) -> dict[str, str]:
        """SHA-256 of every file of shards, by name; the processes divide the reading.

        written  the files are new: their headers are sorted and they are flushed to disk first
        Raises   OSError, in every process, when one of them cannot read its files
        """
        # A process sees its own files at once; those of other processes later, or never in a folder
        # that is not shared.
        seen = self._world.all_gather_object([path.name for path in folder.glob("*.safetensors")])
        names = sorted({name for names_of_process in seen for name in names_of_process})
        mine: dict[str, str] = {}
        failure: OSError | None = None
        try:
            for name in names[self._world.rank :: self._world.size]:
                if written:
                    order_names(folder / name)
                    flush(folder / name)
                mine[name] = sha256_file(folder / name)
        except OSError as error:
            failure = error
        merged: dict[str, str] = {}
        for part, failed in self._world.all_gather_object((mine, failure)):
            if failed is not None:
                raise failed
            merged |= part
        return dict(sorted(merged.items()))

    def _damage(self, path: Path, metrics: Callable[[], str] | None) -> str:
        """Why the checkpoint at `path` cannot be used; "" when it can. The same on all processes."""
        state, told = None, ""
        if self._world.is_main_process:
            try:
                state = read_state(path)
                if metrics is not None and self._path(state["step"]) != path:
                    told = f"it is that of step {state['step']}"
                elif metrics is not None and metrics() != state["metrics_sha256"]:
                    told = "metrics.jsonl has changed since it was written"
            except DataError as error:
                told = error.what
            except OSError as error:
                told = str(error)
        told, recorded = self._world.broadcast_object((told, state["sha256"] if state else {}))
        if told:
            return str(told)
        try:
            actual = self._hashes(path)
        except OSError as error:
            return str(error)
        for name in sorted({*recorded, *actual}):
            if name not in actual:
                return f"{name} is missing"
            if recorded.get(name) != actual[name]:
                return f"{name} has changed since it was written"
        return ""

    def _load(
        self,
        path: Path,
        model: nn.Module,
        updater: ShardedOptimizer,
        *,
        moments: bool,
        start: bool = False,
    ) -> str:
        """Load a checkpoint without damage; why it does not fit, "" when it does.

        start   it is another run's, whose weights the model has apart from adapters
        """
        state = self._world.broadcast_object(
            read_state(path) if self._world.is_main_process else None
        )
        counts, values = state["counts"], state.get(_VALUES)
        self._check_frozen(path, state.get(_FROZEN), start=start)
        if moments and (misfit := updater.misfit(values)):
            return misfit
        if moments and len(counts) != len(updater.counts):
            return (
                f"it does not fit the optimizer: {len(counts)} groups of parameters there, "
                f"{len(updater.counts)} here"
            )
        reader = HuggingFaceStorageReader(str(path))
        try:
            with _quiet():
                metadata = reader.read_metadata()
                targets = updater.load_targets(metadata) if moments else {}
                weights = _named(base_parameters(model)) if start else self._weights(model)
                if start and (misfit := _other_tensors(metadata, weights)):
                    return f"it does not fit the model: {misfit}"
                pieces = weights | _optimizer(targets)
                load(pieces, storage_reader=reader, no_dist=self._world.size == 1)
        except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
            return f"it does not fit the model: {_failure_of(error)[1]}"
        if moments:
            updater.replace(targets, values or {})
            updater.counts = counts
        return ""

    def _check_model(self, path: Path, model: nn.Module) -> None:
        """Check another run's checkpoint against the configuration of that run, where it is there."""
        failure: StammError | None = None
        config = path.resolve().parents[1] / "config.json"
        if self._world.is_main_process and isinstance(model, Decoder) and config.is_file():
            try:
                config_json = read_json(config)
                of_a_run = isinstance(config_json, dict) and "schema" in config_json
                plain = read_record(ConfigFile, config).config if of_a_run else None
                if isinstance(plain, dict) and "model" in plain:
                    stored = from_plain(DecoderConfig, plain["model"], str(config))
                    check_config(f"the checkpoint {path}", stored, model.config)
            except StammError as error:
                failure = error
        if (failure := self._world.broadcast_object(failure)) is not None:
            raise failure

    def _check_frozen(self, path: Path, recorded: str | None, *, start: bool) -> None:
        """Check that the frozen weights are those that the adapters in a checkpoint were trained on."""
        if start and recorded is not None:
            raise DataError(
                f"the checkpoint {path} holds adapters, not all weights",
                fix="Start from the folder model/ of that run, in which they are merged",
            )
        if not start and recorded != self._frozen:
            recorded_start, here = (str(sha256)[:12] for sha256 in (recorded, self._frozen))
            raise DataError(
                f"the checkpoints in {self.folder} were trained on frozen weights with SHA-256 "
                f"{recorded_start}, and the start model has {here}",
                fix="Restore the start model, or train in another folder",
            )

    def _weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The parameters in a checkpoint: all, or the trained ones beside frozen weights."""
        named = dict(model.named_parameters())
        if self._frozen is not None:
            named = {name: p for name, p in named.items() if p.requires_grad}
        return _named(named)

    def _drop_after(self, step: int) -> None:
        if self._world.is_main_process:
            for later in checkpoint_steps(self.folder):
                if later > step:
                    self._drop(later)

    def _drop(self, step: int) -> None:
        """Delete a checkpoint if it exists, atomically: a kill leaves it whole or deleted."""
        gone = checkpoint_folder(self.folder, step, GONE)
        with contextlib.suppress(FileNotFoundError):
            self._path(step).replace(gone)
            shutil.rmtree(gone)

    def _path(self, step: int) -> Path:
        return checkpoint_folder(self.folder, step)

    def _part(self, step: int) -> Path:
        return checkpoint_folder(self.folder, step, PART)


def _optimizer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{STATE_PREFIX}{name}": t for name, t in tensors.items()}


def _named(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{_MODEL}{name}": p.detach() for name, p in parameters.items()}


def _other_tensors(metadata: Metadata, weights: Mapping[str, Tensor]) -> str:
    """The first tensor that only a checkpoint or only the model has; "" for none.

    Edge     the dense guides of self-guided training may be in the checkpoint alone
    """
    stored = {name for name in metadata.state_dict_metadata if name.startswith(_MODEL)}
    for name in sorted(stored ^ weights.keys()):
        tensor = name.removeprefix(_MODEL)
        if name not in stored:
            return f"the model has the tensor {tensor}, and the checkpoint does not"
        if not name.endswith(_GUIDE):
            return f"the checkpoint has the tensor {tensor}, and the model does not"
    return ""


def _failure(written: Future[Any]) -> _Failure | None:
    error = written.exception()
    return None if error is None else _failure_of(error)


def _failure_of(error: BaseException) -> _Failure:
    causes = [error]
    if isinstance(error, CheckpointException):
        causes += [wrapped[0] for wrapped in error.failures.values()]
    return any(is_full(cause) for cause in causes), _first_line(causes[-1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning that a single process saves alone, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_ALONE)
        yield


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def checkpoint_model(model: Path, path: Path, tokenizer: Path) -> OpenModel:
    """The model of a checkpoint.

    model   folder of the trained model, whose configuration it has
    """
    decoder = Decoder(checked_config(model))
    checkpoints = Checkpoints(path.parent, 1, DistributedContext(device=torch.device("cpu")))
    updater: Any = None  # read for the optimizer state alone
    sha256 = checkpoints.load(path, decoder, updater, moments=False)
    return with_tokenizer(decoder.eval(), tokenizer, sha256)
