"""Export target `onnx`: a graph with a KV cache, checked in ONNX Runtime on the CPU.

Letters: B sequences, T new tokens, P cached tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.activations.board.onnx_library import onnxruntime_library
from stamm.base.errors import ExportError
from stamm.base.files import read_json
from stamm.export.onnx_graph import DATA, MODEL, cache_names, write_onnx
from stamm.export.runtime_support import OnnxSupport
from stamm.export.target import CardText, LoadedExport, TargetPlan, greedy_tokens
from stamm.export.transformers_target import write_chat_files, write_companions
from stamm.models.decoder import Decoder
from stamm.models.hf_files import CONFIG

GENERATION = "generation_config.json"
_USAGE = """```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
tokens = np.array([[1]])  # <s>, and the ids of a text by tokenizer.json
given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
given["position_ids"] = np.arange(tokens.shape[1])[None]
for cache in session.get_inputs()[3:]:  # past_key_values.LAYER.key and .value: empty at the start
    given[cache.name] = np.zeros((1, cache.shape[1], 0, cache.shape[3]), np.float32)
logits, *caches = session.run(None, given)
```"""


class OnnxTarget(OnnxSupport):
    """model.onnx with its weights, tokenizer and configurations."""

    def plan(self, model: Decoder) -> TargetPlan:
        """The file of the weights, each of which is copied."""
        size = sum(4 * parameter.numel() for parameter in model.parameters())
        return TargetPlan(files={DATA: size}, engine=size, converted=True)

    def write(self, folder: Path, model: Decoder, tokenizer: Path) -> None:
        """Write the graph, and the configurations and tokenizer as for transformers.

        Raises   ExportError without the package onnx.
        """
        write_onnx(folder, model)
        write_companions(folder, model.config, tokenizer)

    def write_chat(self, folder: Path, tokenizer: Path, max_context: int) -> None:
        """Add the chat format, as `write_chat_files`."""
        write_chat_files(folder, tokenizer, max_context, self._options.chat_format)

    def load(self, folder: Path) -> LoadedExport:
        """The folder in ONNX Runtime.

        Raises   ExportError when the package is missing or refuses the graph.
        """
        engine = OnnxRuntime(folder)
        return LoadedExport(
            description=f"onnxruntime {engine.version}",
            logits=engine.logits,
            generate=engine.generate,
            card=CardText(library="onnxruntime", usage=_USAGE),
        )


class OnnxRuntime:
    """A graph of `write_onnx` in ONNX Runtime, with torch's number of threads.

    Raises   ExportError when the package is missing or refuses the graph.
    """

    def __init__(self, folder: Path) -> None:
        onnxruntime = onnxruntime_library()
        self.version = str(onnxruntime.__version__)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session = onnxruntime.InferenceSession(
                folder / MODEL, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors share no narrower class
            raise ExportError(f"ONNX Runtime cannot load {folder / MODEL}: {error}") from None
        config = read_json(folder / CONFIG)
        self._names = [pair for n in range(config["num_hidden_layers"]) for pair in cache_names(n)]
        self._empty = np.zeros(
            (1, config["num_key_value_heads"], 0, config["head_dim"]), np.float32
        )
        ends = read_json(folder / GENERATION)["eos_token_id"]
        self._ends = set(ends if isinstance(ends, list) else [ends])

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token, shape (B, T, V), float32; an empty cache."""
        caches = [np.repeat(self._empty, len(tokens_BT), axis=0)] * len(self._names)
        return torch.from_numpy(self._run(tokens_BT.numpy(), caches)[0])

    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """At most `new_tokens` tokens after `prompt`, greedy, with the cache."""
        caches: list[Any] = [self._empty] * len(self._names)

        def next_token(new: list[int]) -> int:
            logits, *caches[:] = self._run(np.array([new], np.int64), caches)
            return int(logits[0, -1].argmax())

        return greedy_tokens(prompt, new_tokens, next_token, self._ends.__contains__)

    def _run(self, tokens_BT: NDArray[np.int64], caches: Sequence[Any]) -> list[NDArray[Any]]:
        rows, new = tokens_BT.shape
        past = caches[0].shape[2]
        given = {
            "input_ids": tokens_BT,
            "attention_mask": np.ones((rows, past + new), np.int64),
            "position_ids": np.tile(np.arange(past, past + new), (rows, 1)),
            **{name: kept for (name, _), kept in zip(self._names, caches, strict=True)},
        }
        outputs: list[NDArray[Any]] = self._session.run(None, given)
        return outputs
