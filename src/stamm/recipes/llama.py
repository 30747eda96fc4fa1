"""The Llama-like models that xIELU was published with, 1.1 and 3 billion parameters.

Source   Huang and Schlag 2024 (arXiv 2411.13010) and its training configurations.
"""

from __future__ import annotations

from dataclasses import replace

from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN, PlainRope
from stamm.optim.config import AdamW
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig


def llama_1b_xielu() -> PretrainConfig:
    """1.1 B parameters, 126 B tokens of FineWeb-Edu, on 8, 16, 32 or 64 GPUs.

    As published but for the batch: 60,160 steps of 512 sequences, not 70,000 of 440; warm-up and cooldown
    have the published number of sequences. A checkpoint about every hour on 8 H100, written while
    training continues.
    """
    batch, steps, cooldown, warmup = 512, 60_160, 14_500 * 440, 2_000 * 440
    return PretrainConfig(
        model=DecoderConfig(
            vocab_size=147_456,
            d_model=1536,
            num_layers=24,
            num_heads=16,
            num_kv_heads=16,
            ffn=PlainFFN(width=9216, activation="xielu"),
            rope=PlainRope(theta=500_000.0),
            qk_norm=False,
            norm_eps=1e-6,
            tied_embeddings=True,
            init_std=0.025,
            max_context=4096,
        ),
        context=4096,
        sequences=batch * steps,
        batch=(BatchStage(size=batch),),
        micro_batch=4,
        goldfish=None,
        optimizer=AdamW(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        schedule=WarmupStableDecay(
            peak=8e-4,
            final_share=0.0,
            warmup_sequences=warmup,
            decay_sequences=cooldown,
        ),
        clip_norm=1.0,
        engine=EngineConfig(
            precision="bfloat16", checkpoint_every=560, keep_checkpoints=3, async_checkpointing=True
        ),
    )


def llama_3b_xielu() -> PretrainConfig:
    """3 B parameters, 126 B tokens: 48,000 steps of 640 sequences."""
    batch, steps, cooldown_from, warmup = 640, 48_000, 38_000, 2_000
    base = llama_1b_xielu()
    return replace(
        base,
        model=replace(
            base.model,
            d_model=2048,
            num_layers=36,
            ffn=PlainFFN(width=12_288, activation="xielu"),
            tied_embeddings=False,
        ),
        sequences=batch * steps,
        batch=(BatchStage(size=batch),),
        schedule=WarmupStableDecay(
            peak=7e-4,
            final_share=0.0,
            warmup_sequences=warmup * batch,
            decay_sequences=(steps - cooldown_from) * batch,
        ),
    )
