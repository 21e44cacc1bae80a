"""Frames of a video that users bring: a file that FFmpeg can read, or a folder of pictures; decoded with care."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.data.pictures import FORMATS, MAX_FILE_BYTES, MAX_PIXELS
from steelyard.errors import InputError
from steelyard.extras import require

MAX_FRAMES = 1_000_000
MAX_BYTES = 1 << 32  # of all frames that are kept


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of a video in time order.

    Attributes:
        frames: Pictures as they were stored, uint8 (height, width, 3) each.
        timestamps: Seconds of each frame; for a folder its number.
        numbers: Which frame of the video each is.
        total: Frames of the whole video.
        source: The file or folder.
    """

    frames: list[npt.NDArray[np.uint8]]
    timestamps: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.int64]
    total: int
    source: str


def read_video(source: str | os.PathLike[str], most: int) -> Video:
    """Return at most ``most`` frames of a video, evenly apart, the first and the last among them.

    A file is read twice: frames are counted, then decoded; containers often do not say how many they hold.

    Args:
        source: A video file, or a folder of pictures (PNG, JPEG, BMP, GIF, WebP) in the order of their names.
        most: How many frames to keep, at least 1.

    Raises:
        InputError: It cannot be read, has no frame, or is too large.
        MissingExtraError: PyAV or Pillow is not installed.
    """
    path = Path(source)
    if most < 1:
        raise InputError(f"most must be at least 1, got {most}")
    if path.is_dir():
        return _of_folder(path, most)
    if not path.is_file():
        raise InputError(f"{path} is no file and no folder of pictures")
    total = sum(1 for _ in _decoded(path))
    if not total:
        raise InputError(f"{path}: the video has no frame")
    wanted = np.unique(np.round(np.linspace(0, total - 1, most)).astype(np.int64))
    keep, frames, times, held = set(wanted.tolist()), list[npt.NDArray[np.uint8]](), list[float](), 0
    for number, frame in enumerate(_decoded(path)):
        if number in keep:
            picture = frame.to_ndarray(format="rgb24")
            held += picture.nbytes
            if held > MAX_BYTES:
                raise InputError(f"{path}: {most} frames take more than {MAX_BYTES >> 30} GB; ask for fewer")
            frames.append(picture)
            times.append(float(frame.time) if frame.time is not None else float(number))
    return Video(frames, np.array(times), wanted[: len(frames)], total, str(path))


def _decoded(path: Path) -> Iterator[Any]:
    """Yield the frames of a file, decoded, at most `MAX_FRAMES`."""
    av = require("av", "vision")
    try:
        with av.open(str(path), mode="r") as container:
            if not container.streams.video:
                raise InputError(f"{path}: it has no video")
            stream = container.streams.video[0]
            if stream.width * stream.height > MAX_PIXELS:
                raise InputError(f"{path}: its frames have {stream.width} x {stream.height} pixels, which is too many")
            stream.thread_type = "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                if number >= MAX_FRAMES:
                    raise InputError(f"{path}: it has more than {MAX_FRAMES:,} frames; cut it first")
                yield frame
    except (av.error.FFmpegError, OSError) as error:
        raise InputError(f"{path} cannot be read as a video ({str(error)[:120]})") from None


def _of_folder(path: Path, most: int) -> Video:
    image = require("PIL.Image", "vision")
    names = sorted(one for one in path.iterdir() if one.suffix.lower() in FORMATS and not one.name.startswith("."))
    if not names:
        raise InputError(f"{path}: the folder holds no picture ({', '.join(sorted(FORMATS))})")
    wanted = np.unique(np.round(np.linspace(0, len(names) - 1, most)).astype(np.int64))
    frames = [_picture(image, names[number]) for number in wanted.tolist()]
    return Video(frames, wanted.astype(np.float64), wanted, len(names), str(path))


def _picture(image: Any, path: Path) -> npt.NDArray[np.uint8]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: the file has more than {MAX_FILE_BYTES >> 20} MB")
    try:
        with image.open(path, formats=sorted(set(FORMATS.values()))) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(f"{path}: it has {picture.width} x {picture.height} pixels, which is too many")
            return np.asarray(picture.convert("RGB"))
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture ({str(error)[:120]})") from None
