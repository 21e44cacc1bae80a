"""The graphs: pinned bytes, licence and who is to be named."""

from __future__ import annotations

from steelyard.data.dataset import GITHUB_RAW, Dataset, MirrorFile, Pin, RemoteFile

_HETEROPHILOUS = f"{GITHUB_RAW}/yandex-research/heterophilous-graphs/a431395582e929d88271309716bea4fe24ce6318/data"
_YANDEX = "heterophilous-graphs, copyright 2023-present Yandex Research, MIT."
_PLANETOID = (
    "Yang, Cohen, Salakhutdinov (2016), Planetoid, copyright 2016 Zhilin Yang, MIT; graph from Sen et al. (2008), "
    "Collective Classification in Network Data."
)


def _planetoid(name: str, title: str, rows: int) -> Dataset:
    # In a mirror only: the source is pickles, which are never read here.
    return Dataset(name, title, "graphs", "MIT", _PLANETOID, rows, mirror=(MirrorFile(f"graphs/{name}/{name}.npz"),))


def _heterophilous(name: str, title: str, credit: str, rows: int, size: int, sha256: str) -> Dataset:
    return Dataset(
        name=name,
        title=title,
        room="graphs",
        licence="MIT",
        attribution=f"{credit}; {_YANDEX}",
        rows=rows,
        files=(RemoteFile(f"{name}.npz", f"{_HETEROPHILOUS}/{name}.npz", (Pin(sha256, size),)),),
        mirror=(MirrorFile(f"graphs/{name}/{name}.npz"),),
    )


GRAPH_SETS: tuple[Dataset, ...] = (
    _planetoid("cora", "Cora citation network with the Planetoid split", 2_708),
    _planetoid("citeseer", "CiteSeer citation network with the Planetoid split", 3_327),
    _heterophilous(
        "minesweeper",
        "Minesweeper grid graph (synthetic)",
        "Platonov et al. (2023)",
        10_000,
        135_045,
        "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
    ),
    _heterophilous(
        "tolokers",
        "Tolokers: crowd workers who shared tasks",
        "Platonov et al. (2023); from the Toloka worker graph",
        11_758,
        1_329_769,
        "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
    ),
    _heterophilous(
        "actor",
        "Actor co-occurrence network (also called film)",
        "Tang et al. (2009) and Pei et al. (2020), as packed by Platonov et al. (2023)",
        7_600,
        252_956,
        "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
    ),
    _heterophilous(
        "texas",
        "WebKB Texas web pages",
        "Craven et al. (1998) and Pei et al. (2020), as packed by Platonov et al. (2023)",
        183,
        28_586,
        "b164b99e6c3d43e4ab07488ec59bd8c815f90cbc1bd4cf425ce587d2b534d844",
    ),
    _heterophilous(
        "cornell",
        "WebKB Cornell web pages",
        "Craven et al. (1998) and Pei et al. (2020), as packed by Platonov et al. (2023)",
        183,
        30_515,
        "684c54ba3daa13b0ba1f04a3d6dd1b1175c1ae9bdeb982851fd4ff96d3aac298",
    ),
    _heterophilous(
        "wisconsin",
        "WebKB Wisconsin web pages",
        "Craven et al. (1998) and Pei et al. (2020), as packed by Platonov et al. (2023)",
        251,
        41_672,
        "2543c89838cfc75f737f7c4664cc1d097f8268602c20b2d1bd4f21407df9c074",
    ),
    _heterophilous(
        "chameleon_filtered",
        "Wikipedia chameleon pages without duplicates",
        "Rozemberczki et al. (2021), filtered by Platonov et al. (2023)",
        890,
        58_924,
        "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
    ),
    _heterophilous(
        "squirrel_filtered",
        "Wikipedia squirrel pages without duplicates",
        "Rozemberczki et al. (2021), filtered by Platonov et al. (2023)",
        2_223,
        208_215,
        "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
    ),
)
