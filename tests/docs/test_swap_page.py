"""The code of docs/swap.md runs, in the order of the page, and stays short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import transformers

from tests.conftest import ROOT, environment
from tests.unit.swap.small_models import build

PAGE = (ROOT / "docs" / "swap.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_is_short() -> None:
    assert len(BLOCKS) == 3
    assert sum(len(block.splitlines()) for block in BLOCKS) < 60


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    words = {
        word: index for index, word in enumerate(["<unk>", "</s>", "We", "the", "people", "of"])
    }
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    fast.save_pretrained(tmp_path / "model")
    build("LlamaForCausalLM").save_pretrained(tmp_path / "model")
    for block in BLOCKS:
        environment_of_block = environment()
        if "stamm" not in block.replace("trained", ""):
            block = "import sys\nsys.modules['stamm'] = None\n" + block
        done = subprocess.run(
            [sys.executable, "-c", block],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment_of_block,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "continued" / "modeling_stamm.py").is_file()
