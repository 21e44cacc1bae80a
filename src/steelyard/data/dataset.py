"""What a data set's entry in the registry says: its files at the source and in a mirror, with their pinned bytes."""

from __future__ import annotations

from dataclasses import dataclass

GITHUB_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Pin:
    """The size in bytes and the SHA-256 of a file that may be used."""

    sha256: str
    size: int


@dataclass(frozen=True)
class RemoteFile:
    """A file at its source; ``url`` carries a commit, and only bytes that match one of ``pins`` are ever used."""

    name: str
    url: str
    pins: tuple[Pin, ...]

    @property
    def size(self) -> int:
        """Size in bytes of the first pin, which is what the source is expected to send."""
        return self.pins[0].size

    @property
    def sha256(self) -> str:
        """SHA-256 of the first pin."""
        return self.pins[0].sha256


@dataclass(frozen=True)
class MirrorFile:
    """A file in a mirror folder, relative to it; its checksum stands in the mirror's own ``index.json``."""

    path: str


@dataclass(frozen=True)
class Dataset:
    """One data set. ``files`` and ``mirror`` hold the same contents in the same order; both empty means embedded.

    A mirror may keep in one file what the source has in several. ``files`` alone empty means that only a mirror has the
    set: it leaves out rows, fields or the pickles of its source on purpose, so that no download would give the same.
    """

    name: str
    title: str
    room: str
    licence: str
    attribution: str
    rows: int
    files: tuple[RemoteFile, ...] = ()
    mirror: tuple[MirrorFile, ...] = ()

    @property
    def embedded(self) -> bool:
        """True when the data come inside an installed package and nothing is ever fetched."""
        return not self.files and not self.mirror

    @property
    def mirror_only(self) -> bool:
        """True when a mirror folder is the only place to get it from."""
        return bool(self.mirror) and not self.files

    @property
    def size(self) -> int:
        """Bytes to download, 0 for data that are embedded or only in a mirror."""
        return sum(file.size for file in self.files)
