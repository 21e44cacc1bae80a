"""The reaction times: the source's session files and the mirror's joined file give the same table."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib

import numpy as np
import pytest

from steelyard import data
from steelyard.data.humans import load_human_contrast
from steelyard.data.registry import DATASETS, Pin, lookup
from steelyard.errors import InputError

HEADER = "subj,session,trial,rt,object_response,category,condition,imagename\n"


@pytest.fixture(scope="module")
def sessions(mirror):
    """The five files as the source has them, rebuilt from the mirror's joined one."""
    joined = gzip.decompress((mirror / lookup("human_contrast").mirror[0].path).read_bytes()).decode()
    header, *rows = joined.splitlines(keepends=True)
    subjects = ("01", "02", "03", "05", "06")
    return [
        (header + "".join(row for row in rows if row.startswith(f"subject-{subject},"))).encode()
        for subject in subjects
    ]


def test_source_and_mirror_give_the_same_table(sessions, mirror, cache, source, monkeypatch):
    real = lookup("human_contrast")
    for file, body in zip(real.files, sessions, strict=True):
        assert (Pin(hashlib.sha256(body).hexdigest(), len(body)),) == file.pins
    mirrored = load_human_contrast([mirror / real.mirror[0].path])
    local = [
        dataclasses.replace(file, url=source.body(f"/{file.name}", body))
        for file, body in zip(real.files, sessions, strict=True)
    ]
    monkeypatch.setitem(DATASETS, real.name, dataclasses.replace(real, files=tuple(local)))
    fetched = data.human_contrast()
    assert len(source.asked) == 5
    assert list(fetched.columns) == list(mirrored.columns)
    for name, column in mirrored.columns.items():
        assert fetched.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(fetched.columns[name], column)


def test_what_it_holds(mirror):
    table = load_human_contrast([mirror / lookup("human_contrast").mirror[0].path])
    assert table.n_rows == 6293
    assert len(set(table.column("subject").tolist())) == 5
    times, contrast, correct = (table.column(name) for name in ("reaction_time", "contrast", "correct"))
    assert 0 < times.min() < times.max() < 2
    levels = np.unique(contrast)
    assert levels.tolist() == [0.01, 0.03, 0.05, 0.1, 0.15, 0.3, 0.5, 1.0]
    medians = [round(float(np.median(times[contrast == level])), 4) for level in levels[::-1]]
    assert medians[:6] == [0.8122, 0.8181, 0.8176, 0.8338, 0.8497, 0.8592]  # as the second-hand source gives them
    accuracy = [correct[contrast == level].mean() for level in levels]
    assert accuracy[0] < 0.1 < 0.8 < accuracy[-1]


def test_trials_without_a_time_are_left_out(tmp_path):
    rows = [
        "s1,1,1,0.5,cat,cat,c100,a.png",
        "s1,1,2,NaN,na,cat,c05,b.png",
        "s1,1,3,0,dog,cat,c05,c.png",
        "s1,1,4,-1,dog,dog,c05,d.png",
        "s1,1,5,0.25,dog,cat,c05,e.png",
    ]
    path = tmp_path / "s.csv"
    path.write_text(HEADER + "\n".join(rows))
    table = load_human_contrast([path])
    assert table.column("reaction_time").tolist() == [0.5, 0.25]
    assert table.column("contrast").tolist() == [1.0, 0.05]
    assert table.column("correct").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("condition", ["50", "cx", "c0", "c101", "c-5"])
def test_another_experiments_conditions(tmp_path, condition):
    path = tmp_path / "s.csv"
    path.write_text(f"{HEADER}s1,1,1,0.5,cat,cat,{condition},a.png")
    with pytest.raises(InputError, match=r"is not a contrast|condition"):
        load_human_contrast([path])
