"""Recipe that compares memorization without the Goldfish loss and with it, by both hashes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stamm.losses.config import Goldfish
from stamm.models.config import PlainFFN
from stamm.pretrain.config import PretrainConfig
from stamm.recipes import demo
from stamm.recipes.arm import Arm
from stamm.recipes.study import Study


@dataclass(frozen=True, kw_only=True)
class GoldfishArm(Arm):
    """A loss mask: its name in the run folder, the model's feed-forward block, and the mask.

    goldfish   None trains on every token
    """

    goldfish: Goldfish | None = None


@dataclass(frozen=True, kw_only=True)
class GoldfishStudy(Study):
    """A study whose arms differ in the Goldfish loss; the arm "none" is the reference on the page."""

    arms: tuple[GoldfishArm, ...]
    exported: tuple[str, ...] = ()

    def pretrain_of(self, arm: Arm) -> PretrainConfig:
        """The pretraining run of one arm."""
        config = super().pretrain_of(arm)
        return replace(config, goldfish=arm.goldfish) if isinstance(arm, GoldfishArm) else config


def goldfish() -> GoldfishStudy:
    """The demo's model without the Goldfish loss and with it, by both hashes, audited; minutes."""
    study = _with_masks(demo.demo(), PlainFFN(width=384, activation="xielu"))
    probes = study.corpus.probes
    assert probes is not None
    # Repeated often enough that the model without a mask begins to reproduce passages.
    probes = replace(probes, passages_per_bucket=6, repeats=(0, 1, 8, 32, 128))
    return replace(study, corpus=replace(study.corpus, probes=probes))


def smoke() -> GoldfishStudy:
    """audit.goldfish with a toy model on little text: every step, in half a minute."""
    return _with_masks(demo.smoke(), PlainFFN(width=96, activation="xielu"))


def _with_masks(base: Study, ffn: PlainFFN) -> GoldfishStudy:
    """`base` with an arm for each mask: k = h = 50 as in Apertus, by its hash and by stamm's."""
    return GoldfishStudy(
        corpus=base.corpus,
        tokenizer=base.tokenizer,
        pack=base.pack,
        pretrain=base.pretrain,
        arms=(
            GoldfishArm(name="none", ffn=ffn),
            GoldfishArm(name="apertus", ffn=ffn, goldfish=Goldfish(hash="apertus")),
            GoldfishArm(name="stamm", ffn=ffn, goldfish=Goldfish(hash="stamm")),
        ),
        evaluate=base.evaluate,
        audit=base.audit,
        export=None,
    )
