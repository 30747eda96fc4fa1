"""Own text: one model trained on the user's files, with consent, licences, quality and deduplication.

The model, its vocabulary and the length of training follow from the amount of text. What is set here
makes a `Study`, whose settings can be changed like those of any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stamm.audit.config import AuditConfig
from stamm.base.config import closest, validate
from stamm.base.errors import ConfigError
from stamm.base.units import count_text, parse_count
from stamm.corpus.config import CorpusConfig, PackConfig, ProbesConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.engine.config import EngineConfig
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.flops import count_parameters
from stamm.optim.config import AdEMAMix
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.arm import Arm
from stamm.recipes.length import text_bytes
from stamm.recipes.study import Study
from stamm.runs.job import Step

AUTO = "auto"
SIZES = {
    "tiny": 1_200_000,
    "small": 5_000_000,
    "medium": 20_000_000,
    "large": 80_000_000,
    "xlarge": 300_000_000,
}
"""Parameters of the named sizes, about."""
_SMALLEST, _LARGEST = 50_000, 4_000_000_000
_BYTES_PER_TOKEN = 4.0
# Hoffmann et al. 2022 (arXiv 2203.15556): 20 tokens a parameter.
_TOKENS_PER_PARAMETER = 20
# Muennighoff et al. 2023 (arXiv 2305.16264): up to four passes are worth almost as much as new text.
_MOST_EPOCHS = 4.0
_TRAINED_BYTES = 20e6  # below this much text is read more than once
_BYTES_PER_WORD = 256  # of the vocabulary, at least
_MEMORY_GIB = 0.25  # of sorting and grouping
_WARMUP_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class OwnText:
    """One model from the user's own text.

    inputs    files, folders or patterns, as in `corpus.inputs`; required
    size      tiny (1.2 M parameters), small (5 M), medium (20 M), large (80 M), xlarge (300 M), or the
              number of parameters, "3M"; "auto": by the amount of text
    robots    snapshots of robots.txt, files or folders (`stamm run corpus.robots` makes them). Hosts
              without one are unknown, and their documents dropped
    planted   a JSONL of books of which passages are planted, to measure memorization:
              "package:probe_books.jsonl.zst"; "": nothing is planted
    """

    inputs: tuple[str, ...] = ()
    size: str = AUTO
    robots: tuple[str, ...] = ()
    planted: str = ""

    def __post_init__(self) -> None:
        if self.size != AUTO:
            parameters_of(self.size)
        validate(self, ("inputs", all(self.inputs), "has an empty name in it"))

    def steps(self) -> tuple[Step, ...]:
        """All steps. Raises ConfigError without inputs."""
        return self.study().steps()

    def study(self) -> Study:
        """The study of one arm that this asks for.

        Raises   ConfigError without inputs; DataError for a name without a file
        """
        if not self.inputs:
            raise ConfigError(
                "there is no text to train on", fix="Set inputs=FILES_OR_FOLDER, your own text"
            )
        corpus = CorpusConfig(
            inputs=self.inputs,
            consent=ConsentConfig(robots=self.robots, no_url="own"),
            licences=LicenceConfig(unknown="own"),
            quality=QualityConfig(),
            probes=ProbesConfig(books=self.planted, passages_per_bucket=4)
            if self.planted
            else None,
            memory_gib=_MEMORY_GIB,
        )
        size = text_bytes(corpus)
        pretrain = _pretrain(self.size, size)
        return Study(
            corpus=corpus,
            tokenizer=TokenizerConfig(vocab_size=pretrain.model.vocab_size),
            pack=PackConfig(memory_gib=_MEMORY_GIB),
            pretrain=replace(pretrain, model=replace(pretrain.model, ffn=PlainFFN())),
            arms=(Arm(name="xielu", ffn=pretrain.model.ffn),),
            evaluate=EvaluateConfig(tasks=("held_out",)),
            audit=AuditConfig() if self.planted else None,
            export=ExportConfig(),
        )


def own() -> OwnText:
    """One model from your own text: set inputs=FILES_OR_FOLDER; --dry-run prints size and time."""
    return OwnText()


def parameters_of(size: str) -> int:
    """The number of parameters that a size means.

    Raises   ConfigError for an unknown name, and a number out of range
    """
    if size in SIZES:
        return SIZES[size]
    names = f"{', '.join((AUTO, *SIZES))}, or a number of parameters such as 3M"
    try:
        number = parse_count(size)
    except ConfigError:
        match = closest(size, (AUTO, *SIZES))
        hint = f"Did you mean {match!r}? " if match else ""
        raise ConfigError(f"size = {size!r} is not a size", fix=f"{hint}Known: {names}") from None
    if not _SMALLEST <= number <= _LARGEST:
        least, most = count_text(_SMALLEST), count_text(_LARGEST)
        raise ConfigError(f"size = {size} lies outside {least} to {most}", fix=f"Known: {names}")
    return number


def parameters_for(text: float) -> int:
    """Parameters for so many bytes of text: 20 tokens a parameter, and the smallest sizes for little text."""
    least = min(SIZES["tiny"], max(100_000, 0.3 * text))
    return round(max(least, text / _BYTES_PER_TOKEN / _TOKENS_PER_PARAMETER))


def decoder_of(parameters: int, text: float) -> DecoderConfig:
    """The decoder with about so many parameters, whose vocabulary so many bytes of text can fill."""
    words = max(512, 2 ** math.floor(math.log2(max(text / _BYTES_PER_WORD, 1))))
    widths = [*range(32, 257, 32), *range(320, 1025, 64), *range(1152, 4097, 128)]
    decoders = [_decoder(width, parameters, words) for width in widths]
    return min(
        decoders, key=lambda decoder: abs(math.log(count_parameters(decoder).total / parameters))
    )


def _decoder(width: int, parameters: int, words: int) -> DecoderConfig:
    """As deep as wide models are: 4 layers of width 96, 8 of 384, 14 of 1152; half in embedding and head."""
    heads = width // (32 if width <= 256 else 64)
    shared = [n for n in range(1, heads + 1) if heads % n == 0 and n <= max(1, heads // 2)]
    half = 2 ** round(math.log2(parameters / 4 / width))
    return DecoderConfig(
        vocab_size=min(max(half, 512), 65_536, words),
        d_model=width,
        num_layers=max(2, round(4 * math.sqrt(width / 96))),
        num_heads=heads,
        num_kv_heads=shared[-1],
        ffn=PlainFFN(width=4 * width),
        init_std=min(0.04, 0.4 / math.sqrt(width)),
        max_context=_context(parameters),
    )


def _context(parameters: int) -> int:
    return 256 if parameters < 4_000_000 else 512 if parameters < 40_000_000 else 1024


def _pretrain(size: str, text: float) -> PretrainConfig:
    parameters = parameters_for(text) if size == AUTO else parameters_of(size)
    model = decoder_of(parameters, text)
    epochs = min(max(_TRAINED_BYTES / max(text, 1.0), 1.0), _MOST_EPOCHS)
    sequences = epochs * text / _BYTES_PER_TOKEN / model.max_context
    batch = min(max(2 ** math.floor(math.log2(max(sequences / 200, 1))), 1), 16)
    return PretrainConfig(
        model=model,
        context=model.max_context,
        batch=(BatchStage(size=batch),),
        epochs=round(epochs, 2),
        goldfish=Goldfish(k=50, h=50),
        optimizer=AdEMAMix(beta2=0.999, beta3=0.999, alpha=1.0),
        schedule=WarmupStableDecay(
            peak=round(3e-3 * math.sqrt(96 / max(model.d_model, 96)), 6),
            final_share=0.05,
            warmup_sequences=_WARMUP_STEPS * batch,
            decay_share=0.3,
        ),
        engine=EngineConfig(checkpoint_every=200),
    )
