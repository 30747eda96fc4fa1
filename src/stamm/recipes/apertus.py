"""Apertus 8B and 70B as they were pretrained, with the numbers of the released scripts.

Source   arXiv 2509.14233 and its submit scripts. Where report and code disagree, the code.
"""

from __future__ import annotations

from dataclasses import replace

from stamm.engine.config import EngineConfig, Parallel
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, Llama3Rope, PlainFFN
from stamm.optim.config import AdEMAMix
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig

_SEQUENCES = 3_662_109_375  # 15 T tokens at 4096
_COOLDOWN = 403_905_806  # 1.654 T tokens
_WARMUP = 4_096_000  # 16.8 B tokens


def apertus_8b() -> PretrainConfig:
    """Apertus 8B: 15 T tokens, xIELU, QK-norm, AdEMAMix, WSD, Goldfish as released."""
    return PretrainConfig(
        model=DecoderConfig(
            vocab_size=131_072,
            d_model=4096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            ffn=PlainFFN(width=21_504, activation="xielu"),
            rope=Llama3Rope(theta=500_000.0),
            norm_eps=1e-5,
            init_std=0.008944,
            max_context=4096,
        ),
        context=4096,
        sequences=_SEQUENCES,
        batch=(BatchStage(size=1024), BatchStage(start=1_718_272_000, size=2048)),
        goldfish=Goldfish(k=50, h=50, hash="apertus"),
        masks="released",
        optimizer=AdEMAMix(
            beta3=0.9999, alpha=8.0, alpha_warmup_steps=100_000, beta3_warmup_steps=100_000
        ),
        schedule=WarmupStableDecay(
            peak=1.1e-4, final_share=0.1, warmup_sequences=_WARMUP, decay_sequences=_COOLDOWN
        ),
        clip_norm=0.1,
        seed=28,
        engine=EngineConfig(
            precision="bfloat16",
            activation_checkpointing="layers",
            checkpoint_every=2000,
            async_checkpointing=True,
            parallel=Parallel(tensor=2),
        ),
    )


def apertus_70b() -> PretrainConfig:
    """Apertus 70B: the same recipe, a tenth of the learning rate, twice the batch."""
    base = apertus_8b()
    return replace(
        base,
        model=replace(
            base.model,
            d_model=8192,
            num_layers=80,
            num_heads=64,
            ffn=PlainFFN(width=43_008, activation="xielu"),
        ),
        batch=(BatchStage(size=2048), BatchStage(start=1_072_164_864, size=4096)),
        engine=replace(base.engine, checkpoint_every=250, parallel=Parallel(tensor=4)),
        schedule=WarmupStableDecay(
            peak=1e-5, final_share=0.1, warmup_sequences=_WARMUP, decay_sequences=_COOLDOWN
        ),
    )
