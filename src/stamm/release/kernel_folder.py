"""An activation as a folder in the layout of the Hugging Face kernels hub, without compiled code.

FOLDER/build/VARIANT/ holds a Python package that needs torch alone: the derived formula with its
derived slopes, and a layer for `kernelize`. Values are computed in float32, sums of parameter
gradients in float64. The fused C++ and Triton kernels are not part of it.

Source   `kernels` 0.17.2: noarch variants, metadata.json; `get_local_kernel(Path(FOLDER))` loads it
Checked  tests/unit/release/test_kernel_folder.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import stamm
from stamm.activations.codegen.kernel_lookup import kernel_text
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import write_json, write_text
from stamm.models.remote_code import definitions, effective_lines

VARIANTS = {"torch-cpu": "cpu", "torch-cuda": "cuda"}
_MODULE = '''"""{title}: f(x) with its derived slopes.

Written by stamm {version}; content hash of its spec: {content_hash}.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

{definitions}


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x, *parameters)
        return value(_wide(x), tuple(map(_wide, parameters))).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        found = slopes(_wide(x), tuple(map(_wide, parameters)))
        wide = _wide(gradient)
        sums = iter([(wide * slope).sum(dtype=torch.float64) for slope in found[1:]])
        of = [
            next(sums).to(p.dtype).reshape(p.shape) if trained else None
            for p, trained in zip(parameters, {trained})
        ]
        return ((wide * found[0]).to(x.dtype), *of)


def _wide(x):
    return x if x.dtype == torch.float64 else x.float()


def {name}(x: Tensor, {arguments}) -> Tensor:
    """f of every element, in the dtype of x. Parameters: effective values of one number each."""
    given = [p if isinstance(p, Tensor) else x.new_tensor(p, dtype=torch.float64) for p in ({names},)]
    return _Function.apply(x, *given)


class layers:
    """Layers for `kernelize`: they take the parameters of the module that they replace."""

    class {layer}(nn.Module):
        """f(x); trainable parameters are stored before their bijection, as in checkpoints."""

        def _effective(self):
{effective}

        def forward(self, x: Tensor) -> Tensor:
            """f of every element."""
            return {name}(x, *self._effective())
'''
_README = """---
license: apache-2.0
library_name: kernels
tags:
- kernel
---

# {name}

{title}. Source: {source}. Pure PyTorch, derived by stamm {version} from its gradient.

```python
from pathlib import Path

from kernels import get_local_kernel

{name} = get_local_kernel(Path("{name}")).{name}
```
"""


def write_kernel_folder(spec: Spec, out: Path) -> list[Path]:
    """Write the folder of `spec` to `out`, which must not exist or be empty; the files.

    Raises   RunError when `out` has files; ConfigError for an activation of two inputs, or without
             parameters.
    """
    if isinstance(spec.arity, Gated) or not spec.parameters:
        raise ConfigError(
            f"{spec.name} has {'two inputs' if spec.parameters else 'no parameters'}",
            fix="A kernel folder holds a function of one input with parameters, such as xielu",
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists", fix="Choose another folder with --out")
    names = [p.name for p in spec.parameters]
    module = _MODULE.format(
        title=spec.title,
        version=stamm.__version__,
        content_hash=spec.content_hash,
        definitions="\n\n\n".join(
            definitions(kernel_text(spec), ("Parameters", "value", "slopes"))
        ),
        trained=[p.trainable for p in spec.parameters],
        name=spec.name,
        layer=spec.name.upper(),
        arguments=", ".join(
            f"{p.name}: Tensor | float" + ("" if p.trainable else f" = {float(p.initial)!r}")
            for p in spec.parameters
        ),
        names=", ".join(names),
        effective="\n".join(f"            {line}" for line in effective_lines(spec)),
    )
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for variant, backend in VARIANTS.items():
        write_text(part / "build" / variant / "__init__.py", module)
        metadata = {
            "id": f"{spec.name}-{spec.content_hash[:16]}-{backend}",
            "name": spec.name,
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        write_json(part / "build" / variant / "metadata.json", metadata)
    card = {"name": spec.name, "title": spec.title, "source": spec.source}
    write_text(part / "README.md", _README.format(**card, version=stamm.__version__))
    part.replace(out)
    return sorted(path for path in out.rglob("*") if path.is_file())
