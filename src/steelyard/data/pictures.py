"""Labelled images that users bring: a folder with a subfolder per class, or an npz file; decoded with care."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.data.binary import read_arrays
from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require

FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP", ".pgm": "PPM",
    ".ppm": "PPM",
}  # fmt: skip
MAX_PIXELS = 1 << 26  # of one image as stored
MAX_FILE_BYTES = 1 << 26
MAX_BYTES = 1 << 30  # of all images together, as read
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_DEEP = ("I", "F")  # modes of more than 8 bits a channel begin with these


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of one size with their classes.

    Attributes:
        images: uint8 [n, channels, size, size].
        labels: int64 [n], an index into ``classes``.
        classes: The names of the classes, sorted.
        source: The folder or file.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    source: str


def read_pictures(source: Any, size: int, *, channels: int = 1, label: str = "y") -> Pictures:
    """Read labelled images and bring them to one size; the sides' ratio is not kept.

    Args:
        source: A folder with one subfolder of images per class (PNG, JPEG, BMP, GIF, WebP, PGM, PPM; the first frame
            of a GIF; other files and hidden ones are left out; turned as their EXIF data say, transparent parts on
            white), or an .npz file with ``images`` (uint8, or floats in
            [0, 1]; [n, height, width], with the channels last or second) and the classes.
        size: Height and width wanted, in pixels.
        channels: 1 (grey) or 3 (colour).
        label: Name of the npz array that holds the classes.

    Raises:
        InputError: Anything that is wrong, with the file.
        MissingExtraError: Pillow is not installed.
    """
    if channels not in (1, 3):
        raise InputError(f"channels must be 1 or 3, got {channels}")
    side: Any = size  # callers need not check their types
    if not isinstance(side, numbers.Integral) or not 1 <= size <= 4096:
        raise InputError(f"size must be a whole number of pixels between 1 and 4096, got {size!r}")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"data: a {type(source).__name__} is not a folder of images; pass its path or an npz file's")
    path = Path(source)
    try:
        images, names = _read(path, size, channels, label)
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read ({error.strerror or error})") from error
    classes, labels = np.unique(names, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"{path} has images of one class only ({str(classes[0])!r}); at least 2 are needed")
    return Pictures(images, labels.astype(np.int64), tuple(str(name) for name in classes), str(path))


def _read(path: Path, size: int, channels: int, label: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    if path.is_dir():
        return _read_folder(path, size, channels)
    if path.suffix.lower() == ".npz" and path.is_file():
        return _read_npz(path, size, channels, label)
    if path.exists():
        raise InputError(f"{path} is neither a folder with a subfolder of images per class nor an .npz file")
    raise InputError(f"there is no folder or file {path}")


def _read_folder(root: Path, size: int, channels: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    images: list[npt.NDArray[np.uint8]] = []
    names: list[str] = []
    most = MAX_BYTES // (channels * size * size)
    for name, path in _image_files(root):
        if len(images) == most:
            raise InputError(f"{root} has more than {most} images, which is all that is read at {size} pixels")
        images.append(_decode(path, size, channels))
        names.append(name)
    return np.stack(images), np.array(names)


def _image_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (class, file) in sorted order; nothing outside the folder is ever read."""
    inside = root.resolve()
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise InputError(f"{root} has no subfolders; put the images of each class into a folder of its own")
    for folder in folders:
        _refuse_unprintable(folder)
        files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in FORMATS)
        files = [entry for entry in files if not entry.name.startswith(".")]
        if not files:
            raise InputError(f"{folder} holds no images; known are {', '.join(FORMATS)}")
        for file in files:
            _refuse_unprintable(file)
            try:
                found = file.resolve()
            except (OSError, RuntimeError):  # Python 3.11 and 3.12 raise RuntimeError for links that go in a circle
                raise InputError(f"{file} is a link that leads nowhere; take it out") from None
            if not found.is_relative_to(inside):
                raise InputError(f"{file} is a link to a place outside of {root}, which is not followed; copy the file")
            if not file.is_file():
                raise InputError(f"{file} is not a regular file; take it out")
            yield folder.name, file


def _refuse_unprintable(entry: Path) -> None:
    """Refuse names that would break messages and tables."""
    if not entry.name.isprintable():
        raise InputError(f"the name {entry.name!r} holds a line break or another unprintable character; rename it")


def _decode(path: Path, size: int, channels: int) -> npt.NDArray[np.uint8]:
    """Decode one file with the decoder of its suffix only, its size known before its pixels are unpacked."""
    pil = require("PIL.Image", "nets")
    upright = require("PIL.ImageOps", "nets").exif_transpose
    stored = path.stat().st_size
    if stored > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes; make the image smaller")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the limit below is stricter than the one Pillow warns about
            with pil.open(path, formats=(FORMATS[path.suffix.lower()],)) as image:
                if math.prod(image.size) > MAX_PIXELS:
                    raise InputError(f"{path} unpacks to {image.size[0]} x {image.size[1]} pixels; make it smaller")
                if image.mode.startswith(_DEEP):
                    raise InputError(f"{path} has more than 8 bits a channel; save it with 8")
                return _fit(pil, upright(image), size, channels)
    except InputError:
        raise
    except Exception as error:  # damaged files make the decoders raise whatever they stumble on
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is not a sound image ({said}); save it again or take it out") from error


def _fit(pil: Any, image: Any, size: int, channels: int) -> npt.NDArray[np.uint8]:
    """Return ``image`` as uint8 [channels, size, size], averaged where it shrinks."""
    if image.mode in _ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        image = pil.alpha_composite(pil.new("RGBA", image.size, "white"), image)
    pixels = image.convert("L" if channels == 1 else "RGB")
    if pixels.size != (size, size):
        pixels = pixels.resize((size, size), pil.Resampling.BILINEAR)
    return np.asarray(pixels, dtype=np.uint8).reshape(size, size, channels).transpose(2, 0, 1)


def _read_npz(path: Path, size: int, channels: int, label: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    pil = require("PIL.Image", "nets")
    arrays = read_arrays(path, MAX_BYTES)
    for name in ("images", label):
        if name not in arrays:
            raise InputError(f"{path} has no array '{name}'; it has {', '.join(arrays)}.{did_you_mean(name, arrays)}")
    names = arrays[label]
    images = _channels_last(arrays["images"], str(path))
    if names.ndim != 1 or names.dtype.kind not in "biuU" or len(names) != len(images):
        raise InputError(
            f"{path}, array '{label}': one whole number or text for each of {len(images)} images is needed, got "
            f"{names.dtype} of shape {names.shape}"
        )
    if len(images) * channels * size * size > MAX_BYTES:
        raise InputError(
            f"{path} has {len(images)} images, too many at {size} pixels; split it or ask for a smaller size"
        )
    fitted = [_fit(pil, pil.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image), size, channels)
              for image in images]  # fmt: skip
    return np.stack(fitted), names


def _channels_last(images: npt.NDArray[Any], source: str) -> npt.NDArray[np.uint8]:
    """Return images as uint8 [n, height, width, 1 or 3]."""
    where = f"{source}, array 'images'"
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and images.shape[-1] not in (1, 3) and images.shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise InputError(f"{where}: shape {images.shape} is not [n, height, width] with 1 or 3 channels last or second")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f" or not (np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1):
        raise InputError(f"{where}: values must be uint8, or floats from 0 to 1 without NaN")
    return np.asarray(np.rint(images * 255), dtype=np.uint8)
