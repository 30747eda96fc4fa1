"""Context and data parallelism: which part of a micro-batch each process takes, and its attention mask.

Sequences are divided over `data`. A sequence is divided over `context` into twice as many chunks as there
are processes; each process takes one from the front and one from the back, so that all have equally many
query-key pairs. Of these tokens each process of the `tensor` dimension keeps one part, which the layers
gather where all tokens meet the same neurons.

Letters: B sequences, T tokens, L query tokens of this process, E head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.engine.distributed import DistributedContext
from stamm.models.attention_mask import (
    AttentionInputs,
    AttentionModel,
    Kernel,
    attention_inputs,
    partial_attention_inputs,
)


class SequenceShard:
    """This process's part of sequences of `length` tokens.

    Raises   ConfigError when `length` cannot be divided evenly
    """

    def __init__(self, world: DistributedContext, length: int) -> None:
        parts = (2 * world.context if world.context > 1 else 1) * world.tensor
        if length % parts:
            raise ConfigError(
                f"context = {length} tokens cannot be divided into {parts} equal parts for "
                f"engine.parallel.context = {world.context} and tensor = {world.tensor}",
                fix=f"Use a multiple of {parts}",
            )
        self._world = world
        positions = [_positions(length, world.context, c) for c in range(world.context)]
        self._queries = positions[world.mesh_coordinates[1]]
        self._keys = torch.cat(positions)  # in the order of gathered keys
        self._own = self._queries.chunk(world.tensor)[world.mesh_coordinates[2]]

    def rows(self, first: int, count: int) -> range:
        """This process's sequences of `count`, from `first` on: equally many, up to one, possibly none."""
        data_rank, ways = self._world.mesh_coordinates[0], self._world.data
        return range(first + count * data_rank // ways, first + count * (data_rank + 1) // ways)

    def largest(self, count: int) -> int:
        """Sequences of the process that has most of `count`."""
        return -(-count // self._world.data)

    def check_batch(self, size: int) -> None:
        """Check that the sequences of a whole step are divided evenly.

        Raises   ConfigError when they cannot be
        """
        ways = self._world.data
        if size % ways:
            raise ConfigError(
                f"a step of {size} sequences does not divide over {ways} processes",
                fix=f"Make batch sizes multiples of {ways}, or train with fewer processes, or with "
                "more of them in engine.parallel.context or tensor",
            )

    def tokens(self, x_BT: Tensor) -> Tensor:
        """This process's tokens of whole sequences."""
        return x_BT if self.is_whole else x_BT[:, self._own]

    def attention_inputs(
        self,
        model: AttentionModel,
        document_BT: Tensor,
        dtype: torch.dtype,
        kernel: Kernel = "auto",
    ) -> AttentionInputs:
        """Rotary angles and attention mask of this process's query tokens.

        document_BT   document number of each token of the whole sequences
        kernel        attention backend, as in `models.attention_mask`
        """
        if self._world.context == 1:
            return attention_inputs(model, document_BT.shape[1], document_BT, dtype, kernel=kernel)
        queries, keys = (p.to(document_BT.device) for p in (self._queries, self._keys))
        documents = document_BT[:, queries], document_BT[:, keys]
        return partial_attention_inputs(model, *documents, queries, keys, dtype, kernel)

    @property
    def is_whole(self) -> bool:
        """Whether sequences are not divided."""
        return self._world.context * self._world.tensor == 1


def _positions(length: int, ways: int, index: int) -> Tensor:
    """Positions of the tokens of process `index` of `ways`."""
    pieces = torch.arange(length).chunk(2 * ways if ways > 1 else 1)
    return pieces[0] if ways == 1 else torch.cat((pieces[index], pieces[-1 - index]))
