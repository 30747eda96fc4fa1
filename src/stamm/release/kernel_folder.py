"""An activation as a folder in the layout of the Hugging Face kernels hub, without compiled code.

FOLDER/build/torch-cpu/ holds a Python package that needs torch alone: the derived formula with its
derived slopes, and a layer for `kernelize`. FOLDER/build/torch-cuda/ holds the fused Triton kernels,
too; what these cannot compute (another device, float64, an old GPU), PyTorch computes by the same
formula. Values are computed in float32, sums of parameter gradients in float64.

Source   huggingface/kernels, docs/source/kernel-requirements.md of 2026-08-20: noarch variants, `id`
         a name of Python, `digest`, layers with `forward` alone, the folder of older readers
Checked  tests/unit/release/test_kernel_folder.py
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from stamm.activations.codegen.kernel_lookup import kernel_text
from stamm.activations.fused import gpu
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import atomic_folder, write_json, write_text
from stamm.models.remote_code import definitions, effective_lines
from stamm.release.kernel_triton import triton_files
from stamm.version import VERSION

VARIANTS = {"torch-cpu": "cpu", "torch-cuda": "cuda"}
_FORMULA = '''"""{title}: the derived formula and its derived slopes, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

{definitions}
'''
_MODULE = '''"""{title}.

f(x) with its derived slopes{how}.

Written by stamm {version}; content hash of its spec: {content_hash}.
"""

from __future__ import annotations

{warnings}import torch
import torch.nn.functional as F
from torch import Tensor, nn

{fused}from ._formula import slopes, value

__all__ = ["{name}", "implementation", "layers"]


{implementation}


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x, *parameters)
        {fused_forward}return value(_wide(x), tuple(map(_wide, parameters))).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        {fused_backward}found = slopes(_wide(x), tuple(map(_wide, parameters)))
        wide = _wide(gradient)
        into = (wide * found[0]).to(x.dtype)
        return (into, *_of_each([(wide * s).sum(dtype=torch.float64) for s in found[1:]], parameters))


def _of_each(sums, parameters):
    left = iter(sums)
    return [
        next(left).to(p.dtype).reshape(p.shape) if trained else None
        for p, trained in zip(parameters, {trained})
    ]


def _wide(x):
    return x if x.dtype == torch.float64 else x.float()


def {name}(x: Tensor, {arguments}) -> Tensor:
    """f of every element, in the dtype of x. Parameters: effective values of one number each."""
    given = [p if isinstance(p, Tensor) else _number(p, x) for p in ({names},)]
    if any(p.numel() != 1 for p in given):
        raise ValueError(f"parameters hold one number each: {{[tuple(p.shape) for p in given]}}")
    return _Function.apply(x, *given)


def _number(value, x):
    return torch.full((), value, dtype=torch.float64, device=x.device)


def _effective(self):
{effective}


def _held(module, name, default):
    found = getattr(module, name, default)
    return found.float() if isinstance(found, Tensor) else found


class layers:
    """Layers for `kernelize`: they take the parameters of the module that they replace."""

    class {layer}(nn.Module):
        """f(x); trainable parameters are stored before their bijection, as in checkpoints."""

        def forward(self, x: Tensor) -> Tensor:
            """f of every element."""
            return {name}(x, *_effective(self))
'''
_SLOTS = {
    "cpu": {
        "how": ", in PyTorch",
        "warnings": "",
        "fused": "",
        "implementation": '''def implementation(x: Tensor) -> str:
    """What computes x: always "torch" in this variant."""
    return "torch"''',
        "fused_forward": "",
        "fused_backward": "",
    },
    "cuda": {
        "how": """, by fused Triton kernels or in PyTorch.

The fused kernels compute bfloat16, float16 and float32 on NVIDIA GPUs of compute capability 8.0 or
later, forward and backward with the gradients of the parameters. Everything else (a tensor on
another device, float64, a second derivative) is computed by the same formula in PyTorch.
`implementation(x)` reports which of the two it is; a tensor on a GPU that they cannot compute causes a
warning""",
        "warnings": "import warnings\n\n",
        "fused": "from . import _fused\n",
        "implementation": '''def implementation(x: Tensor) -> str:
    """What computes x: "triton", or "torch" by the same formula."""
    return "torch" if _fused.reason(x) else "triton"


def _is_fused(x):
    reason = _fused.reason(x)
    if reason and x.is_cuda and x.numel():
        warnings.warn(f"{name} is computed in PyTorch: {{reason}}", stacklevel=4)
    return reason is None''',
        "fused_forward": """if _is_fused(x):
            return _fused.forward(x, parameters)
        """,
        "fused_backward": """if _fused.reason(x) is None and not torch.is_grad_enabled():
            into, sums = _fused.backward(gradient, x, parameters)
            return (into, *_of_each(sums, parameters))
        """,
    },
}
_OLDER = '''"""The package one folder above, for readers of the older layout of the kernels hub."""

import importlib.util
import sys
from pathlib import Path

_NAME = "{id}"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).parent.parent / "__init__.py")
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_NAME] = _module
    _spec.loader.exec_module(_module)
__all__ = sys.modules[_NAME].__all__
globals().update({{name: getattr(sys.modules[_NAME], name) for name in __all__}})
'''
_README = """---
license: apache-2.0
library_name: kernels
tags:
- kernel
---

# {name}

{title}. Source: {source}. Derived by stamm {version} from its gradient: f, its slope, and the slope in
each trainable parameter.

| variant | what computes |
| --- | --- |
| `torch-cuda` | fused Triton kernels for bfloat16, float16 and float32 on NVIDIA GPUs of compute capability {needed} or later; PyTorch by the same formula for everything else, with a warning for tensors on a GPU |
| `torch-cpu` | PyTorch |

```python
from pathlib import Path

from kernels import get_local_kernel

kernel = get_local_kernel(Path("{name}"))
kernel.{name}  # f(x, parameters)
kernel.implementation  # of a tensor: "triton" or "torch"
```
"""


def write_kernel_folder(spec: Spec, out: Path) -> list[Path]:
    """Write the folder of `spec` to `out`, which must not exist or be empty; the files.

    Raises   RunError when `out` has files; ConfigError for an activation of two inputs, or without
             parameters.
    """
    _check(spec)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists", fix="Choose another folder with --out")
    with atomic_folder(out) as part:
        for path, text in kernel_files(spec).items():
            write_text(part / path, text)
        for variant, backend in VARIANTS.items():
            metadata = _metadata(spec, part, variant, backend)
            write_json(part / "build" / variant / "metadata.json", metadata)
    return sorted(path for path in out.rglob("*") if path.is_file())


def kernel_files(spec: Spec) -> dict[str, str]:
    """The text of each file but `metadata.json`, by its path in the folder.

    Raises   ConfigError for an activation of two inputs, or without parameters.
    """
    _check(spec)
    formula = _FORMULA.format(
        title=spec.title,
        definitions="\n\n\n".join(
            definitions(kernel_text(spec), ("Parameters", "value", "slopes"))
        ),
    )
    card = {"name": spec.name, "title": spec.title, "source": spec.source}
    files = {
        "README.md": _README.format(
            **card, version=VERSION, needed=".".join(map(str, gpu.CAPABILITY))
        )
    }
    for variant, backend in VARIANTS.items():
        folder = f"build/{variant}"
        files[f"{folder}/__init__.py"] = _module(spec, backend)
        files[f"{folder}/_formula.py"] = formula
        files[f"{folder}/{spec.name}/__init__.py"] = _OLDER.format(id=_identifier(spec, backend))
        if backend == "cuda":
            files |= {f"{folder}/{name}": text for name, text in triton_files(spec).items()}
    return files


def _check(spec: Spec) -> None:
    if isinstance(spec.arity, Gated) or not spec.parameters:
        raise ConfigError(
            f"{spec.name} has {'two inputs' if spec.parameters else 'no parameters'}",
            fix="A kernel folder holds a function of one input with parameters, such as xielu",
        )


def _module(spec: Spec, backend: str) -> str:
    slots = {key: text.replace("{name}", spec.name).replace("{{reason}}", "{reason}")
             for key, text in _SLOTS[backend].items()}  # fmt: skip
    return _MODULE.format(
        title=spec.title,
        version=VERSION,
        content_hash=spec.content_hash,
        trained=[p.trainable for p in spec.parameters],
        name=spec.name,
        layer=spec.name.upper(),
        arguments=", ".join(
            f"{p.name}: Tensor | float" + ("" if p.trainable else f" = {float(p.initial)!r}")
            for p in spec.parameters
        ),
        names=", ".join(p.name for p in spec.parameters),
        effective="\n".join(f"    {line}" for line in effective_lines(spec, fixed="_held")),
        **slots,
    )


def _identifier(spec: Spec, backend: str) -> str:
    """Name under which `kernels` imports a variant: a name of Python, unique for its formula."""
    return f"_{spec.name}_{backend}_{spec.content_hash[:16]}"


def _metadata(spec: Spec, root: Path, variant: str, backend: str) -> dict[str, object]:
    folder = root / "build" / variant
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "id": _identifier(spec, backend),
        "name": spec.name,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {path.relative_to(folder).as_posix(): _hash(path) for path in files},
        },
    }


def _hash(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
