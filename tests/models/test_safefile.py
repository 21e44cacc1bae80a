"""Safetensors files: the package reads what is written, and the other way round; damaged headers; full disks."""

import contextlib
import json
import resource

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.models import safefile
from steelyard.models.safefile import DTYPES, SafeFile, parse_json, write_safe, write_whole

TENSORS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable()),
    st.tuples(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 9)).map(
        lambda drawn: (
            (torch.arange(1000) * 7 % (drawn[2] + 2))[: torch.Size(drawn[1]).numel()].reshape(drawn[1]).to(drawn[0])
        )
    ),
    max_size=5,
)


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@given(tensors=TENSORS, metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_the_package_reads_what_is_written(tmp_path_factory, tensors, metadata):
    path = tmp_path_factory.getbasetemp() / "written.safetensors"
    write_safe(path, tensors, metadata)
    theirs = safetensors.torch.load_file(path)
    mine = SafeFile(path)
    assert mine.is_whole()
    assert {**metadata, "sha256": mine.metadata["sha256"]} == mine.metadata
    assert set(theirs) == set(mine.spans) == set(tensors)
    for name, tensor in tensors.items():
        for other in (theirs[name], mine.read(name)):
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(other, tensor)


@given(tensors=TENSORS)
def test_what_the_package_writes_is_read(tmp_path_factory, tensors):
    path = tmp_path_factory.getbasetemp() / "theirs.safetensors"
    safetensors.torch.save_file(tensors, path)
    mine = SafeFile(path)
    assert not mine.is_whole()  # no digest
    assert all(torch.equal(mine.read(name), tensor) for name, tensor in tensors.items())


@given(data=st.data())
def test_damage_is_found(tmp_path_factory, data):
    base = tmp_path_factory.getbasetemp()
    write_safe(base / "w.safetensors", {"a": torch.arange(9.0), "b": torch.ones(3, 2)}, {"k": "v"})
    whole = bytearray((base / "w.safetensors").read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    (base / "d.safetensors").write_bytes(whole)
    with contextlib.suppress(InputError):
        file = SafeFile(base / "d.safetensors")
        if at >= SafeFile(base / "w.safetensors").header_size:
            assert not file.is_whole()
        for name in file.spans:
            file.read(name)


def entry(dtype="F32", shape=(1,), ends=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(ends)}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"[]", b"", "no table of tensors"),
        (b"{", b"", "damaged"),
        (b"\xff", b"", "damaged"),
        (b"[" * 100_000, b"", "damaged"),
        (b'{"a":1,"a":2}', b"", "names 'a' twice"),
        ({"__metadata__": {"a": 1}}, b"", "strings to strings"),
        ({"a": 1}, b"", "no table"),
        ({"a\nb": entry()}, b"1234", r"names a tensor 'a\\nb'"),
        ({"\x1b[2J": entry()}, b"1234", "printable"),
        ({"a": entry("F8_E4M3")}, b"", "dtype 'F8_E4M3'"),
        ({"a": entry(["F32"])}, b"", r"dtype \['F32'\]"),
        ({"a": entry({})}, b"", "dtype {}"),
        ({"a": entry(shape=(-1,))}, b"", "numbers from 0"),
        ({"a": entry(shape=(True,))}, b"", "numbers from 0"),
        ({"a": entry(ends=(0, 1, 2))}, b"", "numbers from 0"),
        ({"a": entry(ends=(0, 1 << 70))}, b"", "numbers from 0"),
        ({"a": entry(ends=(4, 0))}, b"", "contradicts"),
        ({"a": entry(shape=(2,))}, b"1234", "contradicts"),
        ({"a": entry()}, b"", "cut short"),
        ({"a": entry()}, b"12345", "1 bytes after"),
        ({"a": entry(ends=(4, 8))}, b"12345678", "overlap another tensor or leave a hole"),
        ({"a": entry(), "b": entry()}, b"1234", "overlap another tensor or leave a hole"),
    ],
)
def test_hostile_headers(tmp_path, header, data, said):
    path = write_raw(tmp_path / "h.safetensors", header, data)
    with pytest.raises(InputError, match=said) as raised:
        SafeFile(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [b"1234", b"12345678", (1 << 62).to_bytes(8, "little") + b"{}"])
def test_not_a_file_of_tensors(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a safetensors file"):
        SafeFile(path)


def test_no_file_and_no_tensor(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        SafeFile(tmp_path / "x")
    (tmp_path / "e").touch()
    with pytest.raises(InputError, match="is empty"):
        SafeFile(tmp_path / "e")
    write_safe(tmp_path / "w", {"a": torch.ones(1)}, {})
    with pytest.raises(InputError, match="no tensor 'b'"):
        SafeFile(tmp_path / "w").read("b")


def test_unaligned_tensors_are_read(tmp_path):
    values = torch.tensor([1.5, -2.0])
    data = b"x" + values.numpy().tobytes()
    header = {"u": entry("U8", (1,), (0, 1)), "f": entry("F32", (2,), (1, 9))}
    assert torch.equal(SafeFile(write_raw(tmp_path / "u", header, data)).read("f"), values)


def test_writing_to_what_was_read_leaves_the_file(tmp_path):
    write_safe(tmp_path / "w", {"a": torch.ones(3)}, {})
    SafeFile(tmp_path / "w").read("a").zero_()
    assert torch.equal(SafeFile(tmp_path / "w").read("a"), torch.ones(3))


def test_a_dtype_that_is_not_held(tmp_path):
    with pytest.raises(InputError, match=r"complex64"):
        write_safe(tmp_path / "c", {"c": torch.ones(1, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_sentence_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "w.safetensors"
    write_safe(path, {"a": torch.ones(3)}, {})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(InputError, match=r"w\.safetensors cannot be written: File too large"):
            write_safe(path, {"a": torch.ones(30_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_whole(tmp_path / "none" / "x", [b"a"])


def test_json_of_a_file():
    assert parse_json('{"a": [1]}', "x") == {"a": [1]}
    with pytest.raises(InputError, match="names 'b' twice"):
        parse_json('{"a": {"b": 1, "b": 2}}', "x")


def test_fingerprints_tell_apart_what_differs_at_an_end(tmp_path):
    def made(values):
        write_safe(tmp_path / "f", {"a": values}, {})
        (tmp_path / "g").write_bytes((tmp_path / "f").read_bytes())
        assert SafeFile(tmp_path / "g").fingerprint() == SafeFile(tmp_path / "f").fingerprint()
        return SafeFile(tmp_path / "f").fingerprint()

    base, last = torch.zeros(5000), torch.zeros(5000)
    last[-1] = 1
    assert made(base) != made(last)
    assert safefile.PART not in {path.suffix for path in tmp_path.iterdir()}
