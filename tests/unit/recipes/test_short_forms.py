"""A value given in place of a class or of a list of classes: the error offers the assignment that works."""

from __future__ import annotations

import pytest

from stamm.base.config import override
from stamm.base.errors import ConfigError
from stamm.recipes import catalog as recipes


@pytest.mark.parametrize(
    ("recipe", "given", "offered"),
    [
        ("demo", "pretrain.batch=4", "Write pretrain.batch.0.size=4"),
        ("demo", "pretrain.batch=[4,8]", "Write pretrain.batch.0.size=4"),
        ("demo", "pretrain.batch.0=4", "Write pretrain.batch.0.size=4"),
        ("align.sft", "train.batch=4", "Write train.batch.0.size=4"),
        ("align.sft", "mixture=a.jsonl", "Write mixture.0.data=a.jsonl"),
        ("align.sft", "train.lora=8", "Write train.lora=Lora train.lora.rank=8"),
        ("demo", "arms.0.ffn=256", "or write arms.0.ffn.width=256"),
        ("demo", "arms.0.ffn=swiglu", "or write arms.0.ffn.activation=swiglu"),
        ("demo", "corpus=mine.jsonl", "Write corpus.inputs=mine.jsonl"),
        ("demo", "evaluate=held_out", "Write evaluate.tasks=held_out"),
        ("demo", "export=gguf", "Write export.target=gguf"),
        ("demo", "pretrain.engine=cpu", "Write pretrain.engine.device=cpu"),
        ("demo", "pretrain.goldfish=4", "Write pretrain.goldfish.k=4"),
    ],
)
def test_a_value_for_a_class_is_refused_with_the_assignment_that_works(
    recipe: str, given: str, offered: str
) -> None:
    config = recipes.get(recipe).build()
    with pytest.raises(ConfigError) as caught:
        override(config, [given])
    assert offered in caught.value.line()
    override(config, offered.partition("rite ")[2].split())  # and it works


def test_a_value_for_a_class_that_fits_no_field_lists_the_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        override(recipes.get("demo").build(), ["pretrain.engine.parallel=2"])
    assert "Set pretrain.engine.parallel.data, pretrain.engine.parallel.context" in str(
        caught.value
    )
    with pytest.raises(ConfigError) as caught:  # a misspelt class keeps its own hint
        override(recipes.get("demo").build(), ["pretrain.optimizer=adam"])
    assert "Did you mean 'AdamW'?" in str(caught.value) and "write" not in str(caught.value)
