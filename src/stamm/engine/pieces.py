"""Thread parallelism on a CPU: how many smaller micro-batches each micro-batch is split into. No torch here."""

from __future__ import annotations

from stamm.engine.config import EngineConfig

# Fewer tokens make operations too small: on an Intel Xeon with AVX-512, 4,096 tokens a step lose 2 % in 2
# pieces, 8 % in 4 and 19 % in 8 (docs/log/2026-11-23-busy-machine.md).
FEWEST_TOKENS = 1024


def pieces_of(engine: EngineConfig, sequences: int, context: int) -> int:
    """Pieces of a micro-batch of `sequences` sequences, of which each thread computes one at a time.

    Edge   by default 1 with one thread, else twice the threads, where each piece keeps FEWEST_TOKENS
           and as many sequences as the others
    """
    if engine.pieces is not None:
        return min(engine.pieces, sequences)
    most = 1 if engine.threads == 1 else 2 * engine.threads
    most = max(min(most, sequences * context // FEWEST_TOKENS), 1)
    return next(n for n in range(min(most, sequences), 0, -1) if sequences % n == 0)


def threads_of_operations(threads: int, in_flight: int) -> int:
    """Intra-op threads of each operation while `in_flight` micro-batches share `threads` threads."""
    return threads // min(threads, in_flight)
