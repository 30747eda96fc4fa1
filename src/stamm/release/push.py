"""Upload of a released folder to the Hugging Face Hub, the one user of `huggingface_hub`.

The client's own login (`hf auth login`) is used; no token passes through stamm. HF_ENDPOINT names
another server that speaks the Hub's protocol.
"""

from __future__ import annotations

from pathlib import Path

from stamm.base.errors import ConfigError, RunError
from stamm.release.checksums import SUMS, list_files


def check_repository(name: str) -> None:
    """Check that `name` is "OWNER/NAME".

    Raises   ConfigError when it is not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
        owned = name.count("/") == 1
    except HFValidationError:
        owned = False
    if not owned:
        raise ConfigError(f"--push {name!r} is not OWNER/NAME", fix="Such as --push someone/model")


def push(folder: Path, repository: str, message: str) -> str:
    """Upload all files of `folder` in one commit; the repository is made if needed, private.

    Nothing is deleted there.

    Returns  the address of the commit.
    Raises   RunError when the server refuses, and when the repository has other files, with which
             it would not verify.
    """
    import httpx2
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api, names = HfApi(), [*list_files(folder), SUMS]
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        there = set(api.list_repo_files(repository)) - {".gitattributes"}
        if others := sorted(there - set(names)):
            raise RunError(
                f"{repository} has {len(others)} files that are not in {folder}: {others[0]!r}",
                fix="Delete them there, or choose another repository",
            )
        done = api.create_commit(
            repository,
            [CommitOperationAdd(name, folder / name) for name in names],
            commit_message=message,
        )
    except (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        httpx2.HTTPError,
        OSError,
        ValueError,
    ) as error:
        raise RunError(
            f"{repository} was not uploaded: {' '.join(str(error).split())[:400]}",
            fix="`hf auth login` stores a token that may write there; then repeat the command",
        ) from None
    return str(done.commit_url)
