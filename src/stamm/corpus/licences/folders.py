"""The licence of each file of a repository: from its SPDX line, else from its folder."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.corpus.licences.repository import licence_terms, repository_licence, spdx_line_licence

_MOST_TERMS = 8_000_000  # characters of terms that are read: 10 to 16 s of work
_NOT_READ = "not read"  # matches no licence, so it gives unknown terms


class FolderLicences:
    """Licences of the folders of a repository, from its licence files and manifests.

    files   paths and texts, consumed one by one; only text that states terms is kept

    A file has the licence of the nearest folder above it with terms: vendored code in a folder with
    its own licence never gets that of the whole. The SPDX line of a file applies to it alone.
    Edge     beyond 8 million characters of terms those of a folder are LicenseRef-Unknown-Terms.
    Checked  tests/unit/corpus/licences/test_folders.py
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        terms: dict[str, dict[str, str]] = {}
        left = _MOST_TERMS
        for path, text in files:
            folder, name = _placed(path)
            found_terms = licence_terms(name, text)
            if found_terms:
                left -= len(found_terms)
                terms.setdefault(folder, {})[name] = found_terms if left >= 0 else _NOT_READ
        found = {folder: repository_licence(named.items()) for folder, named in terms.items()}
        self._folders = {folder: each for folder, each in found.items() if each.expression}

    def licence_of(self, path: str, text: str) -> tuple[str, str]:
        """The SPDX expression of a file, and its evidence: "spdx" (its own SPDX line), "file" (a
        licence file) or "manifest"; twice "" without any."""
        own = spdx_line_licence(text)
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
    """The folder that a file applies to, and its name there; LICENSES/MIT.txt applies to the parent."""
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    return (above, f"{last}/{name}") if last.lower() == "licenses" else (folder, name)
