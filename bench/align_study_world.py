"""The language model, prompts, answers and rewards of `bench.align_study`.

A decoder of 2 layers with xIELU learns short English task dialogues (user turn, system turn). Its
answers are sampled once and used by all arms: pools to train on, to rate with and to test with.

Letters: P prompts, K answers of a prompt, B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import zstandard
from safetensors.torch import load_file, save_file
from torch import Tensor

from stamm.base.files import read_json, sha256_bytes, write_json, write_text
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig
from stamm.models.serialization import load_decoder, save_decoder
from stamm.tokenizer.special_tokens import BEGIN_ID, PAD_ID
from stamm.tokenizer.tokenizer import Tokenizer

NOISE_PER_LABEL = 2.0  # standard deviation of the labels of the proxy, in those of gold
LABELS = 500
_CLASSES = 8


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of everything; the defaults are those of the study."""

    vocab_size: int = 512
    d_model: int = 64
    layers: int = 2
    longest_prompt: int = 20  # tokens, control tokens included
    longest_answer: int = 16  # tokens, stop token included
    chats: int = 24_000
    start_steps: int = 900
    start_rows: int = 64
    train: int = 400
    validation: int = 100
    test: int = 400
    drawn: int = 4  # answers of a prompt to train on
    slices: int = 10  # disjoint sets of them: seeds 0 to 7, pilots and tuning
    references: int = 32


class Answers(NamedTuple):
    """Answers of the prompts of one split.

    tokens      int64, (P, K, T), padded with PAD_ID
    length      int64, (P, K), stop token included
    reference   log pi_ref(y|x) in nats, float64, (P, K)
    features    sum of the start model's last hidden states over the answer's tokens, divided by
                sqrt(length), (P, K, D): what the proxy reads
    """

    tokens: Tensor
    length: Tensor
    reference: Tensor
    features: Tensor

    def take(self, index: slice | Tensor) -> Answers:
        """Some answers of every prompt."""
        return Answers(*(part[:, index] for part in self))


@dataclass(frozen=True)
class World:
    """What all runs share. `pools` by name: own, other, rate (train prompts), rate_validation, rate_test."""

    sizes: Sizes
    start: Decoder
    tokenizer: Tokenizer
    stop: int
    prompts: dict[str, list[list[int]]]
    pools: dict[str, Answers]
    facts: dict[str, float | str]


def sequences(
    prompts: Sequence[Sequence[int]], tokens_PKT: Tensor, length_PK: Tensor
) -> tuple[Tensor, Tensor]:
    """Prompts and answers as rows: tokens (B, T + 1), and the answer that each target belongs to, (B, T)."""
    rows, count = [], tokens_PKT.shape[1]
    marks = []
    for place, prompt in enumerate(prompts):
        for k in range(count):
            length = int(length_PK[place, k])
            answer = tokens_PKT[place, k, :length].tolist()
            rows.append([*prompt, *answer])
            marks.append((len(prompt) - 1, len(prompt) - 1 + length))
    longest = max(map(len, rows))
    tokens_BT = torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])
    place_T = torch.arange(longest - 1)
    first, last = torch.tensor(marks).T[:, :, None]
    number_B1 = torch.arange(len(rows))[:, None]
    completion_BT = torch.where((place_T >= first) & (place_T < last), number_B1, -1)
    return tokens_BT, completion_BT


def sampled(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    seed: int,
    stop: int,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Tokens (P, K, T) and lengths (P, K) of `count` answers for each prompt, at temperature 1."""
    requests = [prompt for prompt in prompts for _ in range(count)]
    rows: list[list[int]] = [[]] * len(requests)
    config = SamplingConfig(max_new_tokens=longest, slots=min(1024, len(requests)), seed=seed)
    for one in sample(decoder, requests, config, frozenset({stop})):
        rows[one.request] = one.tokens
    tokens = torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])
    length = torch.tensor([len(row) for row in rows])
    return tokens.reshape(len(prompts), count, longest), length.reshape(len(prompts), count)


@torch.no_grad()
def read(
    start: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens_PKT: Tensor,
    length_PK: Tensor,
    policy: Decoder | None = None,
) -> tuple[Answers, Tensor, Tensor]:
    """Answers as the start model reads them; log(policy / start) and KL(policy || start), (P, K), in nats.

    KL is that of the policy's distribution of every next token along the answer, summed over the
    answer: its mean over sampled answers is that of the log-ratio, with less noise.
    """
    shape, features, found = length_PK.shape, [], []
    for first in range(0, len(prompts), 64):
        part = slice(first, first + 64)
        tokens_BT, completion_BT = sequences(prompts[part], tokens_PKT[part], length_PK[part])
        inside, count = completion_BT >= 0, len(tokens_BT)
        answer_N, target_N = completion_BT[inside], tokens_BT[:, 1:][inside][:, None]
        hidden_BTD = start.model(tokens_BT)
        before_NV = start.lm_head(hidden_BTD[:, :-1][inside]).log_softmax(-1)
        after_NV = before_NV
        if policy is not None:
            after_NV = policy.lm_head(policy.model(tokens_BT[:, :-1])[inside]).log_softmax(-1)
        each_N3 = torch.stack(
            [
                before_NV.gather(1, target_N)[:, 0],
                (after_NV - before_NV).gather(1, target_N)[:, 0],
                (after_NV.exp() * (after_NV - before_NV)).sum(-1),
            ],
            dim=1,
        )
        zeros = torch.zeros(count, 3, dtype=torch.float64)
        found.append(zeros.index_add_(0, answer_N, each_N3.double()))
        # The state that has read a token is one place later than the state that predicts it.
        sums = torch.zeros(count, hidden_BTD.shape[-1])
        features.append(sums.index_add_(0, answer_N, hidden_BTD[:, 1:][inside]))
    root = length_PK.reshape(-1, 1).clamp(min=1).sqrt()
    log_prob, log_ratio, kl = torch.cat(found).T.reshape(3, *shape)
    known = (torch.cat(features) / root).reshape(*shape, -1)
    return Answers(tokens_PKT, length_PK, log_prob, known), log_ratio, kl


class Reward:
    """The gold reward of one seed, and the proxy that is fitted to it.

    raw(y) = (sum over first occurrences of a token of w[token] + sum of v[class, next class] / 4
             - repeated tokens / 2) / sqrt(|y|), v standard normal and 8 classes of
             tokens from the seed, w the projection of the start model's output matrix on a direction
             from the seed: a reward that this model can learn
    gold   raw, standardised among the reference answers of the same length: its mean and spread do
           not depend on the length
    mixed  sqrt(1 - rho^2) gold + rho standardised length: correlation rho with length
    proxy  a linear head on the start model, ridge regression on LABELS reference answers of
           training prompts, each labelled with gold + N(0, NOISE_PER_LABEL^2)
    """

    def __init__(self, world: World, seed: int) -> None:
        draw = torch.Generator().manual_seed(7000 + seed)
        vocabulary = world.start.config.vocab_size
        output_VD = world.start.lm_head.weight.detach().double()
        direction = torch.randn(output_VD.shape[1], generator=draw, dtype=torch.float64)
        self._token = (output_VD - output_VD.mean(0)) @ direction
        self._token /= self._token.std()
        self._class = torch.randint(_CLASSES, (vocabulary,), generator=draw)
        self._pair = torch.randn(_CLASSES, _CLASSES, generator=draw, dtype=torch.float64) / 4
        known = [world.pools[name] for name in ("rate", "rate_test")]
        length = torch.cat([one.length.flatten() for one in known])
        raw = torch.cat([self._raw(one).flatten() for one in known])
        spread = float(raw.std())
        self._mean = torch.zeros(world.sizes.longest_answer + 1, dtype=torch.float64)
        self._spread = torch.full_like(self._mean, spread)
        for each in length.unique().tolist():
            of = raw[length == each]
            self._mean[each] = of.mean()
            if len(of) > 1:
                self._spread[each] = of.std().clamp(min=spread / 4)
        self._length = float(length.double().mean()), float(length.double().std())
        rated = world.pools["rate"]
        labels = self.gold(rated).flatten()
        chosen = torch.randperm(len(labels), generator=draw)[:LABELS]
        noise = torch.randn(len(chosen), generator=draw, dtype=torch.float64)
        target = labels[chosen] + NOISE_PER_LABEL * noise
        features = rated.features.double().flatten(0, 1)
        self._middle = features.mean(0)
        x = features[chosen] - self._middle
        ridge = torch.eye(x.shape[1], dtype=torch.float64) * x.square().sum(0).mean() / 50
        self._head = torch.linalg.solve(x.T @ x + ridge, x.T @ (target - target.mean()))

    def gold(self, answers: Answers) -> Tensor:
        """Float64, (P, K)."""
        return (self._raw(answers) - self._mean[answers.length]) / self._spread[answers.length]

    def mixed(self, answers: Answers, rho: float) -> Tensor:
        """Float64, (P, K)."""
        mean, spread = self._length
        length = (answers.length.double() - mean) / spread
        return math.sqrt(1 - rho**2) * self.gold(answers) + rho * length

    def proxy(self, answers: Answers) -> Tensor:
        """Float64, (P, K)."""
        return (answers.features.double() - self._middle) @ self._head

    def _raw(self, answers: Answers) -> Tensor:
        tokens, length = answers.tokens, answers.length
        inside = torch.arange(tokens.shape[-1]) < length[..., None]
        same = tokens[..., :, None] == tokens[..., None, :]
        again = same.tril(-1).any(-1) & inside
        kinds = self._class[tokens]
        pairs = self._pair[kinds[..., :-1], kinds[..., 1:]] * inside[..., 1:]
        total = (self._token[tokens] * (inside & ~again)).sum(-1) + pairs.sum(-1)
        return (total - again.sum(-1) / 2) / length.clamp(min=1).double().sqrt()


def build_world(sizes: Sizes, dialogues: Path, folder: Path) -> World:
    """The world of `sizes` from a file of conversations; kept in `folder` and read from there again."""
    if not (folder / "world.json").exists():
        _build(sizes, dialogues, folder)
    stored = read_json(folder / "world.json")
    tokenizer = Tokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "pools.safetensors")
    pools = {
        name: Answers(*(tensors[f"{name}.{part}"] for part in Answers._fields))
        for name in sorted({key.partition(".")[0] for key in tensors})
    }
    return World(
        sizes,
        load_decoder(folder / "start"),
        tokenizer,
        tokenizer.control_id("<|assistant_end|>"),
        stored["prompts"],
        pools,
        stored["facts"],
    )


def _build(sizes: Sizes, dialogues: Path, folder: Path) -> None:
    content = dialogues.read_bytes()
    texts = _turns(content)
    seen_texts = [text for pair in texts[: 4 * sizes.chats] for text in pair]
    description = train_tokenizer_on(
        TokenizerConfig(vocab_size=sizes.vocab_size), seen_texts[:40_000]
    )
    tokenizer = Tokenizer(description)
    user, end, begin, stop = (
        tokenizer.control_id(f"<|{name}|>")
        for name in ("user_start", "user_end", "assistant_start", "assistant_end")
    )
    held = sizes.train + sizes.validation + sizes.test
    chats: list[tuple[list[int], list[int]]] = []
    known: set[str] = set()
    prompts: list[list[int]] = []
    for question, answer in texts:
        if len(chats) >= sizes.chats:
            break
        prompt = [BEGIN_ID, user, *tokenizer.encode(question), end, begin]
        reply = [*tokenizer.encode(answer), stop]
        if len(prompt) > sizes.longest_prompt or len(reply) > sizes.longest_answer:
            continue
        if len(prompts) < held and question not in known:
            prompts.append(prompt)
            known.add(question)
        elif question not in known:
            chats.append((prompt, reply))
    if len(prompts) < held or len(chats) < sizes.start_rows:
        raise SystemExit(f"{dialogues} has too few short turns: {len(prompts)}, {len(chats)}")
    start, other, nats = _start_model(sizes, chats)
    split = {
        "train": prompts[: sizes.train],
        "validation": prompts[sizes.train : sizes.train + sizes.validation],
        "test": prompts[-sizes.test :],
    }

    def answers(of: Decoder, name: str, count: int, seed: int) -> Answers:
        tokens, length = sampled(of, split[name], count, seed, stop, sizes.longest_answer)
        return read(start, split[name], tokens, length)[0]

    pools = {
        "own": answers(start, "train", sizes.drawn * sizes.slices, 1),
        "other": answers(other, "train", sizes.drawn * sizes.slices, 2),
        "rate": answers(start, "train", sizes.references, 3),
        "rate_validation": answers(start, "validation", sizes.references, 4),
        "rate_test": answers(start, "test", sizes.references, 5),
    }
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}.{part}": getattr(pool, part).contiguous()
        for name, pool in pools.items()
        for part in Answers._fields
    }
    save_file(tensors, folder / "pools.safetensors")
    save_decoder(start, folder / "start")
    write_text(folder / "tokenizer.json", description)
    test = pools["rate_test"]
    facts = {
        "dialogues_sha256": sha256_bytes(content),
        "parameters": sum(p.numel() for p in start.parameters()),
        "chats": len(chats),
        "nats_per_token": nats,
        "answer_tokens": float(test.length.double().mean()),
        "answer_tokens_sd": float(test.length.double().std()),
        "answer_entropy": -float(test.reference.mean()),
        "stopped": float((test.tokens == stop).any(-1).double().mean()),
    }
    write_json(folder / "world.json", {"prompts": split, "facts": facts})


def _turns(content: bytes) -> list[tuple[str, str]]:
    """User turns with the system turn that follows, in an order that depends on their hash."""
    reader = zstandard.ZstdDecompressor().stream_reader(content)
    found = []
    for line in io.TextIOWrapper(reader, encoding="utf-8"):
        messages = json.loads(line)["messages"]
        for asked, answered in itertools.pairwise(messages):
            if asked["role"] == "user" and answered["role"] == "assistant":
                found.append((asked["content"], answered["content"]))
    return sorted(set(found), key=lambda pair: sha256_bytes("\n".join(pair).encode()))


def _start_model(
    sizes: Sizes, chats: Sequence[tuple[list[int], list[int]]]
) -> tuple[Decoder, Decoder, float]:
    """The start model, an earlier checkpoint of it, and its last loss in nats per answer token.

    Two thirds of the steps learn all tokens, the last third those of the answers. The checkpoint is
    that after one third.
    """
    width = 3 * sizes.d_model
    config = DecoderConfig(
        vocab_size=sizes.vocab_size, d_model=sizes.d_model, num_layers=sizes.layers,
        num_heads=2, num_kv_heads=2, ffn=PlainFFN(width=width),
        max_context=sizes.longest_prompt + sizes.longest_answer,
    )  # fmt: skip
    decoder, other = build_decoder(config, seed=1), build_decoder(config, seed=1)
    steps = sizes.start_steps
    optimizer = torch.optim.Adam(decoder.parameters(), lr=3e-3, betas=(0.9, 0.99))
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / 50, 0.02 + 0.98 * (1 - t / steps))
    )
    draw, losses = torch.Generator().manual_seed(1), []
    for step in range(steps):
        if step == steps // 3:
            other.load_state_dict(decoder.state_dict())
        chosen = torch.randint(len(chats), (sizes.start_rows,), generator=draw).tolist()
        rows = [[*chats[one][0], *chats[one][1]] for one in chosen]
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])
        keep = tokens[:, 1:] != PAD_ID
        if step >= 2 * steps // 3:
            asked = torch.tensor([len(chats[one][0]) - 1 for one in chosen])
            keep &= torch.arange(longest - 1) >= asked[:, None]
        optimizer.zero_grad()
        loss = decoder.losses(tokens[:, :-1], tokens[:, 1:], keep, float(keep.sum())).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        shape.step()
        losses.append(float(loss.detach()))
    last = losses[-max(steps // 20, 1) :]
    return decoder.eval(), other.eval(), sum(last) / len(last)
