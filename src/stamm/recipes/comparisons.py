"""Comparison recipes: a minute for tests, an hour or three on a laptop, a night on a GPU.

Eight candidates. SwiGLU is what most models use, ReLU² and xIELU are what it was compared with when
xIELU was published (arXiv 2411.13010). Five more that published comparisons found best:

geglu      the other gated block in wide use (arXiv 2002.05202)
xatglu     the best first-order gated block of the expanded gating ranges (arXiv 2405.20768)
xssslupr   the lowest loss in the table of its author, who is xIELU's, of 350M mixtures of experts
           (AllenHaoHuang/Megatron-LM): 2.137, where SwiGLU has 2.147 and ReLU² 2.149
polyrelu   powers one to three of the rectifier, learned (arXiv 2411.03884); its normalised form is
           the next of that table, and divides by a row's statistic, which no entry here does
golu       a gate that is not symmetric: Gompertz's (arXiv 2502.03654)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stamm.corpus.config import CorpusConfig
from stamm.engine.config import EngineConfig, SkipUpdate
from stamm.evaluate.config import EvaluateConfig
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.optim.config import AdEMAMix
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.average_config import WeightAverage
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.arm import Arm
from stamm.recipes.compare import Comparison, Tuning, without_peak
from stamm.recipes.demo import demo
from stamm.recipes.demo import smoke as smoke_study
from stamm.recipes.matching import Matched

_GATED = ("swiglu", "geglu", "xatglu")
_PLAIN = ("relu2", "xielu", "xssslupr", "polyrelu", "golu")


def smoke() -> Comparison:
    """SwiGLU, ReLU² and xIELU as toys: every step of a comparison, in a minute."""
    base = smoke_study()
    return Comparison(
        corpus=_without_probes(base.corpus),
        tokenizer=base.tokenizer,
        pack=base.pack,
        pretrain=replace(
            base.pretrain, sequences=12 * 4, schedule=without_peak(base.pretrain.schedule)
        ),
        arms=base.arms,
        tuning=Tuning(rates=(3e-3, 9e-3, 27e-3), length=0.5),
        seeds=(1, 2),
        evaluate=EvaluateConfig(threads=1, blimp_pairs_per_paradigm=1),
    )


def activations() -> Comparison:
    """Eight activations at equal parameters (1.3 M), tuned alike, 3 seeds, on the shipped text; an hour."""
    base, batch = demo(), 16
    model = replace(base.pretrain.model, num_layers=5)
    return Comparison(
        corpus=_without_probes(base.corpus),
        tokenizer=base.tokenizer,
        pack=base.pack,
        # One pass over the shipped text, but for its last few sequences.
        pretrain=replace(
            base.pretrain,
            model=model,
            sequences=270 * batch,
            schedule=without_peak(base.pretrain.schedule),
            engine=replace(base.pretrain.engine, checkpoint_every=70, on_nonfinite=SkipUpdate()),
        ),
        arms=_arms(width=256),
        # For SwiGLU 4e-3 is the best in short runs; in whole ones 8e-3 is .19 nats worse.
        tuning=Tuning(rates=(2e-3, 4e-3, 8e-3), length=0.4),
        seeds=(1, 2, 3),
        evaluate=EvaluateConfig(blimp_pairs_per_paradigm=1),
    )


def evidence_activations() -> Comparison:
    """xIELU, ReLU² and SwiGLU at 1.3 M parameters, 8 or 16 seeds; set corpus.inputs=YOUR_TEXT; 36 minutes of a core.

    3 (4 + 8) runs, and 24 more if the look after 8 seeds does not end it.
    """
    return replace(claim(activations().arms[:3], "swiglu", seeds=16), looks=(8, 16))


def claim(
    arms: Sequence[Arm],
    baseline: str,
    *,
    seeds: int = 5,
    matched: Matched | None = None,
) -> Comparison:
    """A comparison for docs/evidence.md: 1.3 M parameters, 768 steps, rates tuned at the full length, one look.

    A step has 4 sequences, 1,024 tokens: small steps use few tokens well, and leave the loss less sensitive
    to the rate. A run takes 48 s of one core (Intel Xeon, AVX-512), its evaluation 12 s. Set
    corpus.inputs=YOUR_TEXT, 50 MB or more in few languages, of which 4 % are held out.

    seeds    of the compared runs, from 1
    matched  None: equal parameters
    """
    base, batch = activations(), 4
    return replace(
        base,
        corpus=replace(base.corpus, held_out=0.04),
        pretrain=replace(
            base.pretrain,
            batch=(BatchStage(size=batch),),
            sequences=768 * batch,
            schedule=replace(base.pretrain.schedule, warmup_sequences=40 * batch),
            # A process a core: two runs side by side use two cores better than two threads of one.
            engine=replace(base.pretrain.engine, threads=1, checkpoint_every=256),
        ),
        arms=tuple(arms),
        baseline=baseline,
        matched=matched or base.matched,
        tuning=Tuning(rates=(5e-4, 1e-3, 2e-3, 4e-3), refinements=0, length=1.0, margin=0.005),
        seeds=tuple(range(1, seeds + 1)),
        # Windows that overlap by half would be read twice: as long as training takes, at 2 MB of text.
        evaluate=EvaluateConfig(tasks=("held_out",), overlap=32, threads=1),
    )


def evidence_smoke() -> Comparison:
    """Toys in the steps of compare.evidence_activations: looks after 2 and 3 seeds, averaged weights."""
    base = smoke()
    average, engine = WeightAverage(last=2, every=4), base.pretrain.engine
    engine = replace(engine, checkpoint_every=EngineConfig.checkpoint_every)  # average.every
    return replace(
        base,
        pretrain=replace(base.pretrain, engine=engine),
        tuning=Tuning(rates=(3e-3, 9e-3), length=1.0, margin=0.005, refinements=0),
        seeds=(1, 2, 3),
        looks=(2, 3),
        average=average,
        evaluate=EvaluateConfig(threads=1, tasks=("held_out",)),
    )


def activations_gpu() -> Comparison:
    """The same eight at 42 M parameters and 840 M tokens for a GPU; set corpus.inputs=YOUR_TEXT; 7 hours.

    64 runs, 7.4 EFLOP: 7 hours of an H100 at 30 % of its 989 TFLOP/s. Not run yet.
    """
    base, batch, vocabulary = demo(), 256, 32_768
    return Comparison(
        corpus=_without_probes(base.corpus),
        tokenizer=replace(base.tokenizer, vocab_size=vocabulary),
        pack=base.pack,
        pretrain=PretrainConfig(
            model=DecoderConfig(
                vocab_size=vocabulary,
                d_model=512,
                num_layers=8,
                num_heads=8,
                num_kv_heads=4,
                tied_embeddings=True,
                max_context=1024,
            ),
            context=1024,
            sequences=3200 * batch,
            batch=(BatchStage(size=batch),),
            micro_batch=32,
            optimizer=AdEMAMix(beta2=0.999, beta3=0.999, alpha=4.0),
            schedule=WarmupStableDecay(warmup_sequences=160 * batch, decay_share=0.2),
            engine=EngineConfig(
                device="cuda",
                precision="bfloat16",
                checkpoint_every=400,
                keep_checkpoints=1,
                on_nonfinite=SkipUpdate(),
            ),
        ),
        arms=_arms(width=1536),
        tuning=Tuning(rates=(1e-3, 2e-3, 4e-3), length=0.2),
        seeds=(1, 2, 3),
        evaluate=EvaluateConfig(batch_tokens=32_768),
    )


def _arms(width: int) -> tuple[Arm, ...]:
    gated = [Arm(name=name, ffn=GatedFFN(width=width, activation=name)) for name in _GATED]
    plain = [Arm(name=name, ffn=PlainFFN(width=3 * width // 2, activation=name)) for name in _PLAIN]
    # The published comparison first.
    ordered = {arm.name: arm for arm in (*gated, *plain)}
    first = [ordered.pop(name) for name in ("swiglu", "relu2", "xielu")]
    return (*first, *ordered.values())


def _without_probes(corpus: CorpusConfig) -> CorpusConfig:
    return replace(corpus, probes=None)
