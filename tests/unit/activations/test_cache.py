"""Stored kernels: used when whole, ignored aloud when not, never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.activations import cache
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError

HASH = spec_from_arguments(["all x: 3*x"]).content_hash
OTHER = "0" * 64
SOURCE = f'"""A kernel."""\n\nCONTENT_HASH = "{HASH}"\n\n\ndef value(x):\n    return 1.5 * x * x\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and an empty registry."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(cache, "_REGISTERED", {})
    return tmp_path


def test_what_is_stored_is_found_again(home: Path) -> None:
    assert cache.cached_kernel_source(HASH) is None
    path = cache.store_kernel_source(HASH, SOURCE)
    assert path is not None
    assert path.parent == home / ".cache" / "stamm" / "kernels"
    assert cache.cached_kernel_source(HASH) == SOURCE
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-1], "does not match the hash"),
        (lambda text: text.replace("1.5", "2.5"), "does not match the hash"),
        (lambda text: text.partition("\n")[2], "was not written by stamm"),
        (lambda _: "", "was not written by stamm"),
    ],
)
def test_a_damaged_file_is_ignored_aloud(
    home: Path, capsys: pytest.CaptureFixture[str], damage: object, said: str
) -> None:
    path = cache.store_kernel_source(HASH, SOURCE)
    assert path is not None
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    assert cache.cached_kernel_source(HASH) is None
    assert said in capsys.readouterr().err
    cache.store_kernel_source(HASH, SOURCE)
    assert cache.cached_kernel_source(HASH) == SOURCE


def test_bytes_that_are_no_text_are_ignored_aloud(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cache.store_kernel_source(HASH, SOURCE)
    assert path is not None
    path.write_bytes(b"\xff\xfe\x00")
    assert cache.cached_kernel_source(HASH) is None
    assert "is not used" in capsys.readouterr().err


def test_the_kernel_of_another_spec_is_never_used(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cache.store_kernel_source(HASH, SOURCE)
    assert path is not None
    path.rename(path.with_name(path.name.replace(HASH, OTHER)))
    assert cache.cached_kernel_source(OTHER) is None
    assert "another spec" in capsys.readouterr().err
    for give in (cache.store_kernel_source, cache.register_kernel_source):
        with pytest.raises(ConfigError, match="not the kernel"):
            give(OTHER, SOURCE)


def test_another_deriver_derives_again_in_silence(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store_kernel_source(HASH, SOURCE)
    monkeypatch.setattr(cache, "deriver", lambda: OTHER)
    assert cache.cached_kernel_source(HASH) is None
    assert capsys.readouterr().err == ""


def test_a_home_that_cannot_be_written_is_no_error(home: Path) -> None:
    (home / ".cache").write_text("a file where a folder should be")
    assert cache.store_kernel_source(HASH, SOURCE) is None
    assert cache.known_kernel_source(HASH) is None


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache.store_kernel_source(HASH, SOURCE) is None
    assert cache.cached_kernel_source(HASH) is None


def test_a_name_that_is_no_hash_reaches_no_file(home: Path) -> None:
    with pytest.raises(ConfigError, match="not a SHA-256"):
        cache.cached_kernel_source("../../secret")


def test_a_registered_kernel_comes_before_a_stored_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store_kernel_source(HASH, SOURCE)
    newer = SOURCE.replace("1.5", "3 / 2")
    assert cache.register_kernel_source(HASH, newer, primitives=cache.primitives_hash())
    assert cache.known_kernel_source(HASH) == newer
    assert not cache.register_kernel_source(HASH, SOURCE, primitives=OTHER)
    assert "another version of stamm" in capsys.readouterr().err
    assert cache.known_kernel_source(HASH) == newer
