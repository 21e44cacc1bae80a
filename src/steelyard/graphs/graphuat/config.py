"""The settings of the student, the probes and a weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    Up to ``learning_rate`` they are those of ``GraphUATStudent``, up to ``max_edges`` those of
    ``attribute_uncertainty``; the rest say how an attribution is judged.
    """

    student: Literal["dirichlet"] = knob("d1", "dirichlet")
    loss: Literal["kl", "uce"] = knob("d2", "kl")
    strength: Literal["gaussian", "knn"] = knob("d3", "gaussian")
    tau: float = knob("d3", 8.0, gt=0)
    budget: float = knob("d3", 20.0, gt=0)
    backbone: Literal["gcn"] = knob("d12", "gcn")
    hidden: int = knob("d12", 64, ge=1)
    layers: int = knob("d12", 2, ge=1)
    epochs: int = knob("d12", 300, ge=1)
    learning_rate: float = knob("d12", 1e-2, gt=0)
    feature_method: Literal["gradient", "integrated", "neighbour_mean"] = knob("d5", "gradient")
    hops: int = knob("d6", 1, ge=1)
    threshold: float = knob("d7", 1e-3, ge=0)
    coverage: Literal["left", "epistemic"] = knob("d8", "left")
    rule: Literal["z-scores", "raw scores"] = knob("d9", "z-scores")
    reference: Literal["validation nodes", "confident validation nodes"] = knob("d9", "validation nodes")
    reference_nodes: int = knob("d9", 200, ge=1)
    on: Literal["student", "teacher"] = knob("d1", "student")
    fanout: tuple[int, ...] | None = knob("d13", (32, 16))
    max_edges: int = knob("d13", 32, ge=1)
    target: Literal["teacher_entropy"] = knob("d10", "teacher_entropy")
    equal_counts: bool = knob("d11", True)
    per_group: int = knob("d14", 40, ge=1)
    extra_words: int = knob("d14", 60, ge=1)
    extra_edges: int = knob("d14", 4, ge=1)
    labels_left: int = knob("d14", 2, ge=1)
    teacher: Literal["gcn", "gat", "sage"] = knob("d15", "gcn")
    teacher_epochs: int = knob("d15", 200, ge=1)
    words_sum_to_one: bool = knob("d18", True)
    generated_nodes: int = knob("d16", 1000, ge=1)
    judged: int = knob("d17", 60, ge=1)
