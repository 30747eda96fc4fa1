"""Which sequences each process trains on, and how many at one time."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.engine.micro_batches import GradientAccumulator
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler, TokenBatch
from stamm.pretrain.next_token import NextToken

MODEL = DecoderConfig(vocab_size=64, d_model=32, num_layers=1, max_context=16)


class Noting:
    """Sequences of which only their numbers are noted."""

    per_epoch = 1000

    def __init__(self) -> None:
        self.read: list[range] = []

    def batch(self, first: int, count: int) -> TokenBatch:
        """Anything."""
        self.read.append(range(first, first + count))
        nothing = torch.zeros(count, 16, dtype=torch.int64)
        return TokenBatch(nothing, nothing, nothing, nothing > 0)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """Small."""
    return build_decoder(MODEL, seed=1)


def _parts(decoder: Decoder, ways: int, micro: int | None, size: int = 24) -> list[list[range]]:
    """The sequences of the first step, by process and micro-batch."""
    config = PretrainConfig(
        model=MODEL,
        context=16,
        sequences=size,
        first_sequence=100,
        batch=(BatchStage(size=size),),
        micro_batch=micro,
    )
    found = []
    for place in range(ways):
        alone: dict[str, Any] = {"size": 1, "data": ways, "mesh_coordinates": (place, 0, 0)}
        noting = Noting()
        world = DistributedContext(torch.device("cpu"), **alone)
        NextToken(config, decoder, cast(SequenceSampler, noting), world).micro_batches(1)
        found.append(noting.read)
    return found


@pytest.mark.parametrize("ways", [1, 2, 8, 24])
@pytest.mark.parametrize("micro", [None, 1, 4, 5, 100])
def test_no_process_has_more_in_flight_than_it_may(
    decoder: Decoder, ways: int, micro: int | None
) -> None:
    """The same configuration on any number of processes: what they have not at once comes in turn."""
    found = _parts(decoder, ways, micro)
    assert [i for parts in found for part in parts for i in part] == list(range(100, 124))
    sizes = {tuple(len(part) for part in parts) for parts in found}
    assert len(sizes) == 1  # all meet in every micro-batch
    (each,) = sizes
    assert max(each) <= (micro or 24) and max(each) - min(each) <= 1
    assert len(each) == (1 if micro is None else -(-24 // ways // micro))


class Drawn(Noting):
    """Random sequences, a fifth of whose tokens have no loss."""

    def batch(self, first: int, count: int) -> TokenBatch:
        """The same tokens for the same numbers."""
        batches = []
        for number in range(first, first + count):
            drawn = torch.Generator().manual_seed(number)
            tokens = torch.randint(0, 64, (1, 17), generator=drawn)
            keep = torch.rand(1, 16, generator=drawn) > 0.2
            batches.append((tokens[:, :-1], tokens[:, 1:], torch.zeros(1, 16).long(), keep))
        return TokenBatch(*map(torch.cat, zip(*batches, strict=True)))


@pytest.mark.parametrize("micro", [1, 3, 8])
def test_micro_batches_have_the_gradient_of_the_whole_step_to_1e_14_in_float64(micro: int) -> None:
    """So a difference between two divisions of a step in float32 is rounding, and no token is lost."""
    gradients = []
    for size in (None, micro):
        decoder = build_decoder(MODEL, seed=1).double()
        config = PretrainConfig(
            model=MODEL,
            context=16,
            sequences=24,
            batch=(BatchStage(size=24),),
            micro_batch=size,
            z_loss=1e-3,
            engine=EngineConfig(kernels="torch", attention="dense"),
        )
        world = DistributedContext(torch.device("cpu"))
        batches = NextToken(config, decoder, cast(SequenceSampler, Drawn()), world).micro_batches(1)
        assert len(batches.each) == (1 if size is None else -(-24 // size))
        GradientAccumulator(decoder).compute(batches)
        gradients.append(torch.cat([p.grad.flatten() for p in decoder.parameters()]))  # type: ignore[union-attr]
    whole, divided = gradients
    assert whole.dtype == torch.float64
    assert (whole - divided).norm() < 1e-14 * whole.norm()


def test_a_step_that_does_not_divide_is_refused(decoder: Decoder) -> None:
    with pytest.raises(
        ConfigError, match="a step of 24 sequences does not divide over 5 processes"
    ):
        _parts(decoder, 5, micro=1)
