"""Export of a reward model: a sequence classifier of transformers with one label, the reward.

transformers reads the classifier at the last token that is not padding; the reward belongs at the
answer's stop token, so that a rated text ends with it, as its chat template writes it.

Checked  tests/unit/export/test_reward_export.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.base.files import read_json, write_json
from stamm.export.config import ExportConfig
from stamm.export.parity import random_tokens
from stamm.export.target import CardText
from stamm.models.decoder import Decoder
from stamm.models.hf_architecture import hub_class
from stamm.models.hub import CONFIG, hub_state, hub_version, quiet_transformers
from stamm.models.weight_shards import write_weights
from stamm.runs.schemas.export import LogitDifference

TARGET = "transformers"
_CLASSES = {
    "arcee": "ArceeForSequenceClassification",
    "llama": "LlamaForSequenceClassification",
    "qwen3": "Qwen3ForSequenceClassification",
}
_USAGE = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder)
chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
# The text must end with the token that ends an answer: its reward is read there.
tokens = tokenizer.apply_chat_template(chat, return_dict=True, return_tensors="pt")
print(model(**tokens).logits[0, 0])
```"""


def reward_class(decoder: Decoder, target: str) -> str:
    """The class of transformers that holds a decoder with a reward head.

    Raises   ExportError where there is none, and for another target
    """
    if target != TARGET:
        raise ExportError(
            f"the model is a reward model, and the target {target} has no place for its head",
            fix=f"Set target={TARGET}",
        )
    kind = hub_class(decoder.config)
    if kind.own_code or kind.model_type not in _CLASSES:
        raise ExportError(
            f"the model is a reward model, and transformers has no sequence classifier of the class "
            f"{kind.own_code or kind.architecture}",
            fix="Score answers with `stamm score reward=ModelReward`, or train a reward model from a "
            "Llama, Qwen3 or Arcee architecture",
        )
    return _CLASSES[kind.model_type]


def add_head(
    folder: Path, architecture: str, decoder: Decoder, head_D: Tensor, max_shard_bytes: int
) -> None:
    """Make the exported decoder in `folder` a sequence classifier with the reward as its one label."""
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    state = {**hub_state(decoder), "score.weight": head_D[None]}
    state.pop("lm_head.weight", None)
    write_weights(folder, state, dict.fromkeys(state, torch.float32), max_shard_bytes)
    label = {"id2label": {"0": "reward"}, "label2id": {"reward": 0}, "num_labels": 1}
    config = {**read_json(folder / CONFIG), "architectures": [architecture], **label}
    write_json(folder / CONFIG, config)
    (folder / "generation_config.json").unlink()


@torch.no_grad()
def reward_difference(
    config: ExportConfig, folder: Path, decoder: Decoder, head_D: Tensor
) -> LogitDifference:
    """The difference of the rewards of random tokens, by transformers and by us.

    Raises   ExportError when transformers cannot load the folder unchanged
    """
    with quiet_transformers() as transformers:
        try:
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # its loaders raise anything from KeyError to RuntimeError
            raise ExportError(
                f"transformers cannot load {folder}: {type(error).__name__}: {error}"
            ) from error
        problems = {name: sorted(map(str, found)) for name, found in report.items() if found}
        if problems:
            raise ExportError(f"transformers does not load {folder} unchanged: {problems}")
        length = min(config.parity_tokens, decoder.config.max_context)
        rows = random_tokens(decoder.config.vocab_size, config.parity_rows, length, config.seed)
        tokens_BT = torch.stack(rows)
        # Padding at the end would be passed over.
        tokens_BT[tokens_BT == model.config.pad_token_id] += 1
        theirs_B = model.eval()(tokens_BT, use_cache=False).logits[:, 0]
    ours_B = decoder.model(tokens_BT)[:, -1].float() @ head_D
    apart, largest = float((ours_B - theirs_B).abs().max()), float(ours_B.abs().max())
    return LogitDifference(
        text="rewards of random tokens",
        sequences=len(rows),
        positions=len(rows),
        max_absolute=apart,
        max_relative=apart / largest if largest else apart,
        argmax_agreement=float(ours_B.argmax() == theirs_B.argmax()),
    )


def reward_card(architecture: str) -> tuple[str, CardText]:
    """Description for the parity report, and the target's part of the model card."""
    card = CardText(library="transformers", architecture=architecture, usage=_USAGE)
    return f"transformers {hub_version()} {architecture}", card
