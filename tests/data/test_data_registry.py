"""The registry, the mirror, the cache, and that source bytes and mirror bytes give the same arrays."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from steelyard import data
from steelyard.data import cache as cache_module
from steelyard.data.cache import obtain
from steelyard.data.registry import DATASETS, MirrorFile, Pin, lookup
from steelyard.errors import ChecksumError, DataMissingError, InputError

BODY = b"some bytes"


def test_every_remote_file_is_pinned():
    for dataset in DATASETS.values():
        assert dataset.title
        assert dataset.licence
        assert dataset.attribution
        assert dataset.rows > 0
        assert dataset.mirror or not dataset.files
        assert (dataset.embedded or dataset.mirror_only) == (dataset.size == 0)
        for file in dataset.files:
            assert re.fullmatch(r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/[0-9a-f]{40}(/[^/]+)+", file.url)
            assert all(re.fullmatch(r"[0-9a-f]{64}", pin.sha256) and pin.size > 0 for pin in file.pins)
            assert (file.sha256, file.size) == (file.pins[0].sha256, file.pins[0].size)


def alternatives(pattern):
    """Expand ``a.{b,c}.d``, which fnmatch does not know, to ``a.b.d`` and ``a.c.d``."""
    before, brace, rest = pattern.partition("{")
    inside, _, after = rest.partition("}")
    return [before + part + after for part in inside.split(",")] if brace else [pattern]


def test_the_mirror_agrees_with_the_registry(mirror):
    entries = {entry["name"]: entry for entry in json.loads((mirror / "index.json").read_text())["datasets"]}
    for dataset in DATASETS.values():
        if dataset.embedded:
            continue
        entry = entries[dataset.mirror[0].path.split("/")[1]]
        assert dataset.room == entry["room"]
        assert dataset.title == entry["title"] or dataset.name != entry["name"]  # a part has a title of its own
        assert (entry["licence"], entry["attribution"]) == (dataset.licence, dataset.attribution)
        sources = [
            f"*/{origin['repo']}/{origin['commit']}/{path}"
            for origin in entry["source"]
            for path in alternatives(origin["path"])
        ]
        for file in dataset.files:
            assert any(fnmatch.fnmatchcase(file.url, source) for source in sources)
        rows = {file["path"]: file.get("rows") for file in entry["files"]}
        counted = [rows[file.path] for file in dataset.mirror if rows[file.path] is not None]
        parallel = counted == [dataset.rows] * len(dataset.mirror)  # images and labels; else parts of one whole
        skills = sum(file.path.endswith("/SKILL.md") for file in dataset.mirror)  # a row of a skill set is a file
        assert skills == dataset.rows if skills else parallel or sum(counted) in (0, dataset.rows)


def test_the_docs_list_every_set_and_how_to_get_it():
    page = (Path(__file__).parents[2] / "docs" / "bring-your-own-data.md").read_text(encoding="utf-8")
    for dataset in DATASETS.values():
        source = "embedded" if dataset.embedded else "mirror only" if dataset.mirror_only else "download"
        row = next(line for line in page.splitlines() if line.startswith("|") and f"`{dataset.name}`" in line)
        assert row.endswith(f"| {source} |")
        assert re.search(rf"\b{dataset.rows:,}\b", row)


def test_an_unknown_name_is_corrected():
    with pytest.raises(InputError, match=r"unknown data set 'adlut'.*Did you mean 'adult'\?"):
        lookup("adlut")


def test_embedded_sets_have_no_files():
    assert data.fetch("digits") == data.Located("embedded", ())
    with pytest.raises(InputError, match="inside scikit-learn"):
        data.path("breast_cancer")
    with pytest.raises(InputError, match="inside scikit-learn"):
        data.locate("digits")


def test_digits():
    pixels, labels = data.digits()
    assert (pixels.shape, pixels.dtype, pixels.min(), pixels.max()) == ((1797, 64), np.float64, 0, 16)
    assert labels.dtype == np.int64
    assert labels.shape == (1797,)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_breast_cancer():
    table = data.breast_cancer()
    assert table.n_rows == 569
    assert len(table.columns) == 31
    assert [name for name in table.columns if not table.is_numeric(name)] == ["diagnosis"]
    names, counts = np.unique(table.column("diagnosis"), return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {"benign": 357, "malignant": 212}
    assert table.column("mean radius")[0] == 17.99


def test_importing_the_floor_is_light():
    heavy = "{'sklearn', 'pyarrow', 'pandas', 'polars', 'torch', 'scipy', 'rich', 'typer', 'urllib.request'}"
    program = f"import sys, steelyard.data; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the mirror ------------------------------------------------------------------------------------------------------


def make_mirror(folder, body=BODY, digest=None):
    (folder / "optim" / "toy").mkdir(parents=True)
    (folder / "optim" / "toy" / "toy.gz").write_bytes(body)
    entry = {"path": "optim/toy/toy.gz", "sha256": digest or hashlib.sha256(body).hexdigest()}
    (folder / "index.json").write_text(json.dumps({"datasets": [{"name": "toy", "files": [entry]}]}))
    return folder


@pytest.fixture
def mirrored(source, cache, toy, tmp_path, monkeypatch):
    """A toy data set, and a way to point at a mirror."""
    dataset = toy(source.body("/a", BODY), BODY, mirror=(MirrorFile("optim/toy/toy.gz"),))
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(tmp_path / "mirror"))
    return dataset


def test_the_mirror_is_searched_first(mirrored, tmp_path, source):
    make_mirror(tmp_path / "mirror")
    found = obtain(mirrored)
    assert found == data.Located("mirror", (tmp_path / "mirror/optim/toy/toy.gz",))
    assert cache_module.state_of(mirrored) == "mirror"
    assert source.asked == []


def test_a_mirror_need_not_hold_everything(mirrored, tmp_path, source):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "index.json").write_text('{"datasets": []}')
    assert obtain(mirrored).origin == "cache"
    assert source.asked == ["/a"]


def test_a_mirrored_file_with_other_bytes_is_refused(mirrored, tmp_path, source):
    make_mirror(tmp_path / "mirror", digest="0" * 64)
    with pytest.raises(ChecksumError, match=r"toy\.gz has SHA-256 .* where the mirror's index\.json says 000000000000"):
        obtain(mirrored)
    assert cache_module.state_of(mirrored) == "damaged"
    assert source.asked == []


def test_a_listed_file_that_is_not_there(mirrored, tmp_path):
    (make_mirror(tmp_path / "mirror") / "optim/toy/toy.gz").unlink()
    with pytest.raises(DataMissingError, match=r"toy\.gz is listed in the mirror's index but cannot be read"):
        obtain(mirrored)


def test_no_mirror_folder(mirrored):
    with pytest.raises(DataMissingError, match=r"STEELYARD_DATA_MIRROR is set to .* unset it"):
        obtain(mirrored)


@pytest.mark.parametrize("text", ["", "[]", '{"datasets": 3}', '{"datasets": [{"files": [{}]}]}', "\xff"])
def test_an_index_that_is_none(mirrored, tmp_path, text):
    make_mirror(tmp_path / "mirror")
    (tmp_path / "mirror" / "index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataMissingError, match=r"does not list files with their checksums"):
        obtain(mirrored)


# --- the cache -------------------------------------------------------------------------------------------------------


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path))
    assert cache_module.cache_folder() == tmp_path
    monkeypatch.delenv("STEELYARD_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert cache_module.cache_folder() == tmp_path / "share" / "steelyard" / "data"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_module.cache_folder() == tmp_path / ".local" / "share" / "steelyard" / "data"


def test_listing_fetching_and_finding(source, cache, toy, monkeypatch):
    dataset = toy(source.body("/a", BODY), BODY)
    monkeypatch.setitem(DATASETS, "toy", dataset)
    assert {d.name: where for d, where in data.datasets()}["toy"] == "absent"
    with pytest.raises(DataMissingError, match="steelyard data fetch toy"):
        data.path("toy")
    assert data.fetch("toy").origin == "cache"
    assert data.path("toy") == cache / "optim" / "toy"
    states = {d.name: where for d, where in data.datasets()}
    assert (states["toy"], states["digits"]) == ("cache", "embedded")


# --- source bytes and mirror bytes give the same arrays ---------------------------------------------------------------


def serve_as_source(monkeypatch, source, name, bodies):
    """Register ``name`` with its real pins, but at the local source."""
    real = lookup(name)
    files = [
        dataclasses.replace(file, url=source.body(f"/{file.name}", body))
        for file, body in zip(real.files, bodies, strict=True)
    ]
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(real, files=tuple(files)))


@pytest.fixture
def from_mirror(mirror, monkeypatch):
    """The arrays as the mirror gives them, read before the source takes its place."""
    with monkeypatch.context() as patch:
        patch.setenv("STEELYARD_DATA_MIRROR", str(mirror))
        return data.adult(), data.mnist_t10k()


@pytest.mark.parametrize("header", [True, False])
def test_adult_from_source_and_mirror(from_mirror, cache, source, monkeypatch, adult_source, header):
    body = adult_source if header else adult_source.partition(b"\n")[2]
    assert hashlib.sha256(body).hexdigest() == lookup("adult").files[0].pins[0 if header else 1].sha256
    serve_as_source(monkeypatch, source, "adult", [body])
    fetched, mirrored = data.adult(), from_mirror[0]
    assert source.asked == ["/adult.data"]
    assert list(fetched.columns) == list(mirrored.columns)
    for name, column in mirrored.columns.items():
        assert fetched.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(fetched.columns[name], column)


def test_mnist_from_source_and_mirror(from_mirror, cache, source, monkeypatch, mnist_source):
    bodies = [mnist_source("t10k-images-idx3-ubyte"), mnist_source("t10k-labels-idx1-ubyte")]
    for file, body in zip(lookup("mnist_t10k").files, bodies, strict=True):
        assert Pin(hashlib.sha256(body).hexdigest(), len(body)) in file.pins
    serve_as_source(monkeypatch, source, "mnist_t10k", bodies)
    for fetched, mirrored in zip(data.mnist_t10k(), from_mirror[1], strict=True):
        assert fetched.dtype == mirrored.dtype == np.uint8
        np.testing.assert_array_equal(fetched, mirrored)


def test_what_adult_holds(real_data):
    table = real_data[0]
    assert table.n_rows == 32_561
    assert next(iter(table.columns)) == "age"
    assert list(table.columns)[-1] == "income"
    numeric = {name for name in table.columns if table.is_numeric(name)}
    assert numeric == {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}
    assert not any(np.isnan(table.column(name)).any() for name in numeric)
    missing = {name: int((table.column(name) == "").sum()) for name in set(table.columns) - numeric}
    assert {name: n for name, n in missing.items() if n} == {
        "workclass": 1836,
        "occupation": 1843,
        "native-country": 583,
    }
    labels, counts = np.unique(table.column("income"), return_counts=True)
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == {"<=50K": 24720, ">50K": 7841}
    encoded = data.encode_features(table, exclude=("race", "sex", "relationship", "income"))
    one_hot = [name for name in encoded.names if "=" in name and "(missing)" not in name]
    assert len(one_hot) == 8 + 16 + 7 + 14 + 41


def test_what_mnist_holds(real_data):
    images, labels = real_data[1]
    assert images.shape == (10_000, 28, 28)
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert images.max() == 255
    assert images[:, 0, 0].max() == 0
