"""Words of the rules: verbs, nouns, file formats, and the light stem that lets singular meet plural."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache

from steelyard.agents.goskills.stopwords import content_words


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FORMATS = _words(
    "bam bed bib bibtex cif csv dcm dicom docx edf epub excel fasta fastq fcs gff gif gtf h5 h5ad hdf5 html ipynb jpeg "
    "jpg json jsonl latex loom markdown mmcif mol mol2 mp4 mzml netcdf nifti onnx parquet pdb pdf png pptx sbml sdf "
    "smiles sql sqlite svg tex tiff toml tsv txt vcf wav xlsx xml yaml yml zarr"
)
_ALIASES = {
    "excel": "xlsx",
    "bibtex": "bib",
    "latex": "tex",
    "dicom": "dcm",
    "jpeg": "jpg",
    "hdf5": "h5",
    "yml": "yaml",
}
VERBS = _words(
    "add aggregate align analyse analyze annotate apply assemble assess audit automate build calculate call catalog "
    "check classify clean cluster collect combine compare compile compose compute configure connect construct convert "
    "correct create debug define deploy derive describe design detect determine develop diagnose document download "
    "draft draw embed encode enrich estimate evaluate examine execute explain explore export extract fetch filter "
    "find fit fix forecast format generate identify implement import impute infer inspect install integrate interpret "
    "investigate label lint list load locate make map measure merge migrate mine model monitor normalise normalize "
    "optimise optimize parse perform plan plot predict prepare preprocess prioritize process produce profile project "
    "provide publish pull query rank read reconstruct record reduce refactor release remove render report retrieve "
    "review run sample save scan schedule score screen search select send set share simulate sort split store "
    "structure submit summarise summarize synthesise synthesize test tokenise track train transform translate triage "
    "trim tune update upload validate verify visualise visualize wrap write"
)
TAKING = _words("fetch import ingest load open parse read")  # verbs whose object is an input
ARTIFACTS = _words(
    "api app article benchmark brochure chart checklist dashboard database dataset design diagram document draft "
    "figure form graph heatmap index invoice letter manuscript map model network newsletter notebook paper "
    "pipeline plan plot poster presentation proposal protocol report schema script simulation slide spreadsheet "
    "summary table template test tree tutorial video website workflow"
)
_FORMAT = re.compile(r"\.?\b([A-Za-z][A-Za-z0-9]{1,7})\b")
_BREAK = re.compile(r"[.,;:!?()\[\]{}|/\n\u2013\u2014]+|\s-\s")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return a lower-cased word without the ending of a plural."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    return word


def stems(text: str) -> list[str]:
    """Return the stems of the words of ``text`` that are no stop words, in order."""
    return [stem(word) for word in content_words(text)]


def grams(text: str) -> list[str]:
    """Return the pairs of neighbouring stems of ``text``; punctuation parts them, stop words do not."""
    found = []
    for piece in _BREAK.split(text):
        words = stems(piece)
        found += [f"{one} {other}" for one, other in itertools.pairwise(words)]
    return found


def formats(text: str) -> list[str]:
    """Return the file formats that ``text`` names, one spelling each, in order of their first mention."""
    words = (match[1].lower() for match in _FORMAT.finditer(text))
    return list(dict.fromkeys(_ALIASES.get(word, word) for word in words if word in FORMATS))


def name_phrase(name: str) -> str:
    """Return the phrase that only the skill of this name holds."""
    return f"`{name.lower()}`"


def canonical_formats(names: Sequence[str]) -> frozenset[str]:
    """Return declared inputs or outputs in one spelling: ``.CSV`` and ``csv`` are one."""
    plain = (" ".join(name.lower().lstrip(".").split()) for name in names)
    return frozenset(_ALIASES.get(name, name) for name in plain if name)
