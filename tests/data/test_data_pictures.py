"""Images that users bring: what is read, and what a hostile folder or file gets: one sentence."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from steelyard import data
from steelyard.data import pictures
from steelyard.errors import InputError


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two classes, black and white, in several formats and sizes."""
    root = tmp_path / "images"
    for index, suffix in enumerate(("png", "bmp", "jpg")):
        save(root / "black" / f"{index}.{suffix}", np.zeros((4 + index, 6), dtype=np.uint8))
        save(root / "white" / f"{index}.{suffix}", np.full((4 + index, 6, 3), 255, dtype=np.uint8))
    return root


def test_a_folder_with_a_subfolder_per_class(folder):
    (folder / "black" / "notes.txt").write_text("not an image")
    (folder / "white" / ".hidden.png").write_bytes(b"not an image")
    (folder / ".cache").mkdir()
    (folder / "readme.md").write_text("hello")
    grey = data.read_pictures(folder, 8)
    assert grey.images.shape == (6, 1, 8, 8)
    assert grey.images.dtype == np.uint8
    assert grey.classes == ("black", "white")
    assert grey.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert grey.images[:3].max() <= 1
    assert grey.images[3:].min() >= 254
    colour = data.read_pictures(str(folder), 5, channels=3)
    assert colour.images.shape == (6, 3, 5, 5)


def test_colour_and_grey_by_hand(tmp_path):
    red = np.zeros((3, 3, 3), dtype=np.uint8)
    red[..., 0] = 200
    save(tmp_path / "a" / "red.png", red)
    save(tmp_path / "b" / "dark.png", np.zeros((3, 3), dtype=np.uint8))
    colour = data.read_pictures(tmp_path, 3, channels=3)
    assert colour.images[0, :, 0, 0].tolist() == [200, 0, 0]
    grey = data.read_pictures(tmp_path, 3)
    assert grey.images[0, 0, 0, 0] == round(0.299 * 200)  # ITU-R 601


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(tmp_path, orientation):
    """Each of the eight ways in which a camera stores the same scene reads as that scene."""
    scene = np.zeros((4, 4, 3), dtype=np.uint8)
    scene[0, :3] = 255
    back = {1: [], 2: [0], 3: [3], 4: [1], 5: [5], 6: [2], 7: [6], 8: [4]}[orientation]  # PIL's transpositions
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(scene)
    for turn in back:
        stored = stored.transpose(turn)
    (tmp_path / "a").mkdir()
    stored.save(tmp_path / "a" / "x.png", exif=exif)
    save(tmp_path / "b" / "y.png", scene)
    read = data.read_pictures(tmp_path, 4)
    assert np.array_equal(read.images[0], read.images[1])


def test_transparent_parts_are_white(tmp_path):
    shape = np.zeros((2, 2, 4), dtype=np.uint8)
    shape[0, 0, 3], shape[0, 1, 3] = 255, 51
    save(tmp_path / "a" / "x.png", shape)
    save(tmp_path / "b" / "y.png", shape[..., 2:])  # grey with alpha
    palette = Image.new("P", (2, 2), 0)
    palette.save(tmp_path / "b" / "z.png", transparency=0)
    read = data.read_pictures(tmp_path, 2)
    assert read.images[:2].reshape(2, 4).tolist() == [[0, 204, 255, 255]] * 2
    assert (read.images[2] == 255).all()


def write_npz(path, images, labels, **more):
    np.savez_compressed(path, images=images, y=labels, **more)
    return path


@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 6, 6, 1), (4, 1, 6, 6), (4, 6, 6, 3), (4, 3, 6, 6)])
def test_npz_in_every_layout(tmp_path, shape):
    images = np.zeros(shape, dtype=np.uint8)
    images[2:] = 90
    path = write_npz(tmp_path / "x.npz", images, np.array(["cat", "cat", "dog", "dog"]))
    for channels in (1, 3):
        read = data.read_pictures(path, 6, channels=channels)
        assert read.images.shape == (4, channels, 6, 6)
        assert read.images[:2].max() == 0
        assert (read.images[2:] == 90).all()
        assert read.classes == ("cat", "dog")


def test_npz_of_floats_and_another_label(tmp_path):
    images = np.linspace(0, 1, 3)[:, None, None] * np.ones((3, 2, 2))
    np.savez(tmp_path / "x.npz", images=images, kind=np.array([7, 3, 7]))
    read = data.read_pictures(tmp_path / "x.npz", 2, label="kind")
    assert read.images[:, 0, 0, 0].tolist() == [0, 128, 255]
    assert read.labels.tolist() == [1, 0, 1]
    assert read.classes == ("3", "7")


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 255))
def test_an_even_image_stays_even_at_any_size(height, width, size, value):
    image = Image.fromarray(np.full((height, width), value, dtype=np.uint8))
    fitted = pictures._fit(Image, image, size, 1)
    assert fitted.shape == (1, size, size)
    assert (fitted == value).all()


# --- hostile ---------------------------------------------------------------------------------------------------------


def png_header(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG of any claimed size whose data are ``body``."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def refused(source, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        data.read_pictures(source, options.pop("size", 8), **options)
    assert "\n" not in str(caught.value)


def test_a_decompression_bomb(folder):
    (folder / "black" / "bomb.png").write_bytes(png_header(9_000, 9_000))
    refused(folder, r"bomb\.png unpacks to 9000 x 9000 pixels")


def test_a_bomb_that_pillow_itself_refuses(folder):
    (folder / "black" / "bomb.png").write_bytes(png_header(60_000, 60_000))
    refused(folder, r"bomb\.png")


@pytest.mark.parametrize("keep", [0, 5, 20, 60])
def test_a_truncated_file(folder, keep):
    whole = save(folder / "black" / "x.png", np.arange(4096, dtype=np.uint8).reshape(64, 64)).read_bytes()
    (folder / "black" / "x.png").write_bytes(whole[:keep])
    refused(folder, r"x\.png is not a sound image")


def test_a_file_under_another_name(folder):
    image = save(folder / "black" / "x.png", np.zeros((4, 4), dtype=np.uint8)).read_bytes()
    (folder / "black" / "y.jpg").write_bytes(image)
    refused(folder, r"y\.jpg is not a sound image")


def test_a_link_out_of_the_folder(folder, tmp_path):
    outside = save(tmp_path / "secret.png", np.zeros((4, 4), dtype=np.uint8))
    (folder / "black" / "link.png").symlink_to(outside)
    refused(folder, r"link\.png is a link to a place outside")
    (folder / "black" / "link.png").unlink()
    save(tmp_path / "elsewhere" / "1.png", np.zeros((4, 4), dtype=np.uint8))
    (folder / "grey").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    refused(folder, r"is a link to a place outside")


def test_a_link_that_goes_in_a_circle(folder):
    (folder / "black" / "x.png").symlink_to("x.png")
    refused(folder, "x.png is")


def test_a_link_within_the_folder_is_followed(folder):
    (folder / "black" / "again.png").symlink_to(folder / "black" / "0.png")
    assert len(data.read_pictures(folder, 8).images) == 7


def test_what_is_no_regular_file(folder):
    os.mkfifo(folder / "black" / "pipe.png")
    refused(folder, r"pipe\.png is not a regular file")


def test_more_than_eight_bits(folder):
    save(folder / "black" / "deep.png", np.full((4, 4), 40_000, dtype=np.uint16))
    refused(folder, r"deep\.png has more than 8 bits")


def test_names_with_line_breaks(folder, tmp_path):
    image = save(folder / "black" / "a\nb.png", np.zeros((4, 4), dtype=np.uint8))
    refused(folder, r"the name 'a\\nb\.png' holds a line break")
    image.unlink()
    (folder / "new\nline").mkdir()
    refused(folder, r"the name 'new\\nline' holds a line break")
    refused(write_npz(tmp_path / "x.npz", np.zeros((2, 4, 4)), np.array(["a\nb"] * 2)), "one class only")


def test_limits(folder, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_FILE_BYTES", 10)
    refused(folder, "is larger than 10 bytes")
    monkeypatch.undo()
    monkeypatch.setattr(pictures, "MAX_BYTES", 3 * 64)
    refused(folder, "has more than 3 images")


def test_folders_that_are_none(tmp_path, folder):
    refused(tmp_path / "nothing", "there is no folder or file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no subfolders")
    (tmp_path / "empty" / "one").mkdir()
    refused(tmp_path / "empty", "holds no images")
    save(tmp_path / "empty" / "one" / "x.png", np.zeros((2, 2), dtype=np.uint8))
    refused(tmp_path / "empty", "one class only")
    (tmp_path / "x.csv").write_text("a\n1\n")
    refused(tmp_path / "x.csv", "neither a folder")
    refused(np.zeros(3), "ndarray is not a folder")
    refused(folder, "channels must be 1 or 3", channels=2)
    refused(folder, "size must be a whole number", size=0)
    refused(folder, "size must be a whole number", size=8.5)


def test_a_folder_that_may_not_be_read(folder, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(folder), "iterdir", denied)
    refused(folder, r"images cannot be read \(Permission denied\)")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 4)), np.arange(3), "shape"),
        (np.zeros((3, 4, 4, 2)), np.arange(3), "shape"),
        (np.zeros((0, 4, 4)), np.arange(0), "shape"),
        (np.full((3, 4, 4), 16.0), np.arange(3), "floats from 0 to 1"),
        (np.full((3, 4, 4), np.nan), np.arange(3), "floats from 0 to 1"),
        (np.zeros((3, 4, 4), dtype=np.int64), np.arange(3), "floats from 0 to 1"),
        (np.zeros((3, 4, 4)), np.arange(4), "array 'y'"),
        (np.zeros((3, 4, 4)), np.zeros((3, 1)), "array 'y'"),
        (np.zeros((3, 4, 4)), np.array([0.0, 1.0, np.nan]), "array 'y'"),
        (np.zeros((3, 4, 4)), np.zeros(3, dtype=int), "one class only"),
    ],
)
def test_arrays_that_are_no_images(tmp_path, images, labels, message):
    refused(write_npz(tmp_path / "x.npz", images, labels), message)


def test_npz_without_its_arrays(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "x.npz", np.zeros((3, 4, 4)), np.arange(3))
    refused(path, "no array 'Y'; it has images, y", label="Y")
    np.savez(tmp_path / "z.npz", image=np.zeros((3, 4, 4)), y=np.arange(3))
    refused(tmp_path / "z.npz", r"no array 'images'; it has image, y\. Did you mean 'image'\?")
    np.savez(tmp_path / "o.npz", images=np.array([{}], dtype=object), y=np.arange(3))
    refused(tmp_path / "o.npz", "pickle")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nonsense")
    refused(tmp_path / "bad.npz", "is not a sound npz file")
    monkeypatch.setattr(pictures, "MAX_BYTES", 1000)
    refused(path, "too many at 20 pixels", size=20)
