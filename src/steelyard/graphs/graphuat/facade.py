"""Student and attribution in one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from torch import nn

from steelyard.errors import InputError
from steelyard.graphs.graphuat.attribution import Attributor, Progress, Settings
from steelyard.graphs.graphuat.core import SOURCES
from steelyard.graphs.graphuat.explanation import UncertaintyAttribution
from steelyard.graphs.graphuat.student import GraphUATStudent


class GraphUAT:
    """GraphUAT of one trained node classifier: fit the student on a graph, then ask about its nodes.

    Args:
        teacher: Trained module ``(x, edge_index[, edge_weight])`` that returns logits (N, C).
        student: ``"evidential"``: a :class:`GraphUATStudent`; ``"none"``: probes on the teacher's own entropy; or a
            :class:`GraphUATStudent` of your own settings, which :meth:`fit` fits.
        seed: Of the student and of the draws.

    Raises:
        InputError: There is no such student.
    """

    def __init__(
        self, teacher: nn.Module, student: Literal["evidential", "none"] | GraphUATStudent = "evidential", seed: int = 0
    ) -> None:
        if not (isinstance(student, GraphUATStudent) or student in ("evidential", "none")):
            raise InputError(f"student must be 'evidential', 'none' or a GraphUATStudent, not {student!r}")
        self.teacher = teacher
        self.seed = seed
        self.student: GraphUATStudent | None
        if isinstance(student, GraphUATStudent):
            self.student = student
        else:
            self.student = GraphUATStudent(teacher, seed=seed) if student == "evidential" else None
        self._data: Any = None

    def fit(self, data: Any, train_mask: Any = None, progress: Progress | None = None) -> Self:
        """Fit the student on ``data``; arguments as in :meth:`GraphUATStudent.fit`."""
        if self.student is not None:
            self.student.fit(data, train_mask, progress)
        self._data = data
        return self

    def attribute(
        self,
        node_idx: Any,
        *,
        probes: Sequence[str] = SOURCES,
        reference: Any = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> UncertaintyAttribution:
        """Return the attributions of some nodes of the graph that :meth:`fit` saw.

        Args:
            node_idx: A node number, a sequence of them, or a mask.
            probes: Which of feature, structure, coverage.
            reference: Nodes to compare with; None takes validation nodes, up to 200.
            progress: Called with (nodes done, nodes).
            settings: ``hops``, ``fanout``, ``max_edges``, ``feature_method``, ``threshold``,
                ``coverage``; see :func:`attribute_uncertainty`.

        Raises:
            InputError: :meth:`fit` was not called, or an argument cannot be used.
        """
        if self._data is None:
            raise InputError("fit(data) must be called before attribute")
        on: Literal["student", "teacher"] = "teacher" if self.student is None else "student"
        made = Attributor(
            self.teacher,
            self._data,
            student=self.student,
            reference=reference,
            on=on,
            settings=Settings(tuple(probes), **{"seed": self.seed, **settings}),
        )
        return made.attribute(node_idx, progress=progress)
