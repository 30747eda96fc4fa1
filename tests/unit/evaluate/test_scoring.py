"""Log-likelihoods equal what one pass over each sequence gives, for any batch; boundaries are fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stamm.base.errors import ConfigError
from stamm.evaluate import scoring
from stamm.evaluate.scoring import (
    ScoringRequest,
    generate_until,
    loglikelihood,
    loglikelihood_rolling,
    score_questions,
)
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.determinism import set_determinism
from stamm.models.loading import OpenModel, with_tokenizer
from stamm.models.serialization import load_decoder
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID


def decoder() -> Decoder:
    set_determinism(1)  # two threads wait for each other longer than they compute
    config = DecoderConfig(
        vocab_size=61,
        d_model=32,
        num_layers=2,
        ffn=PlainFFN(width=48),
        max_context=40,
        init_std=0.3,
    )
    return build_decoder(config, seed=5)


def draw(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(61, (length,), generator=generator).tolist()


@torch.no_grad()
def by_definition(model: Decoder, context: list[int], y: list[int]) -> tuple[float, bool]:
    whole = [*context, *y][-(model.config.max_context + 1) :]
    logs = model(torch.tensor([whole[:-1]]))[0, -len(y) :].double().log_softmax(-1)
    target = torch.tensor(y)
    greedy = bool((logs.argmax(-1) == target).all())
    return float(logs.gather(1, target[:, None]).sum()), greedy


@pytest.fixture
def read(inputs: dict[str, Path]) -> OpenModel:
    return with_tokenizer(load_decoder(inputs["model"]), inputs["tokenizer"], "sha")


@pytest.mark.parametrize("common", [0, 20])
@pytest.mark.parametrize("width", [48, 384])
def test_scores_have_the_same_bits_for_any_batch(common: int, width: int) -> None:
    """Also where one batch has fewer activations than fused kernels are used for, and another has more."""
    set_determinism(1)
    config = DecoderConfig(
        vocab_size=61, d_model=96, num_layers=2, num_heads=3, num_kv_heads=1,
        ffn=PlainFFN(width=width), max_context=128, init_std=0.3,
    )  # fmt: skip
    model = build_decoder(config, seed=5)
    head = draw(common, 1)
    questions = [
        ScoringRequest(
            [*head, *draw(2 + 7 * i % 61, i)], [draw(1 + (i + j) % 9, 99 * i + j) for j in range(4)]
        )
        for i in range(40)
    ]
    first = score_questions(model, questions, 10_000)
    for batch_tokens in (1, 100, 700, 2048):
        assert score_questions(model, questions, batch_tokens) == first
    if not common:  # a question alone has nothing in common with others
        assert score_questions(model, questions[7:8], 10_000)[0] == first[7]


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("common", [0, 20])
def test_scores_are_those_of_one_pass_for_any_batch(batch_tokens: int, common: int) -> None:
    model, start = decoder(), draw(common, 9)
    questions = []
    for seed in range(7):
        trunk = draw(2, 50 + seed)
        ys = [trunk + draw(n, seed * 10 + n) for n in (1, 4, 3)]
        questions.append(
            ScoringRequest([*start, *draw(1 + 2 * seed, seed)], [*ys, ys[1], ys[0][:2]])
        )
    # The greedy continuation is recognised, also behind a shared beginning.
    best = int(model(torch.tensor([questions[0].context]))[0, -1].argmax())
    questions.append(ScoringRequest(questions[0].context, [[best], [best, best + 1]]))
    found = score_questions(model, questions, batch_tokens)
    for question, scores in zip(questions, found, strict=True):
        for y, score in zip(question.continuations, scores, strict=True):
            expected, greedy = by_definition(model, question.context, y)
            assert score.log_prob == pytest.approx(expected, rel=1e-5)
            assert (score.tokens, score.greedy) == (len(y), greedy)
        if len(scores) == 5:
            assert scores[1] == scores[3]
    assert found[-1][0].greedy


def test_a_context_is_cut_on_the_left_for_each_continuation() -> None:
    model = decoder()
    question = ScoringRequest(draw(39, 0), [draw(1, 1), draw(12, 2), draw(40, 3)])
    (scores,) = score_questions(model, [question], 100)
    for y, score in zip(question.continuations, scores, strict=True):
        assert score.log_prob == pytest.approx(
            by_definition(model, question.context, y)[0], rel=1e-5
        )
    with pytest.raises(ConfigError, match=r"41 tokens, more than max_context = 40"):
        score_questions(model, [ScoringRequest([1], [draw(41, 0)])], 100)
    with pytest.raises(ConfigError, match=r"empty context or continuation"):
        score_questions(model, [ScoringRequest([1], [[]])], 100)


def test_the_boundary_is_that_of_the_harness(read: OpenModel) -> None:
    encode = read.tokenizer.encode
    first, rest = read.encode_pair("The river is ", "wide")
    assert first == [1, *encode("The river is")]
    assert first + rest == [1, *encode("The river is wide")]
    # A continuation that would merge with the last token of the context does not change it.
    text = "The river is wide"
    merged = [
        cut
        for cut in range(2, 16)
        if encode(text)[: len(encode(text[:cut]))] != encode(text[:cut]) and text[cut - 1] != " "
    ]
    for cut in merged:
        first, rest = read.encode_pair(text[:cut], text[cut:])
        assert first == [1, *encode(text[:cut])]
        assert rest == (encode(text)[len(first) - 1 :] or encode(text[cut:]))
    assert merged
    assert read.encode_pair("", "wide") == ([1], encode("wide"))
    assert read.encode_pair("  ", "wide") == ([1], encode("  wide"))
    # Control tokens in a text stay text.
    assert 2 not in read.encode_pair("a</s>", "<s>b</s>")[1]


def test_pairs_of_one_context_are_scored_like_any_other(read: OpenModel) -> None:
    pairs = [
        ("The river", " is wide."),
        ("The river", " is"),
        ("A road", " grows"),
        ("", "A short"),
    ]
    found = loglikelihood(read, pairs, 1000)
    for pair, (log_prob, greedy) in zip(pairs, found, strict=True):
        first, rest = read.encode_pair(*pair)
        expected = by_definition(read.decoder, first, rest)
        assert (log_prob, greedy) == (pytest.approx(expected[0], rel=1e-5), expected[1])


def test_a_rolling_log_likelihood_counts_every_token_once(read: OpenModel) -> None:
    text = "The river is wide and the road is long. " * 12
    ids, limit = read.context_ids(text), read.decoder.config.max_context
    assert len(ids) > 2 * limit
    expected = 0.0
    first = 1
    while first < len(ids):
        stop = min(len(ids), first + limit)
        expected += by_definition(read.decoder, ids[:first][-limit:], ids[first:stop])[0]
        first = stop
    # The last window sees as much as fits, as in lm-evaluation-harness.
    found = loglikelihood_rolling(read, [text, "", "A short note."], 300)
    assert found[0] == pytest.approx(expected, rel=1e-5)
    assert found[1] == 0.0
    ids = read.context_ids("A short note.")
    assert found[2] == pytest.approx(by_definition(read.decoder, ids[:1], ids[1:])[0], rel=1e-5)


def test_the_harness_form_scores_what_the_tokenizer_adds(read: OpenModel) -> None:
    text = "The river is wide."
    ids = [BEGIN_ID, *read.tokenizer.encode(text)]
    (expected,) = score_questions(read.decoder, [ScoringRequest([BEGIN_ID], [ids])], 300)[0]
    (found,) = loglikelihood_rolling(read, [text], 300, begin_twice=True)
    assert found == pytest.approx(expected.log_prob, rel=1e-6)
    assert found < loglikelihood_rolling(read, [text], 300)[0]
    without = replace(read, prefix=())
    assert loglikelihood_rolling(without, [text], 300, begin_twice=True) == loglikelihood_rolling(
        without, [text], 300
    )


def test_control_tokens_are_no_part_of_a_completion(
    read: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [BEGIN_ID, *read.tokenizer.encode("a"), BEGIN_ID, *read.tokenizer.encode("b"), END_ID]
    done = SimpleNamespace(request=0, tokens=ids, stopped=True)
    monkeypatch.setattr(scoring, "sample", lambda *_: [done])
    assert generate_until(read, [[BEGIN_ID]], (), 8) == ["ab"]


def test_completions_end_at_a_text_and_fit_into_the_context(read: OpenModel) -> None:
    prompt = read.context_ids("The river")
    (whole,) = generate_until(read, [prompt], [], 12)
    assert len(whole) > 3
    (cut,) = generate_until(read, [prompt], [whole[2]], 12)
    assert cut == whole[: whole.index(whole[2])]
    assert len(generate_until(read, [prompt * 100, prompt], [], 12)) == 2
    with pytest.raises(ConfigError, match=r"max_new_tokens = 160 leaves no room.*= 160"):
        generate_until(read, [prompt], [], 160)
