"""Download one pinned file: https only, one host, no more bytes than pinned, nothing visible until it is checked."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from steelyard.data.registry import CACHE_VARIABLE, MIRROR_VARIABLE, Progress, RemoteFile
from steelyard.errors import ChecksumError, DataMissingError

_CHUNK = 1 << 16
_STALE_SECONDS = 24 * 3600.0
_AGENT = "steelyard (data download)"


def download(
    file: RemoteFile,
    target: Path,
    dataset: str,
    progress: Progress | None = None,
    *,
    stall_seconds: float = 30.0,
    total_seconds: float = 900.0,
) -> None:
    """Fetch ``file`` to ``target``, which appears at once and whole, or not at all.

    The bytes go to a temporary file in the same folder, are checked against the pin, flushed to the disk and renamed.
    Several processes may fetch the same file: each writes its own temporary file, and the last rename wins with the
    same bytes.

    Args:
        file: What to fetch.
        target: Where it goes; its folder is made when missing.
        dataset: Name for the error messages.
        progress: Called with (file name, bytes done, bytes in all).
        stall_seconds: Longest wait for a connection or for the next bytes.
        total_seconds: Longest time for the whole file.

    Raises:
        DataMissingError: The source cannot be reached, refuses, is too slow or breaks off, or the disk refuses.
        ChecksumError: The source sent other bytes than the pinned ones.
    """
    _require_safe(file.url, dataset)
    with _new_file(target, dataset) as (stream, temporary):
        try:
            with _open(file.url, stall_seconds) as response:
                digest = _copy(response, stream, file, dataset, progress, time.monotonic() + total_seconds)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise _unreachable(file, dataset, _reason(error)) from error
        _require_pinned(file, stream.tell(), digest, dataset)
        _publish(stream, temporary, target, dataset)


def _copy(
    response: Any, stream: BinaryIO, file: RemoteFile, dataset: str, progress: Progress | None, deadline: float
) -> str:
    """Copy the body to ``stream`` and return its SHA-256; stop as soon as it cannot be what is pinned."""
    cap = max(pin.size for pin in file.pins)
    announced = response.headers.get("Content-Length", "")
    total = int(announced) if announced.isascii() and announced.isdigit() else file.size
    digest, done = hashlib.sha256(), 0
    if total > cap:
        raise _wrong_bytes(file, dataset, f"announces {total} bytes where at most {cap} are pinned")
    while chunk := response.read1(_CHUNK):  # read1 returns what has come, so that the deadline is looked at
        done += len(chunk)
        if done > cap:
            raise _wrong_bytes(file, dataset, f"sends more than the pinned {cap} bytes")
        if time.monotonic() > deadline:
            raise _unreachable(file, dataset, f"too slow, {done} of {total} bytes came in time")
        digest.update(chunk)
        _write(stream, chunk, dataset)
        if progress is not None:
            progress(file.name, done, total)
    if done < min(pin.size for pin in file.pins) or done < total:
        raise _unreachable(file, dataset, f"the connection broke off after {done} of {total} bytes")
    return digest.hexdigest()


def _require_pinned(file: RemoteFile, size: int, digest: str, dataset: str) -> None:
    if not any(pin.size == size and pin.sha256 == digest for pin in file.pins):
        raise _wrong_bytes(
            file, dataset, f"sent {size} bytes with SHA-256 {digest[:12]}… where {file.sha256[:12]}… is pinned"
        )


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follow a redirect within the host it came from, and refuse every other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request to follow, or raise."""
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            fp.close()
            raise urllib.error.URLError(f"it redirects to another place ({after.scheme}://{after.netloc})")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, stall_seconds: float) -> Any:
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT})  # noqa: S310 (scheme checked before)
    return urllib.request.build_opener(_SameHost).open(request, timeout=stall_seconds)


def _require_safe(url: str, dataset: str) -> None:
    """Accept https, and plain http on this machine's own loopback only (tests, local mirrors)."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        return
    raise DataMissingError(f"data set '{dataset}' is not fetched from {url}: only https sources are used")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _new_file(target: Path, dataset: str) -> Iterator[tuple[BinaryIO, Path]]:
    """Give a new temporary file beside ``target``; whatever happens, it is gone afterwards unless renamed."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(6)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        stream = temporary.open("xb")
    except OSError as error:
        raise _unwritable(target.parent, dataset, error) from error
    try:
        yield stream, temporary
    finally:
        with contextlib.suppress(OSError):  # a full disk fails once more on closing and must not hide the first error
            stream.close()
        temporary.unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    """Remove temporary files of downloads that were killed long ago."""
    for old in target.parent.glob(f".{target.name}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                old.unlink()


def _write(stream: BinaryIO, chunk: bytes, dataset: str) -> None:
    try:
        stream.write(chunk)
    except OSError as error:
        raise _unwritable(Path(stream.name).parent, dataset, error) from error


def _publish(stream: BinaryIO, temporary: Path, target: Path, dataset: str) -> None:
    """Flush to the disk, then rename: after a power cut there is the whole file or none."""
    try:
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()  # Windows renames closed files only
        os.replace(temporary, target)
    except OSError as error:
        raise _unwritable(target.parent, dataset, error) from error


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()  # it is the response as well, with an open connection
        return _one_line(f"the server answers {error.code} {error.reason}")
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return "no answer in time" if isinstance(inner, TimeoutError) else _one_line(str(inner) or type(inner).__name__)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unreachable(file: RemoteFile, dataset: str, reason: str) -> DataMissingError:
    host = urllib.parse.urlsplit(file.url).netloc
    return DataMissingError(
        f"data set '{dataset}' is not here and {file.name} could not be fetched from {host} ({reason}); "
        f"try again with a network, or set {MIRROR_VARIABLE} to a folder that holds it"
    )


def _wrong_bytes(file: RemoteFile, dataset: str, what: str) -> ChecksumError:
    return ChecksumError(
        f"data set '{dataset}': {file.url} {what}; nothing was kept, so try again or set {MIRROR_VARIABLE}"
    )


def _unwritable(folder: Path, dataset: str, error: OSError) -> DataMissingError:
    return DataMissingError(
        f"data set '{dataset}' cannot be stored in {folder} ({error.strerror or error}); "
        f"set {CACHE_VARIABLE} to a folder with room that you may write to"
    )
