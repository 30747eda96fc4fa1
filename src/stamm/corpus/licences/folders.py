"""The licence of each file of a repository: from its SPDX lines, else from rules or its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stamm.corpus.licences.expression import join_expressions
from stamm.corpus.licences.repository import licence_terms, repository_licence, spdx_line_licence
from stamm.corpus.licences.reuse import RULE_FILES, PathRule, path_rules

_MOST_TERMS = 8_000_000  # characters of terms that are read: 10 to 16 s of work
_NOT_READ = "not read"  # matches no licence, so it gives unknown terms
_SIDECAR = ".license"  # REUSE: picture.png.license has the licence of picture.png


class FolderLicences:
    """Licences of the folders of a repository, from its licence files, manifests and REUSE rules.

    files   paths and texts, consumed one by one; only text that states terms is kept

    The SPDX lines of a file, and of FILE.license beside it, apply to that file alone. Else the
    nearest REUSE.toml or .reuse/dep5 with a rule for its path holds, else the nearest folder above
    it with terms: vendored code in a folder with its own licence never gets that of the whole.
    Edge     a rule with `precedence` override or aggregate, or of dep5, holds together with the file's
             own lines (AND): override may drop a licence that the file states.
             Beyond 8 million characters of terms those of a folder are LicenseRef-Unknown-Terms.
    Checked  tests/unit/corpus/licences/test_folders.py
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        terms: dict[str, dict[str, str]] = {}
        self._rules: dict[str, list[PathRule]] = {}
        self._sidecars: dict[str, str] = {}
        left = _MOST_TERMS
        for path, text in files:
            folder, name = _placed(path)
            if path.endswith(_SIDECAR) and (own := spdx_line_licence(text)):
                self._sidecars[path.removesuffix(_SIDECAR)] = own
            found_terms = licence_terms(name, text)
            if not found_terms:
                continue
            left -= len(found_terms)
            if name in RULE_FILES:
                rules = path_rules(name, found_terms if left >= 0 else _NOT_READ)
                self._rules.setdefault(folder, []).extend(rules)
            else:
                terms.setdefault(folder, {})[name] = found_terms if left >= 0 else _NOT_READ
        found = {folder: repository_licence(named.items()) for folder, named in terms.items()}
        self._folders = {folder: each for folder, each in found.items() if each.expression}

    def licence_of(self, path: str, text: str) -> tuple[str, str]:
        """The SPDX expression of a file, and its evidence: "spdx" (its own SPDX lines), "reuse" (a
        rule for its path), "file" (a licence file) or "manifest"; twice "" without any."""
        own = [each for each in (self._sidecars.get(path, ""), spdx_line_licence(text)) if each]
        rule = self._rule(path)
        if own:
            together = [*own, rule.expression] if rule and rule.also else own
            return join_expressions("AND", [each for each in together if each]), "spdx"
        if rule and rule.expression:
            return rule.expression, "reuse"
        for folder in _above(path):
            found = self._folders.get(folder)
            if found is not None:
                return found.expression, found.evidence[0].signal
        return "", ""

    def _rule(self, path: str) -> PathRule | None:
        for folder in _above(path):
            below = path.removeprefix(f"{folder}/") if folder else path
            for rule in reversed(self._rules.get(folder, ())):
                if rule.pattern.fullmatch(below):
                    return rule
        return None


def _above(path: str) -> Iterator[str]:
    """The folders above a file, the nearest first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _placed(path: str) -> tuple[str, str]:
    """The folder that a file applies to, and its name there; those in LICENSES and .reuse apply to
    the folder above."""
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    return (above, f"{last}/{name}") if last.lower() in ("licenses", ".reuse") else (folder, name)
