"""The licence of each file of a repository: what its own head says, else the terms of its folder."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.corpus.licences.repository import head_licence, repository_licence, terms_of

_MOST_TERMS = 8_000_000  # characters of terms that are read: 10 to 16 s of work
_NOT_READ = "not read"  # the words of no licence, so terms that are not known


class FolderLicences:
    """What licence files and manifests of a repository say, told once, then asked for each file.

    files   paths and texts; a text may be given up at once, only what speaks of terms is kept

    A file stands under the terms of the nearest folder above it that has any: what was taken from
    others, in a folder with a licence of its own, is never under the licence of the whole. The head
    of one file says nothing about another.
    Edge     beyond 8 million characters of terms those of a folder are LicenseRef-Unknown-Terms.
    Checked  tests/unit/corpus/licences/test_folders.py
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        terms: dict[str, dict[str, str]] = {}
        left = _MOST_TERMS
        for path, text in files:
            folder, name = _placed(path)
            said = terms_of(name, text)
            if said:
                left -= len(said)
                terms.setdefault(folder, {})[name] = said if left >= 0 else _NOT_READ
        found = {folder: repository_licence(named.items()) for folder, named in terms.items()}
        self._folders = {folder: each for folder, each in found.items() if each.expression}

    def of(self, path: str, text: str) -> tuple[str, str]:
        """The SPDX expression of a file, and what named it: "spdx" (its own head), "file" (a licence
        file) or "manifest"; twice "" where nothing does."""
        own = head_licence(text)
        if own:
            return own, "spdx"
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            found = self._folders.get(folder)
            if found is not None:
                return found.expression, found.evidence[0].signal
        return "", ""


def _placed(path: str) -> tuple[str, str]:
    """The folder that a file speaks for, and its name there; LICENSES/MIT.txt speaks from below."""
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    return (above, f"{last}/{name}") if last.lower() == "licenses" else (folder, name)
