"""WikiText-2 and the stories model's files: source bytes are mirror bytes, and what the text holds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import data
from steelyard.data.registry import DATASETS, lookup
from steelyard.errors import ChecksumError, InputError


@pytest.fixture
def bodies(mirror):
    return {
        name: [(mirror / file.path).read_bytes() for file in lookup(name).mirror]
        for name in ("wikitext2", "stories260k")
    }


def serve(monkeypatch, source, name, contents):
    real = lookup(name)
    files = tuple(
        dataclasses.replace(file, url=source.body(f"/{file.name}", body))
        for file, body in zip(real.files, contents, strict=True)
    )
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(real, files=files))


def test_wikitext_from_the_source_and_from_the_mirror(bodies, cache, source, monkeypatch):
    serve(monkeypatch, source, "wikitext2", bodies["wikitext2"])
    valid, test = data.wikitext2("valid"), data.wikitext2()
    assert source.asked == ["/valid.txt", "/test.txt"]
    assert (len(valid), len(test), len(valid) + len(test)) == (3760, 4358, lookup("wikitext2").rows)
    assert test[1] == " = Robert <unk> = "
    assert "\n".join(test) + "\n" == bodies["wikitext2"][1].decode()


def test_stories_from_the_source_has_the_bytes_of_the_mirror(bodies, cache, source, monkeypatch):
    serve(monkeypatch, source, "stories260k", bodies["stories260k"])
    assert [path.read_bytes() for path in data.locate("stories260k").paths] == bodies["stories260k"]
    spoilt = [bodies["stories260k"][0][:-1] + b"x", bodies["stories260k"][1]]
    (cache / "quant/stories260k/stories260K.bin").unlink()
    serve(monkeypatch, source, "stories260k", spoilt)
    with pytest.raises(ChecksumError):
        data.locate("stories260k")


def test_another_split():
    with pytest.raises(InputError, match="split must be 'valid' or 'test', got 'train'"):
        data.wikitext2("train")


def test_plain_text():
    tokens = "He had a guest @-@ starring role , in 1 @,@ 000 and 3 @.@ 5 <unk> parts ."
    assert data.plain_wikitext(tokens) == "He had a guest-starring role, in 1,000 and 3.5  parts."


@given(st.text(alphabet="abc XYZ\n'", max_size=60))
def test_text_without_marks_is_kept(text):
    assert data.plain_wikitext(text) == text


@given(st.lists(st.sampled_from(["a", "<unk>", "@-@", "@,@", "@.@", ",", ".", "b"]), max_size=20))
def test_no_mark_is_left_between_words(words):
    plain = data.plain_wikitext(" ".join(["x", *(f"{word} y" for word in words), "."]))
    assert "<unk>" not in plain
    assert "@" not in plain
    assert " ," not in plain
    assert " ." not in plain
