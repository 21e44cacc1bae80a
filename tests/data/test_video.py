"""Videos that users bring: files and folders, whole, broken, empty and hostile."""

import numpy as np
import pytest
from PIL import Image

from steelyard.data.video import read_video
from steelyard.errors import InputError

av = pytest.importorskip("av")


def written(path, count=30, size=(64, 48), rate=10):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            picture = np.full((size[1], size[0], 3), 8 * number % 256, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


@pytest.mark.parametrize("ending", [".mp4", ".mkv", ".avi"])
def test_frames_evenly_apart(tmp_path, ending):
    found = read_video(written(tmp_path / f"clip{ending}"), 4)
    assert found.total == 30
    assert found.numbers.tolist() == [0, 10, 19, 29]
    assert found.timestamps == pytest.approx([0.0, 1.0, 1.9, 2.9])
    assert [frame.shape for frame in found.frames] == [(48, 64, 3)] * 4
    grey = [float(frame.mean()) for frame in found.frames]
    assert grey == pytest.approx([0, 80, 152, 232], abs=6)


def test_a_short_video_is_read_whole(tmp_path):
    found = read_video(written(tmp_path / "clip.mp4", count=5), 64)
    assert found.numbers.tolist() == [0, 1, 2, 3, 4]


def test_a_folder_in_the_order_of_names(tmp_path):
    for number in (10, 2, 1):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"f{number:03d}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    found = read_video(tmp_path, 2)
    assert [int(frame[0, 0, 0]) for frame in found.frames] == [1, 10]
    assert found.total == 3
    assert found.timestamps.tolist() == [0.0, 2.0]


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video at all" * 99)
    (tmp_path / "empty.mp4").write_bytes(b"")
    folder = tmp_path / "folder"
    folder.mkdir()
    whole = written(tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 3])
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.png").write_bytes(b"\x89PNG broken")
    for source, words in (
        (tmp_path / "missing.mp4", "no file and no folder"),
        (tmp_path / "broken.mp4", "cannot be read as a video"),
        (tmp_path / "empty.mp4", "cannot be read as a video"),
        (tmp_path / "cut.mp4", "cannot be read as a video"),
        (folder, "holds no picture"),
        (bad, "cannot be read as a picture"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            read_video(source, 4)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="most"):
        read_video(folder, 0)


def test_sound_alone_is_no_video(tmp_path):
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(InputError, match="it has no video"):
        read_video(path, 4)


def test_limits(tmp_path, monkeypatch):
    path = written(tmp_path / "clip.mp4")
    for name, value, words in (
        ("MAX_FRAMES", 10, "more than"),
        ("MAX_PIXELS", 100, "too many"),
        ("MAX_BYTES", 99, "GB"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"steelyard.data.video.{name}", value)
            with pytest.raises(InputError, match=words):
                read_video(path, 4)
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    (tmp_path / "clip.mp4").unlink()
    for name, words in (("MAX_PIXELS", "too many"), ("MAX_FILE_BYTES", "MB")):
        with monkeypatch.context() as patch:
            patch.setattr(f"steelyard.data.video.{name}", 9)
            with pytest.raises(InputError, match=words):
                read_video(tmp_path, 4)
