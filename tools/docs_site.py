"""Build the documentation site into a folder, without a network.

    python -m tools.docs_site OUT [--activations NAME ...] [--playground ARM]

The site is docs/ with an index, pages of the command line, the recipes and the modules made from the
code, and a gallery of all activations (or of those named, for a quick look). Links from the pages to files
outside docs/ are shown as text. Sphinx' warnings are errors. With --playground, the model of a trained arm
answers in a page; npm fetches its runtime.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stamm.activations import catalog
from stamm.base.errors import StammError
from stamm.base.files import write_text
from tools.docs_gallery import write_gallery
from tools.docs_playground import compose_page, write_model_page
from tools.docs_reference import command_pages, module_pages, recipe_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages of docs/ that are reference, or have a place of their own in the index.
PLACED = ("README", "run-folder", "glossary", "python", "evidence", "what_is_different")
EXPLANATION = ("activations", "chat_format", "comparisons")
NPM = ROOT / "build" / "npm"
WITH = '<a href="model/model.html">A trained model continues your text</a>, in onnxruntime-web.'
WITHOUT = "This site was built without the model: `make docs PLAYGROUND=1` adds it."
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)]*)\)")


def build(out: Path, names: Sequence[str], arm: Path | None = None) -> None:
    """Write the site into `out`, which is replaced.

    names   activations of the gallery
    arm     a trained model with an ONNX export, which answers in a page

    Raises  SystemExit with Sphinx' code when a page has an error; as `write_model_page`
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        assemble(source, names, arm)
        sphinx = (sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going")
        done = subprocess.run([*sphinx, str(source), f"{folder}/site"], check=False)
        if done.returncode:
            sys.exit(done.returncode)
        shutil.rmtree(Path(folder) / "site" / ".doctrees", ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(folder) / "site", out)


def assemble(source: Path, names: Sequence[str], arm: Path | None = None) -> None:
    """Write what Sphinx reads into `source`, a folder that does not exist yet."""
    if arm is not None:
        write_model_page(arm, source / "_extra" / "model", NPM)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("site"), dirs_exist_ok=True)
    shutil.copytree(DOCS / "site", source, dirs_exist_ok=True)
    for page in source.rglob("*.md"):
        depth = len(page.relative_to(source).parts) - 1
        write_text(page, _without_outer_links(page.read_text(encoding="utf-8"), depth))
    _write_pages(source / "commands", command_pages(), "Command line")
    _write_pages(source / "modules", module_pages(ROOT / "src" / "stamm"), "Modules")
    write_text(source / "recipes.md", recipe_page())
    extra = source / "_extra" / "gallery"
    extra.mkdir(parents=True)
    write_text(source / "gallery.md", write_gallery(names, extra))
    write_text(extra / "compose.html", compose_page())
    playground = (source / "playground.md").read_text(encoding="utf-8")
    write_text(
        source / "playground.md", playground.replace("{MODEL}", WITHOUT if arm is None else WITH)
    )
    _copy_reports(source)
    write_text(source / "index.md", _index(source))


def _write_pages(folder: Path, pages: dict[str, str], title: str) -> None:
    folder.mkdir()
    for name, text in pages.items():
        write_text(folder / name, text)
    write_text(folder / "index.md", f"# {title}\n\n{_toctree([Path(n).stem for n in pages])}")


def _toctree(entries: Sequence[str]) -> str:
    return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(entries) + "\n```\n"


def _index(source: Path) -> str:
    guides = sorted(page.stem for page in DOCS.glob("*.md"))
    how_to = [name for name in guides if name not in (*PLACED, *EXPLANATION)]
    for folder in ("alignment", "extending"):
        how_to += sorted(f"{folder}/{page.stem}" for page in (DOCS / folder).glob("*.md"))
    log = sorted((f"log/{page.stem}" for page in (DOCS / "log").glob("*.md")), reverse=True)
    evidence = ["evidence"] if (DOCS / "evidence.md").is_file() else []
    text = (source / "index.md").read_text(encoding="utf-8")
    return (
        text.replace("{HOWTO}", "\n".join(how_to))
        .replace("{EXPLANATION}", "\n".join(EXPLANATION))
        .replace("{MEASURED}", "\n".join([*evidence, *log]))
    )


def _without_outer_links(text: str, depth: int) -> str:
    """Links that leave docs/ are text, because the site holds docs/ only."""

    def replaced(link: re.Match[str]) -> str:
        inside = link[2].count("../") <= depth
        return link[0] if inside else f"{link[1]} (`{link[2].replace('../', '')}`)"

    return _LINK.sub(replaced, text)


def _copy_reports(source: Path) -> None:
    """HTML reports of the log, which its pages link to, keep their place."""
    for page in (DOCS / "log").rglob("*.html"):
        copy = source / "_extra" / page.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--activations", nargs="*", help="names of the gallery (default: all)")
    parser.add_argument("--playground", type=Path, metavar="ARM", help="runs/demo/arms/xielu")
    options = parser.parse_args()
    os.environ["COLUMNS"] = "100"
    names = options.activations or [spec.name for spec in catalog.ENTRIES]
    try:
        build(options.out, names, options.playground)
    except StammError as error:
        sys.exit(error.line())
    print(options.out / "index.html")


if __name__ == "__main__":
    main()
