"""Draw the picture of the README: gradients as they are stated, and the functions they integrate to.

Run      python tools/draw_picture.py docs/images/gradient_to_function.svg
Values come from the emitted kernels, at the initial parameters of the catalogue.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch

from stamm.activations.module import build_activation

NAMES = ("xielu", "xiprelu", "relu2", "silu")
LABELS = {"xielu": "xIELU", "xiprelu": "xIPReLU", "relu2": "ReLU²", "silu": "SiLU"}
COLOURS = {"xielu": "#0b62a4", "xiprelu": "#1b8a5a", "relu2": "#c8501e", "silu": "#7a5ea8"}


def main(path: Path) -> None:
    """Write the picture to `path`."""
    mpl.rcParams.update({"svg.hashsalt": "stamm", "svg.fonttype": "none", "font.size": 10})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
    x = torch.linspace(-4, 2, 601, dtype=torch.float64)
    for name in NAMES:
        module = build_activation(name, dtype=torch.float64)
        inputs = x.clone().requires_grad_()
        value = module(inputs)
        (slope,) = torch.autograd.grad(value.sum(), inputs)
        width = 2.4 if name == "xielu" else 1.4
        style = {"color": COLOURS[name], "linewidth": width, "label": LABELS[name]}
        axes[0].plot(x.numpy(), slope.numpy(), **style)
        axes[1].plot(x.numpy(), value.detach().numpy(), **style)
    for axis, title in zip(
        axes, ("the gradient you state", "the function you get: its integral"), strict=True
    ):
        axis.set_title(title, loc="left")
        axis.axhline(0, color="#888888", linewidth=0.6)
        axis.axvline(0, color="#888888", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("x")
    axes[0].set_ylim(-3, 4)
    axes[1].set_ylim(-1, 4)
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
