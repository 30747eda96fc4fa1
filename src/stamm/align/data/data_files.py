"""Files of alignment data: the user's, or "package:<file>" for shipped data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from stamm.align.data.prepare_config import DataSource, PrepareConfig
from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.inputs import expand, locate

_PREFIX = "package:"


def shipped_data() -> tuple[str, ...]:
    """The names that may follow "package:", sorted."""
    folder = resources.files("stamm.align") / "demo_data"
    return tuple(sorted(file.name for file in folder.iterdir() if file.name.endswith(".zst")))


def locate_file(name: str, where: str) -> Path:
    """The one file that `name` refers to.

    where    the configuration key that names it, for the error

    Raises   DataError when there is no such file.
    """
    if not name.startswith(_PREFIX):
        return locate(name, where)
    file, known = name.removeprefix(_PREFIX), shipped_data()
    if file not in known:
        raise DataError(
            f"{name!r} is not shipped with stamm", where=where, fix=nearest(file, known)
        )
    return Path(str(resources.files("stamm.align") / "demo_data" / file))


def locate_data(names: Sequence[str], where: str = "data") -> dict[str, Path]:
    """The files that `names` refer to, by the name that summaries and the ledger give them, in order.

    A folder means every readable file below it and a pattern every file it matches, sorted by name.

    where    the configuration key that names them, for errors

    Raises   ConfigError without a name; DataError for a name without a file, and a file named twice
    """
    if not names:
        raise ConfigError(
            f"{where} is empty",
            fix=f"Set {where}=FILE: JSON, Parquet or Arrow with messages, prompt and completion, or"
            " chosen and rejected",
        )
    found: dict[str, Path] = {}
    for name in names:
        packaged = name.startswith(_PREFIX)
        more = {name: locate_file(name, where)} if packaged else expand((name,), where)
        if twice := sorted(more.keys() & found.keys()):
            raise DataError(f"{twice[0]} is named twice", where=where, fix="Name it once")
        found.update(more)
    return found


def locate_sources(config: PrepareConfig) -> list[tuple[DataSource, dict[str, Path]]]:
    """The sources of a configuration with their files, by name; `data` is one source.

    Raises   as `locate_data`
    """
    if not config.mixture:
        files = locate_data(config.data)
        return [(DataSource(data=config.data, fields=config.fields), files)]
    sources = [
        (source, locate_data(source.data, f"mixture.{number}.data"))
        for number, source in enumerate(config.mixture)
    ]
    source_of: dict[Path, int] = {}
    for number, (_, files) in enumerate(sources):
        for name, path in files.items():
            if source_of.setdefault(path.resolve(), number) != number:
                raise DataError(
                    f"{name} is in two sources",
                    where="mixture",
                    fix="Name it once, with its weight",
                )
    return sources


def evaluation_files(config: PrepareConfig) -> dict[str, Path]:
    """The files of the evaluation sets of a configuration, by their name in it.

    Raises   DataError when one is not there
    """
    sets = config.decontaminate.sets if config.decontaminate else ()
    return {one.file: locate_file(one.file, "decontaminate.sets") for one in sets}
