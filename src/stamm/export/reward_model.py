"""Export of a reward model: a sequence classifier of transformers with one label, the reward.

transformers reads the classifier at the last token that is not padding; the reward belongs at the
token that ends the answer, so that a rated text must end with it. ChatML writes a line break after it.

Checked  tests/unit/export/test_reward_export.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.base.files import read_json, write_json
from stamm.export.config import ExportConfig
from stamm.export.parity import random_tokens
from stamm.export.records import LogitDifference
from stamm.export.target import CardText
from stamm.models.decoder import Decoder
from stamm.models.hf_architecture import hub_class
from stamm.models.hf_files import CONFIG
from stamm.models.hub import hub_state, hub_version, quiet_transformers
from stamm.models.weight_shards import write_weights

_CLASSES = {
    "arcee": "ArceeForSequenceClassification",
    "llama": "LlamaForSequenceClassification",
    "qwen2": "Qwen2ForSequenceClassification",
    "qwen3": "Qwen3ForSequenceClassification",
}
_USAGE = """```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder)
chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
ids = tokenizer.apply_chat_template(chat, return_dict=False)
# The ids must end with the token that ends the answer: the reward is read there.
end = tokenizer.convert_tokens_to_ids("END")
while ids[-1] != end:
    ids.pop()
print(model(torch.tensor([ids])).logits[0, 0])
```"""
_CHAT = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"})


def sequence_classifier(decoder: Decoder) -> str:
    """The class of transformers that holds a decoder with a reward head.

    Raises   ExportError where there is none.
    """
    kind = hub_class(decoder.config)
    if kind.own_code or kind.model_type not in _CLASSES:
        raise ExportError(
            f"the model is a reward model, and transformers has no sequence classifier of the class "
            f"{kind.own_code or kind.architecture}",
            fix="Score answers with `stamm score reward=ModelReward`, or train a reward model from a "
            "Llama, Qwen2, Qwen3 or Arcee architecture",
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
    config: ExportConfig,
    folder: Path,
    decoder: Decoder,
    head_D: Tensor,
    ends: Mapping[int, str],
    chat: Sequence[int],
) -> list[LogitDifference]:
    """The differences of the rewards of random tokens and of a chat, by transformers and by us.

    ends   ids and texts of the tokens that end an answer
    chat   from `rendered_chat`

    Raises   ExportError when transformers cannot load the folder unchanged, or would take the end of
             an answer for padding
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
        problems = {name: sorted(map(str, names)) for name, names in report.items() if names}
        if problems:
            raise ExportError(f"transformers does not load {folder} unchanged: {problems}")
        pad = model.config.pad_token_id
        if pad in ends:
            raise ExportError(
                f"the padding token {ends[pad]!r} also ends an answer, and transformers reads the "
                "reward before padding",
                fix="Set another pad_token in the tokenizer's tokenizer_config.json",
            )
        length = min(config.parity_tokens, decoder.config.max_context)
        rows = random_tokens(decoder.config.vocab_size, config.parity_rows, length, config.seed)
        tokens_BT = torch.stack(rows)
        # Padding at the end would be skipped.
        tokens_BT[tokens_BT == pad] = (
            (pad + 1) % decoder.config.vocab_size if pad is not None else 0
        )
        texts = {"rewards of random tokens": tokens_BT}
        if 0 < len(chat) <= decoder.config.max_context:
            texts["reward of a chat"] = torch.tensor([list(chat)])
        theirs = [model.eval()(tokens, use_cache=False).logits[:, 0] for tokens in texts.values()]
    ours = [decoder.model(tokens)[:, -1].float() @ head_D for tokens in texts.values()]
    largest = max(float(rewards.abs().max()) for rewards in ours)  # one reward may be near 0
    differences = []
    for text, ours_B, theirs_B in zip(texts, ours, theirs, strict=True):
        apart = float((ours_B - theirs_B).abs().max())
        differences.append(
            LogitDifference(
                text=text,
                sequences=len(ours_B),
                positions=len(ours_B),
                max_absolute=apart,
                max_relative=apart / largest if largest else apart,
                argmax_agreement=float(ours_B.argmax() == theirs_B.argmax()),
            )
        )
    return differences


def rendered_chat(folder: Path, ends: Mapping[int, str]) -> list[int]:
    """Ids of a chat by the folder's template, up to the end of the answer; [] without a template.

    Raises   ExportError when the template writes none of `ends`
    """
    with quiet_transformers() as transformers:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            if not tokenizer.chat_template:
                return []
            ids: list[int] = tokenizer.apply_chat_template(list(_CHAT), return_dict=False)
        except Exception as error:  # as above
            raise ExportError(
                f"transformers cannot load {folder}: {type(error).__name__}: {error}"
            ) from error
    places = [position for position, token in enumerate(ids) if token in ends]
    if not places:
        raise ExportError(
            f"the chat template of {folder} ends no answer: it writes none of "
            f"{', '.join(map(repr, ends.values()))}",
            fix="Use the tokenizer folder that the reward model was trained with",
        )
    return ids[: places[-1] + 1]


def reward_card(
    architecture: str, ends: Mapping[int, str], chat: Sequence[int]
) -> tuple[str, CardText]:
    """Description for the parity report, and the target's part of the model card."""
    end = ends[chat[-1]] if chat else next(iter(ends.values()), "")
    usage = _USAGE.replace("END", end)
    card = CardText(library="transformers", architecture=architecture, usage=usage)
    return f"transformers {hub_version()} {architecture}", card
