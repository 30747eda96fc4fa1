"""Which part of a micro-batch each process takes, and what its tokens may look at.

Sequences are divided over `data`. A sequence is divided over `context` in twice as many stretches
as there are processes, of which each takes one from the front and one from the back, so that all
look at equally many tokens; of its stretches, each process in the direction of `tensor` keeps one
part, which the layers bring together where all tokens meet the same neurons.

Letters: B sequences, T tokens, L tokens that look, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.engine.distributed import World
from stamm.models.attention_mask import Kernel, Sight, part_sight, sight


class Share:
    """This process's part of sequences of `length` tokens.

    Raises   ConfigError when `length` does not divide
    """

    def __init__(self, world: World, length: int) -> None:
        pieces = (2 * world.context if world.context > 1 else 1) * world.tensor
        if length % pieces:
            raise ConfigError(
                f"context = {length} tokens do not divide into {pieces} equal parts for "
                f"engine.parallel.context = {world.context} and tensor = {world.tensor}",
                fix=f"Use a multiple of {pieces}",
            )
        self._world = world
        stretches = [_stretches(length, world.context, c) for c in range(world.context)]
        self._looking = stretches[world.place[1]]
        self._seen = torch.cat(stretches)  # in the order in which gathered keys stand
        self._own = self._looking.chunk(world.tensor)[world.place[2]]

    def rows(self, first: int, count: int) -> range:
        """This process's sequences of the `count` of a step, from `first` on.

        Raises   ConfigError when they do not divide
        """
        ways = self._world.data
        if count % ways:
            raise ConfigError(
                f"a step of {count} sequences does not divide over {ways} processes",
                fix=f"Make batch sizes multiples of {ways}, or train with fewer processes, or with "
                "more of them in engine.parallel.context or tensor",
            )
        each = count // ways
        begin = first + self._world.place[0] * each
        return range(begin, begin + each)

    def tokens(self, x_BT: Tensor) -> Tensor:
        """This process's tokens of whole sequences."""
        return x_BT if self.whole else x_BT[:, self._own]

    def sight(
        self, frequencies: Tensor, document_BT: Tensor, dtype: torch.dtype, kernel: Kernel = "auto"
    ) -> Sight:
        """What attention is told about the tokens that look here.

        document_BT   of the whole sequences, a number per token
        kernel        what attends: see `models.sight`
        """
        if self._world.context == 1:
            return sight(frequencies, document_BT.shape[1], document_BT, dtype, kernel=kernel)
        looking, seen = (p.to(frequencies.device) for p in (self._looking, self._seen))
        documents = document_BT[:, looking], document_BT[:, seen]
        return part_sight(frequencies, *documents, looking, seen, dtype, kernel)

    @property
    def whole(self) -> bool:
        """Whether sequences are not divided."""
        return self._world.context * self._world.tensor == 1


def _stretches(length: int, ways: int, index: int) -> Tensor:
    """Positions of the tokens that process `index` of `ways` takes."""
    pieces = torch.arange(length).chunk(2 * ways if ways > 1 else 1)
    return pieces[0] if ways == 1 else torch.cat((pieces[index], pieces[-1 - index]))
