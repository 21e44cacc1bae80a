"""The data sets that steelyard knows: where each comes from, its pinned bytes, its licence, and who is to be named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from steelyard.data.dataset import GITHUB_RAW, Dataset, MirrorFile, Pin, RemoteFile
from steelyard.data.graph_pins import GRAPH_SETS
from steelyard.data.irc_pins import IRC_COMMIT, IRC_FILES
from steelyard.data.skill_files import SKILL_FILES
from steelyard.errors import InputError, did_you_mean

__all__ = [
    "CACHE_VARIABLE",
    "DATASETS",
    "JAILBREAK_ARTIFACTS",
    "MIRROR_VARIABLE",
    "Dataset",
    "MirrorFile",
    "Origin",
    "Pin",
    "Progress",
    "RemoteFile",
    "lookup",
]

Origin = Literal["embedded", "mirror", "cache", "absent", "damaged"]
"""Where a data set lies: inside a package, in the mirror folder, in the cache, nowhere here, or here but spoilt."""

Progress = Callable[[str, int, int], None]
"""Called with (file name, bytes done, bytes in all) while a file is downloaded."""

MIRROR_VARIABLE = "STEELYARD_DATA_MIRROR"
CACHE_VARIABLE = "STEELYARD_DATA"


def _adult() -> Dataset:
    # The source is the UCI file, in which fields are separated by ", " and an empty line ends the file. Both states
    # that it is known in are pinned: with a header row (whose last name is "Salary"), and UCI's own without one. They
    # load to the same table.
    url = f"{GITHUB_RAW}/vrizawahyu22/adult-dataset/177cebb7401e583c4b6be6e0d060d8035c63b065/adult.data"
    with_header = Pin("7974b56173c9e296a971a3881558f1cf56f19bd7faa18d226136f319339efcaa", 3_974_475)
    without_header = Pin("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 3_974_305)
    return Dataset(
        name="adult",
        title="UCI Adult (census income), training part",
        room="optim",
        licence="CC BY 4.0",
        attribution="Becker, B. & Kohavi, R. (1996). Adult. UCI Machine Learning Repository. CC BY 4.0.",
        rows=32_561,
        files=(RemoteFile("adult.data", url, (with_header, without_header)),),
        mirror=(MirrorFile("optim/adult/adult.csv.gz"),),
    )


def _mnist_t10k() -> Dataset:
    base = f"{GITHUB_RAW}/kelas/mnist/283b387221ab46655e600cfcc25d843bb14292b9"
    images, labels = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
    # Both gzip wrappers in which the images go round are pinned, the repository's and that of the first distribution;
    # they are equally long and hold the same images.
    images_pins = (
        Pin("167310007f03058885c7e95e6c0b19c20de5c7fd3031f4cbdadc9014a523d80b", 1_648_877),
        Pin("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    )
    labels_pin = Pin("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542)
    return Dataset(
        name="mnist_t10k",
        title="MNIST test set: 10,000 28x28 digits",
        room="optim",
        licence="CC BY-SA 3.0",
        attribution="MNIST, copyright Yann LeCun and Corinna Cortes, derived from NIST data; CC BY-SA 3.0.",
        rows=10_000,
        files=(
            RemoteFile(images, f"{base}/{images}", images_pins),
            RemoteFile(labels, f"{base}/{labels}", (labels_pin,)),
        ),
        mirror=(MirrorFile(f"optim/mnist_t10k/{images}"), MirrorFile(f"optim/mnist_t10k/{labels}")),
    )


def _stories260k() -> Dataset:
    base = f"{GITHUB_RAW}/DaveBben/esp32-llm/934dab4d242d259abd88678488ea3b62d4fca601/data"
    model = Pin("b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696", 1_056_540)
    tokenizer = Pin("037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312", 6_227)
    return Dataset(
        name="stories260k",
        title="stories260K: a genuine float32 Llama language model (dim 64, 5 layers, 8 heads, 4 kv heads, vocab 512) "
        "with its tokenizer",
        room="quant",
        licence="MIT",
        attribution="Andrej Karpathy, llama2.c / tinyllamas, MIT.",
        rows=1,
        files=(
            RemoteFile("stories260K.bin", f"{base}/stories260K.bin", (model,)),
            RemoteFile("tok512.bin", f"{base}/tok512.bin", (tokenizer,)),
        ),
        mirror=(MirrorFile("quant/stories260k/stories260K.bin"), MirrorFile("quant/stories260k/tok512.bin")),
    )


def _wikitext2() -> Dataset:
    base = f"{GITHUB_RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2"
    valid = Pin("f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 1_121_681)
    test = Pin("d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 1_256_449)
    return Dataset(
        name="wikitext2",
        title="WikiText-2 validation and test text",
        room="quant",
        licence="CC BY-SA 3.0",
        attribution="Merity, Xiong, Bradbury, Socher (2016), WikiText-2; text by Wikipedia contributors, CC BY-SA 3.0.",
        rows=8_118,
        files=(
            RemoteFile("valid.txt", f"{base}/valid.txt", (valid,)),
            RemoteFile("test.txt", f"{base}/test.txt", (test,)),
        ),
        mirror=(MirrorFile("quant/wikitext2/valid.txt"), MirrorFile("quant/wikitext2/test.txt")),
    )


def _digits() -> Dataset:
    return Dataset(
        name="digits",
        title="Handwritten digits, 8x8 pixels (inside scikit-learn)",
        room="optim",
        licence="CC BY 4.0",
        attribution="Alpaydin, E. & Kaynak, C. (1998). Optical Recognition of Handwritten Digits. UCI. CC BY 4.0.",
        rows=1_797,
    )


def _breast_cancer() -> Dataset:
    return Dataset(
        name="breast_cancer",
        title="Breast cancer Wisconsin, diagnostic (inside scikit-learn)",
        room="optim",
        licence="CC BY 4.0",
        attribution="Wolberg, Mangasarian, Street & Street (1995). Breast Cancer Wisconsin. UCI. CC BY 4.0.",
        rows=569,
    )


def _human_contrast() -> Dataset:
    base = (
        f"{GITHUB_RAW}/rgeirhos/object-recognition/4679f7c60665bd9fb274c6c4372fc0fa34b51485/raw-data/"
        "contrast-experiment"
    )
    sessions = {
        "01": Pin("557debfaccf16cdf2094074d24200274937c385918328ee30dcd9a2ba992ce28", 124_734),
        "02": Pin("4e5673cc04092f1f569d13427d6e83de5bce7cdca06f5d13b965af84b1ce9020", 124_398),
        "03": Pin("c131ea636a5d5a8fe9aa51100acd22574816d13dcdd020342ed4534c9a6c0bc3", 124_371),
        "05": Pin("90e5170c99bedc18e35bfd789238c268ac65cc195949f568c38c2bb9181d56df", 124_271),
        "06": Pin("b943224670858954adb66ba25cbde818304e3f9be48a2c7e7dcebb5fe2d8706d", 124_615),
    }
    names = {subject: f"contrast-experiment_subject-{subject}_session_1.csv" for subject in sessions}
    return Dataset(
        name="human_contrast",
        title="Human responses and reaction times in 16-class object recognition, contrast experiment",
        room="nets",
        licence="CC BY 4.0",
        attribution="Geirhos, Janssen, Schütt, Rauber, Bethge, Wichmann (2017), Comparing deep neural networks against "
        "humans: object recognition when the signal gets weaker. CC BY 4.0.",
        rows=6_400,
        files=tuple(RemoteFile(name, f"{base}/{name}", (sessions[subject],)) for subject, name in names.items()),
        mirror=(MirrorFile("nets/human_object_recognition/contrast-experiment.csv.gz"),),
    )


def _from_mirror_alone(
    name: str, title: str, licence: str, attribution: str, rows: int, files: tuple[str, ...]
) -> Dataset:
    mirror = tuple(MirrorFile(f"guard/{name}/{file}") for file in files)
    return Dataset(name, title, "guard", licence, attribution, rows, mirror=mirror)


def _advbench() -> Dataset:
    return _from_mirror_alone(
        "advbench",
        "AdvBench harmful behaviours (requests only)",
        "MIT",
        "AdvBench: Zou, Wang, Carlini, Nasr, Kolter, Fredrikson (2023), MIT; this copy from AttnGCG-attack, copyright "
        "2024 asillycat, MIT.",
        513,
        ("harmful_behaviors.csv",),
    )


JAILBREAK_ARTIFACTS = {
    "GCG": {
        "vicuna-13b-v1.5": "GCG/white_box/vicuna-13b-v1.5.json",
        "llama-2-7b-chat-hf": "GCG/white_box/llama-2-7b-chat-hf.json",
        "gpt-3.5-turbo-1106": "GCG/transfer/gpt-3.5-turbo-1106.json",
        "gpt-4-0125-preview": "GCG/transfer/gpt-4-0125-preview.json",
    },
    **{
        attack: {
            model: f"{attack}/{kind}/{model}.json"
            for model in ("vicuna-13b-v1.5", "llama-2-7b-chat-hf", "gpt-3.5-turbo-1106", "gpt-4-0125-preview")
        }
        for attack, kind in (("PAIR", "black_box"), ("JBC", "manual"))
    },
}
"""Attack -> model attacked -> the file of artifacts, relative to the data set's folder."""


def _jailbreakbench() -> Dataset:
    return _from_mirror_alone(
        "jailbreakbench",
        "JailbreakBench attack artifacts: GCG, PAIR, JBC prompts (no answers) and the behaviours they target",
        "MIT",
        "Chao, Debenedetti, Robey, Andriushchenko et al. (2024), JailbreakBench; copyright 2024 JailbreakBench Team "
        "and artifacts authors, MIT.",
        95,
        tuple(file for models in JAILBREAK_ARTIFACTS.values() for file in models.values()),
    )


def _certified_llm_safety() -> Dataset:
    return _from_mirror_alone(
        "certified_llm_safety",
        "Safe and harmful prompts, train/test (erase-and-check)",
        "MIT",
        "Kumar, Agarwal, Srinivas, Li, Feizi, Lakkaraju (2023), Certifying LLM Safety against Adversarial Prompting; "
        "copyright 2024 Aounon Kumar, MIT.",
        1_033,
        ("harmful_prompts_train.txt", "harmful_prompts_test.txt", "safe_prompts_train.txt", "safe_prompts_test.txt"),
    )


def _smoothllm_gcg() -> Dataset:
    return _from_mirror_alone(
        "smoothllm_gcg",
        "GCG suffixes for Vicuna and Llama-2 on 10 AdvBench goals",
        "MIT",
        "Robey, Wong, Hassani, Pappas (2023), SmoothLLM; copyright 2023 Alex Robey, MIT.",
        19,
        ("vicuna.json", "llama2.json"),
    )


def _xstest() -> Dataset:
    url = f"{GITHUB_RAW}/paul-rottger/exaggerated-safety/d7bb5bd738c1fcbc36edd83d5e7d1b71a3e2d84d/xstest_prompts.csv"
    pin = Pin("11783fb294ed017473ee53c207d71f2161c7672c8d0b037501e78387f801cb5a", 38_719)
    return Dataset(
        name="xstest",
        title="XSTest v2 prompts: 250 safe, 200 unsafe contrasts",
        room="guard",
        licence="CC BY 4.0",
        attribution="Röttger, Kirk, Vidgen, Attanasio, Bianchi, Hovy (2024), XSTest. CC BY 4.0.",
        rows=450,
        files=(RemoteFile("xstest_prompts.csv", url, (pin,)),),
        mirror=(MirrorFile("guard/xstest/xstest_prompts.csv"),),
    )


def _ifeval() -> Dataset:
    url = (
        f"{GITHUB_RAW}/UCSB-NLP-Chang/SemanticSmooth/de23d1eca5db6c2e9d65871a3db1ce30892b9fb4/data/"
        "google-instruction-following/full_input_data.jsonl"
    )
    pin = Pin("86ea91641ee9e6b891330f3f019e82c481abddbdea5945106df1dfe59757fbc2", 207_112)
    return Dataset(
        name="ifeval",
        title="IFEval: prompts with mechanically checkable instructions",
        room="guard",
        licence="Apache-2.0",
        attribution="Zhou, Lu, Mishra, Brahma, Basu, Luan, Zhou, Hou (2023), Instruction-Following Evaluation for "
        "Large Language Models; Google Research, Apache-2.0 (copy from SemanticSmooth, MIT).",
        rows=541,
        files=(RemoteFile("full_input_data.jsonl", url, (pin,)),),
        mirror=(MirrorFile("guard/ifeval/ifeval_input_data.jsonl"),),
    )


def _truthfulqa() -> Dataset:
    # The source keeps 813 questions in one file, behind a byte-order mark, and four in another; the mirror joins them.
    # The second file is pinned with and without such a mark. All load to the same rows.
    base = f"{GITHUB_RAW}/frankxwang/probing-experiments/b7eb5a9f55e266503b18778bd3b9c1c6b314aea1"
    most = Pin("78c8a6b52e84bc2ece1a6ef45739c58e5dcb5fb891f3dfbf458835b24a518795", 473_618)
    last = (
        Pin("17b8588373ed19c9c4c0f38d58a9a068a01b100c15fa90458e5b60d611bb77cb", 2_688),
        Pin("237f449c714c1299d60256a97bb5467c24f4d719c89cf6c3e772fa550dff4965", 2_691),
    )
    return Dataset(
        name="truthfulqa",
        title="TruthfulQA: questions with true and false reference answers",
        room="guard",
        licence="Apache-2.0",
        attribution="Lin, Hilton, Evans (2022), TruthfulQA. Apache-2.0.",
        rows=817,
        files=(
            RemoteFile("TruthfulQA.csv", f"{base}/TruthfulQA.csv", (most,)),
            RemoteFile("TruthfulQATest.csv", f"{base}/TruthfulQATest.csv", last),
        ),
        mirror=(MirrorFile("guard/truthfulqa/TruthfulQA.csv"),),
    )


def _halueval_qa() -> Dataset:
    base = f"{GITHUB_RAW}/RUCAIBox/HaluEval/b7253db3cdaa0ab2c382f92b26b390109174f77e/generation/qa"
    one = Pin("a69227a32d03a0f034db10de62a92cdfd0e57c305f72a9f8c48e0edab74e44f6", 303_835)
    multi = Pin("61af08bcde256cecd303413f078650f3efaf70600f6a599f29cade31eacd2f5b", 309_512)
    return Dataset(
        name="halueval_qa",
        title="HaluEval QA: right and hallucinated answers with knowledge, 2 x 500",
        room="guard",
        licence="MIT",
        attribution="Li, Cheng, Zhao, Nie, Wen (2023), HaluEval; copyright 2020 RUCAIBox, MIT (questions from "
        "HotpotQA, CC BY-SA 4.0).",
        rows=1_000,
        files=(
            RemoteFile("qa_one-turn_data.json", f"{base}/qa_one-turn_data.json", (one,)),
            RemoteFile("qa_multi-turn_data.json", f"{base}/qa_multi-turn_data.json", (multi,)),
        ),
        mirror=(
            MirrorFile("guard/halueval_qa/qa_one-turn.jsonl"),
            MirrorFile("guard/halueval_qa/qa_multi-turn.jsonl"),
        ),
    )


def _nq_open() -> Dataset:
    url = (
        f"{GITHUB_RAW}/google-research-datasets/natural-questions/fb26a3073b1fe636c97302890a27b491d6530130/"
        "nq_open/NQ-open.dev.jsonl"
    )
    pin = Pin("f15567f38099f3615f5b8a685c0aef449c11ad90d3da3735e8d1b98115b40616", 391_316)
    return Dataset(
        name="nq_open",
        title="NQ-open development set",
        room="guard",
        licence="CC BY-SA 3.0",
        attribution="Kwiatkowski et al. (2019), Natural Questions; Lee, Chang, Toutanova (2019), open version. Google, "
        "CC BY-SA 3.0.",
        rows=3_610,
        files=(RemoteFile("NQ-open.dev.jsonl", url, (pin,)),),
        mirror=(MirrorFile("guard/nq_open/NQ-open.dev.jsonl"),),
    )


def _xquad_en() -> Dataset:
    url = f"{GITHUB_RAW}/google-deepmind/xquad/7d30520c717524000f0d9d2f9c10a069acd9d285/xquad.en.json"
    pin = Pin("e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29", 609_383)
    return Dataset(
        name="xquad_en",
        title="XQuAD English: 240 SQuAD paragraphs, 1,190 questions",
        room="guard",
        licence="CC BY-SA 4.0",
        attribution="Artetxe, Ruder, Yogatama (2020), XQuAD; based on SQuAD 1.1 (Rajpurkar et al. 2016). CC BY-SA 4.0.",
        rows=1_190,
        files=(RemoteFile("xquad.en.json", url, (pin,)),),
        mirror=(MirrorFile("guard/xquad_en/xquad.en.json"),),
    )


def _irc_disentanglement() -> Dataset:
    base = f"{GITHUB_RAW}/jkkummerfeld/irc-disentanglement/{IRC_COMMIT}/data"
    return Dataset(
        name="irc_disentanglement",
        title="Ubuntu IRC with human reply links, dev and test",
        room="agents",
        licence="CC BY 4.0",
        attribution="Kummerfeld, Gouravajhala, Peper, Athreya, Gunasekara, Ganhotra, Patel, Polymenakos, Lasecki "
        "(ACL 2019), A Large-Scale Corpus for Conversation Disentanglement. CC BY 4.0; chat from the Ubuntu IRC logs.",
        rows=35_294,
        files=tuple(RemoteFile(name, f"{base}/{name}", (Pin(digest, size),)) for name, size, digest in IRC_FILES),
        mirror=tuple(MirrorFile(f"agents/irc_disentanglement/{name}") for name, _, _ in IRC_FILES),
    )


def _skills(name: str, title: str, licence: str, attribution: str) -> Dataset:
    # In a mirror only: package links or temporary paths were taken out of some files.
    mirror = tuple(MirrorFile(f"agents/{name}/{file}") for file in SKILL_FILES[name])
    rows = sum(file.endswith("/SKILL.md") for file in SKILL_FILES[name])
    return Dataset(name, title, "agents", licence, attribution, rows, mirror=mirror)


_SKILL_SETS = (
    _skills(
        "kdense_skills",
        "Scientific SKILL.md library with 23 worked multi-skill tasks",
        "MIT (collection, examples); each skill MIT, BSD or Apache-2.0 as stated in its front matter",
        'Claude Scientific Skills, copyright 2025 K-Dense Inc., MIT; per-skill licence in the "license" field of every '
        "SKILL.md.",
    ),
    _skills(
        "wshobson_skills",
        "SKILL.md library of a plugin collection for software work",
        "MIT",
        "wshobson/agents, copyright 2024 Seth Hobson, MIT.",
    ),
    _skills(
        "anthropic_skills",
        "SKILL.md files of anthropics/skills under Apache-2.0",
        "Apache-2.0",
        "anthropics/skills, Anthropic PBC, Apache-2.0 (per-skill LICENSE.txt).",
    ),
)


def _alfworld_games() -> Dataset:
    # In a mirror only: 874 of the official game files, packed into one.
    return Dataset(
        "alfworld_games",
        "ALFWorld text games, PDDL form: 600 train, 140 valid_seen, 134 valid_unseen",
        "policy",
        "MIT",
        "Shridhar, Yuan, Côté, Bisk, Trischler, Hausknecht (2021), ALFWorld, copyright 2020 Mohit Shridhar and others, "
        "MIT; game files as committed in lz-tool-skillopt, copyright 2026 Microsoft Corporation, MIT.",
        874,
        mirror=(MirrorFile("policy/alfworld_games/alfworld_games.json.xz"),),
    )


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        _adult(),
        _mnist_t10k(),
        _stories260k(),
        _wikitext2(),
        _human_contrast(),
        _advbench(),
        _jailbreakbench(),
        _xstest(),
        _certified_llm_safety(),
        _smoothllm_gcg(),
        _ifeval(),
        _truthfulqa(),
        _halueval_qa(),
        _nq_open(),
        _xquad_en(),
        *_SKILL_SETS,
        _irc_disentanglement(),
        *GRAPH_SETS,
        _alfworld_games(),
        _digits(),
        _breast_cancer(),
    )
}


def lookup(name: str) -> Dataset:
    """Return the data set called ``name``.

    Raises:
        InputError: There is none; the message suggests the closest name.
    """
    if name not in DATASETS:
        known = ", ".join(sorted(DATASETS))
        raise InputError(f"unknown data set '{name}'; known are {known}.{did_you_mean(name, DATASETS)}")
    return DATASETS[name]
