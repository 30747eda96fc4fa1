"""Which extra of the package brings a library that is not installed.

`pip install stamm` brings what an activation, a derivation and a loss need.
"""

from __future__ import annotations

from stamm.base.errors import RunError

EXTRA_OF = {
    "tokenizers": "train", "tiktoken": "train", "pyarrow": "train", "zstandard": "train",
    "jinja2": "train", "markupsafe": "train", "matplotlib": "train",
    "resiliparse": "corpus", "fastwarc": "corpus", "httpcore2": "corpus", "duckdb": "corpus",
    "fasttext": "train", "phonenumbers": "corpus", "cachetools": "corpus", "idna": "corpus",
    "pycld2": "train",
    "jsonschema": "align", "referencing": "align", "transformers": "align",
    "huggingface_hub": "export", "yaml": "lm-eval", "cryptography": "sign",
}  # fmt: skip
_IN_ALL = ("train", "corpus", "align", "export")


def missing_library(error: ModuleNotFoundError) -> RunError | None:
    """The error that names the extra to install; None for a module of stamm's own, which is a fault."""
    library = (error.name or "").partition(".")[0]
    if library in ("", "stamm"):
        return None
    extra = EXTRA_OF.get(library)
    fix = f"pip install 'stamm[{extra}]'" if extra else ""
    if extra in _IN_ALL:
        fix += ", or 'stamm[all]' for everything"
    return RunError(
        f"this needs {library}, which is not installed",
        fix=f"Run: {fix or f'pip install {library}'}",
    )
