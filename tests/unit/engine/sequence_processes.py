"""Started by torchrun: a preference loss on completions, on a divided decoder; compared with one that is whole.

Argument   a JSON object with "context" and "tensor" ways. Exits with an error where values or
           gradients differ. Done for log-probabilities of completions, and for rewards at their ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stamm.activations.module import build_activation
from stamm.base.shutdown import exit_immediately
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import DistributedContext, destroy_process_group, init_distributed
from stamm.engine.parallel import apply_fsdp, apply_tensor_parallel, clip_grad_norm
from stamm.engine.sequence_sharding import SequenceShard
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder

Values = Callable[[Decoder, SequenceShard, int, int], Tensor]
PAIRS, T, V = 4, 32, 64
MODEL = DecoderConfig(
    vocab_size=V, d_model=32, num_layers=2, num_kv_heads=2, ffn=PlainFFN(width=48), max_context=T
)


def drawn() -> tuple[Tensor, Tensor]:
    """Tokens of PAIRS chosen, then PAIRS rejected completions; which targets count."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, V, (2 * PAIRS, T + 1), generator=draw)
    counted = torch.arange(T)[None] >= torch.randint(4, 20, (2 * PAIRS, 1), generator=draw)
    return tokens, counted


def rewards(decoder: Decoder, share: SequenceShard, first: int, count: int) -> Tensor:
    """Like `log_probs`, the reward at one token of each sequence."""
    tokens, _ = drawn()
    rows = share.rows(first, count)
    ends = torch.tensor([3, 30, 16, 9, 31, 5, 0, 12])[rows.start : rows.stop]
    number = torch.arange(len(rows))[:, None].expand(-1, T)
    answer = torch.where(torch.arange(T)[None] == ends[:, None], number, -1)
    document = torch.zeros(len(rows), T, dtype=torch.int64)
    return decoder.sequence_rewards(
        share.tokens(tokens[rows.start : rows.stop, :-1]),
        share.tokens(answer),
        len(rows),
        attention=share.attention_inputs(decoder.model, document, torch.float32),
    )


def log_probs(decoder: Decoder, share: SequenceShard, first: int, count: int) -> Tensor:
    """Of this process's sequences among `count` from `first` on; over its own tokens."""
    tokens, counted = drawn()
    rows = share.rows(first, count)
    part = slice(rows.start, rows.stop)
    number = torch.arange(len(rows))[:, None].expand(-1, T)
    completion = torch.where(counted[part], number, -1)
    document = torch.zeros(len(rows), T, dtype=torch.int64)
    return decoder.sequence_log_probs(
        share.tokens(tokens[part, :-1]),
        share.tokens(tokens[part, 1:]),
        share.tokens(completion),
        len(rows),
        attention=share.attention_inputs(decoder.model, document, torch.float32),
    )


def loss(
    decoder: Decoder, world: DistributedContext, values: Values
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over this process's pairs of -log sigmoid(0.1 (chosen - rejected)), and both values.

    Two forward passes before one backward pass. Partial sums of one sequence are added up over
    processes; each keeps the gradient of its own part.
    """
    share = SequenceShard(world, T)
    both = [values(decoder, share, first, PAIRS) for first in (0, PAIRS)]
    if world.context * world.tensor > 1:
        both = [x + (world.all_reduce_sum(x.detach().clone()) - x.detach()) for x in both]
    chosen, rejected = both
    return -F.logsigmoid(0.1 * (chosen - rejected)).sum(), chosen, rejected


def with_head() -> Decoder:
    """A decoder with a reward head that is not 0."""
    decoder = build_decoder(MODEL, 7)
    decoder.add_reward_head()
    assert decoder.reward_head is not None
    with torch.no_grad():
        decoder.reward_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return decoder


def check(context: int, tensor: int, values: Values) -> None:
    """Compare with the whole decoder in this process."""
    config = EngineConfig(
        threads=1, compile="off", parallel=Parallel(context=context, tensor=tensor)
    )
    world = init_distributed(config.parallel, torch.device("cpu"), collectives=True)
    alone = DistributedContext(torch.device("cpu"))
    make = with_head if values is rewards else partial(build_decoder, MODEL, 7)
    whole, divided = make(), make()
    apply_tensor_parallel(divided, world, config)
    apply_fsdp(divided, world, config)
    expected, *logs = loss(whole, alone, values)
    expected.backward()
    found, *mine = loss(divided, world, values)
    found.backward()
    rows = SequenceShard(world, T).rows(0, PAIRS)
    for one, all_of_them in zip(mine, logs, strict=True):
        torch.testing.assert_close(one, all_of_them[rows.start : rows.stop], rtol=1e-5, atol=1e-5)
    norms = clip_grad_norm(whole, alone, 1e9), clip_grad_norm(divided, world, 1e9)
    torch.testing.assert_close(norms[1], norms[0], rtol=2e-5, atol=0.0)
    sharded = dict(divided.named_parameters())
    assert isinstance(sharded["lm_head.weight"], DTensor)
    for name, parameter in whole.named_parameters():
        gradient = sharded[name].grad
        if not parameter.requires_grad:
            assert gradient is None
            continue
        assert parameter.grad is not None and gradient is not None, name
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-5 * scale)


def check_effective() -> None:
    """`effective()` and `raw()` of activation parameters that FSDP2 divides, evenly and not."""
    world = init_distributed(Parallel(), torch.device("cpu"), collectives=True)
    assert world.mesh is not None
    for neurons in (None, 7, 8):
        whole, divided = (build_activation("xielu", neurons=neurons) for _ in range(2))
        fully_shard(divided, mesh=world.mesh["data"])
        assert isinstance(divided.alpha_p, DTensor)
        for raw in (True, False):
            assert divided.values(raw=raw) == whole.values(raw=raw)
        if neurons is None:
            assert divided.effective() == whole.effective() and divided.raw() == whole.raw()


def main() -> None:
    """Every division that the command line asks for."""
    torch.set_num_threads(1)
    for text in sys.argv[1:]:
        for values in (log_probs, rewards):
            check(**json.loads(text), values=values)
    check_effective()
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
