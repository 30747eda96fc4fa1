"""llama.cpp on the CPU, through its C interface in the prebuilt wheel xllamacpp.

The structures of that interface change between versions: only the fields that are set are described
here, and the defaults at their places are checked before the first call.

Letters: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.base.errors import ExportError, visible
from stamm.export.runtime_support import QUANTIZER_TYPES
from stamm.export.target import greedy_tokens

VERSION = "2026.10.11549"
_INSTALL = "Run: pip install 'stamm[gguf]'"
# (offset, default) of fields of llama_context_params and llama_model_params, include/llama.h
_CONTEXT = {
    "n_ctx": (0, 512),
    "n_batch": (4, 2048),
    "n_ubatch": (8, 512),
    "n_outputs_max_per_seq": (24, 1),
    "n_threads": (28, 4),
    "n_threads_batch": (32, 4),
    "flash_attn_type": (52, -1),
    "type_k": (104, 1),
    "type_v": (108, 1),
}
_MODEL = {"n_gpu_layers": (16, -1), "main_gpu": (32, 0), "bools": (72, 0x10000)}
_VOCAB_ONLY = 0x10001
_ERROR = 4  # GGML_LOG_LEVEL_ERROR


class _Params(ctypes.Structure):
    """A structure passed by value, longer than llama.cpp's: fields that are not described are kept."""

    _fields_ = (("words", ctypes.c_uint32 * 128),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


@dataclass(frozen=True)
class _Library:
    """llama.cpp's functions, and the last lines of its log that report errors."""

    call: Any
    errors: deque[str]
    callback: Any


class LlamaCpp:
    """A GGUF file that llama.cpp has loaded: float32 KV cache, no flash attention.

    context      longest sequence; 0 loads the vocabulary only

    Raises       ExportError when the wheel is missing or of another version, or the file does not load
    """

    def __init__(self, path: Path, context: int) -> None:
        self._context = context
        library = _library()
        self._c, self._errors = library.call, library.errors
        self._errors.clear()
        model = _default(self._c.llama_model_default_params, _MODEL, "llama_model_params")
        if not context:
            _set(model, _MODEL["bools"][0], _VOCAB_ONLY)
        self._model = self._c.llama_model_load_from_file(bytes(path), model)
        if not self._model:
            raise ExportError(f"llama.cpp cannot load {path}: {self._why()}")
        # At the end of a process this runs before Python drops the callback that llama.cpp logs to.
        weakref.finalize(self, self._c.llama_model_free, self._model)
        self._vocab = self._c.llama_model_get_vocab(self._model)
        self.vocab_size = int(self._c.llama_vocab_n_tokens(self._vocab))
        if not context:
            return
        settings = _default(self._c.llama_context_default_params, _CONTEXT, "llama_context_params")
        threads = torch.get_num_threads()
        for name, value in (
            ("n_ctx", context), ("n_batch", context), ("n_outputs_max_per_seq", context),
            ("n_threads", threads), ("n_threads_batch", threads),
            ("flash_attn_type", 0), ("type_k", 0), ("type_v", 0),
        ):  # fmt: skip
            _set(settings, _CONTEXT[name][0], value)
        self._ctx = self._c.llama_init_from_model(self._model, settings)
        if not self._ctx:
            raise ExportError(f"llama.cpp cannot run {path}: {self._why()}")
        weakref.finalize(self, self._c.llama_free, self._ctx)  # called before the model is freed

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Token ids of `text`, with the tokens that the file puts before a text.

        control   control tokens that the text spells out become their ids; no token is put before it
        """
        data = text.encode()
        size = len(data) + 8
        ids = (ctypes.c_int32 * size)()
        count = self._c.llama_tokenize(
            self._vocab, data, len(data), ids, size, not control, control
        )
        if count < 0:
            raise ExportError(f"llama.cpp cannot tokenize a text of {len(data)} bytes")
        return list(ids[:count])

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token, shape (B, T, V), float32."""
        rows = [torch.from_numpy(self._run(row, 0, every=True)) for row in tokens_BT.tolist()]
        return torch.stack(rows)

    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """At most `new_tokens` tokens after `prompt`, greedy, until a token that ends a text."""
        seen = 0

        def next_token(new: list[int]) -> int:
            nonlocal seen
            logits_TV = self._run(new, seen, every=False)
            seen += len(new)
            return int(logits_TV[-1].argmax())

        def is_end(token: int) -> bool:
            return bool(self._c.llama_vocab_is_eog(self._vocab, token))

        return greedy_tokens(prompt, new_tokens, next_token, is_end)

    def _run(self, tokens: list[int], start: int, *, every: bool) -> NDArray[np.float32]:
        """Logits of every new token or of the last one; `start` 0 empties the KV cache."""
        if start + len(tokens) > self._context:
            raise ExportError(f"a sequence is longer than the context of {self._context} tokens")
        if not start:
            self._c.llama_memory_clear(self._c.llama_get_memory(self._ctx), True)
        batch = self._c.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for index, token in enumerate(tokens):
                batch.token[index] = token
                batch.pos[index] = start + index
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = 0
                batch.logits[index] = every or index == len(tokens) - 1
            if self._c.llama_decode(self._ctx, batch):
                raise ExportError(f"llama.cpp cannot compute {len(tokens)} tokens: {self._why()}")
        finally:
            self._c.llama_batch_free(batch)
        shape = (len(tokens) if every else 1, self.vocab_size)
        return np.ctypeslib.as_array(self._c.llama_get_logits(self._ctx), shape).copy()

    def _why(self) -> str:
        return visible("; ".join(self._errors) or "no reason was logged", 400)


def quantize(weight_OD: Tensor, quantization: str) -> NDArray[np.uint8]:
    """The rows of a matrix in one of llama.cpp's K-quants, by its quantizer.

    Needs    rows of a multiple of 256 numbers
    Source   ggml/include/ggml.h, ggml_quantize_chunk
    """
    call = _library().call
    number = QUANTIZER_TYPES[quantization]
    rows, width = weight_OD.shape
    data = np.ascontiguousarray(weight_OD.detach().float().numpy())
    quantized = np.empty((rows, call.ggml_row_size(number, width)), np.uint8)
    call.ggml_quantize_chunk(number, data.ctypes.data, quantized.ctypes.data, 0, rows, width, None)
    return quantized


def _default(make: Any, fields: dict[str, tuple[int, int]], name: str) -> _Params:
    """The default parameters, after a check of those that are set here."""
    made: _Params = make()
    for field, (offset, expected) in fields.items():
        if struct.unpack_from("<i", made, offset)[0] != expected:
            raise ExportError(
                f"{name} of the installed xllamacpp is laid out differently from {VERSION}: {field}",
                fix=f"Run: pip install xllamacpp=={VERSION}",
            )
    return made


def _set(params: _Params, offset: int, value: int) -> None:
    struct.pack_into("<i", params, offset, value)


def ggml_functions() -> Any:
    """The C functions of ggml, which are in the same library.

    Raises   ExportError when llama.cpp is not installed
    """
    return _library().call


@functools.cache
def _library() -> _Library:
    spec = importlib.util.find_spec("xllamacpp")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in places for file in sorted(Path(folder).glob("xllamacpp*.so"))]
    if not files:
        raise ExportError("llama.cpp is not installed: the package xllamacpp", fix=_INSTALL)
    call = ctypes.CDLL(str(files[0]))
    i32, i64, pointer, flag = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool
    for name, result, arguments in (
        ("llama_model_default_params", _Params, ()),
        ("llama_context_default_params", _Params, ()),
        ("llama_model_load_from_file", pointer, (ctypes.c_char_p, _Params)),
        ("llama_init_from_model", pointer, (pointer, _Params)),
        ("llama_model_free", None, (pointer,)),
        ("llama_free", None, (pointer,)),
        ("llama_model_get_vocab", pointer, (pointer,)),
        ("llama_vocab_n_tokens", i32, (pointer,)),
        ("llama_vocab_is_eog", flag, (pointer, i32)),
        ("llama_tokenize", i32, (pointer, ctypes.c_char_p, i32, pointer, i32, flag, flag)),
        ("llama_get_memory", pointer, (pointer,)),
        ("llama_memory_clear", None, (pointer, flag)),
        ("llama_batch_init", _Batch, (i32, i32, i32)),
        ("llama_batch_free", None, (_Batch,)),
        ("llama_decode", i32, (pointer, _Batch)),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), (pointer,)),
        ("ggml_row_size", ctypes.c_size_t, (i32, i64)),
        ("ggml_quantize_chunk", ctypes.c_size_t, (i32, pointer, pointer, i64, i64, i64, pointer)),
    ):
        function = getattr(call, name)
        function.restype, function.argtypes = result, arguments
    errors: deque[str] = deque(maxlen=3)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)

    def log(level: int, text: bytes, _: object) -> None:
        if level == _ERROR:
            errors.append(text.decode(errors="replace").strip())

    callback = kind(log)
    call.llama_log_set(callback, None)
    call.llama_backend_init()
    return _Library(call, errors, callback)
