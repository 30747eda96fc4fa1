"""Demo recipes: raw pages to three trained, audited models and a report."""

from __future__ import annotations

from dataclasses import replace

from stamm.audit.config import AuditConfig
from stamm.corpus.config import CorpusConfig, PackConfig, ProbesConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.inputs import DEMO_INPUTS, DEMO_PROBE_BOOKS, DEMO_ROBOTS
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.engine.config import EngineConfig
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.optim.config import AdEMAMix
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.arm import Arm
from stamm.recipes.study import Study

SMOKE_INPUTS = ("package:rights.jsonl.zst", "package:pages.warc.gz")
_VOCABULARY = 4096
_BATCH = 16


def demo() -> Study:
    """SwiGLU, ReLU² and xIELU at equal parameters on 3 MB of text in 65 languages; 4 minutes."""
    return Study(
        corpus=CorpusConfig(
            inputs=DEMO_INPUTS,
            consent=ConsentConfig(robots=DEMO_ROBOTS, unknown_host="allow"),
            probes=ProbesConfig(books=DEMO_PROBE_BOOKS, passages_per_bucket=4),
            held_out=0.04,
        ),
        tokenizer=TokenizerConfig(vocab_size=_VOCABULARY),
        pack=PackConfig(),
        pretrain=PretrainConfig(
            model=DecoderConfig(
                vocab_size=_VOCABULARY,
                d_model=96,
                num_layers=4,
                num_heads=3,
                num_kv_heads=1,
                init_std=0.04,
                max_context=256,
            ),
            context=256,
            batch=(BatchStage(size=_BATCH),),
            goldfish=Goldfish(k=50, h=50),
            optimizer=AdEMAMix(beta2=0.999, beta3=0.999, alpha=1.0),
            schedule=WarmupStableDecay(
                peak=3e-3, final_share=0.05, warmup_sequences=10 * _BATCH, decay_share=0.3
            ),
            clip_norm=1.0,
            engine=EngineConfig(threads=2, checkpoint_every=25),
        ),
        arms=(
            Arm(name="swiglu", ffn=GatedFFN(width=256, activation="swiglu")),
            Arm(name="relu2", ffn=PlainFFN(width=384, activation="relu2")),
            Arm(name="xielu", ffn=PlainFFN(width=384, activation="xielu")),
        ),
        evaluate=EvaluateConfig(),
        audit=AuditConfig(),
        export=ExportConfig(),
    )


def smoke() -> Study:
    """The demo with toy models on a tenth of the text: every step, in half a minute."""
    base = demo()
    probes = ProbesConfig(books=DEMO_PROBE_BOOKS, passages_per_bucket=2, repeats=(0, 1, 4))
    model = replace(
        base.pretrain.model, vocab_size=512, d_model=32, num_layers=2, num_heads=2, num_kv_heads=1
    )
    return replace(
        base,
        corpus=replace(base.corpus, inputs=SMOKE_INPUTS, probes=probes),
        tokenizer=replace(base.tokenizer, vocab_size=512),
        pretrain=replace(
            base.pretrain,
            model=model,
            sequences=30 * 4,
            batch=(BatchStage(size=4),),
            schedule=WarmupStableDecay(peak=3e-3, warmup_sequences=8, decay_share=0.3),
            engine=EngineConfig(threads=1, compile="off", checkpoint_every=5),
        ),
        evaluate=EvaluateConfig(threads=1),
        audit=AuditConfig(threads=1),
        export=ExportConfig(threads=1),
        arms=(
            Arm(name="swiglu", ffn=GatedFFN(width=64, activation="swiglu")),
            Arm(name="relu2", ffn=PlainFFN(width=96, activation="relu2")),
            Arm(name="xielu", ffn=PlainFFN(width=96, activation="xielu")),
        ),
    )
