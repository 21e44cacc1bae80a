"""How well each skill covers each feature of a task, for all skills at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.goskills.profile import Profile
from steelyard.agents.goskills.schema import Feature

Array = NDArray[np.float64]

COSINE_ZERO = 0.3  # cosine that covers nothing
COSINE_RANGE = 0.5  # from there to full cover


class CueIndex:
    """Which skills have a phrase among their cues.

    Args:
        profiles: The cues of the skills, in the order of the library.
    """

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.size = len(profiles)
        self._holders = inverted([profile.phrases for profile in profiles])
        self._unfit = inverted([profile.unfit for profile in profiles])

    def cover(self, features: Sequence[Feature], cosines: Array | None) -> Array:
        """Return how well skills cover features, (skills, features): 1 on a literal hit, else (cosine - .3) / .5 cut.

        A skill that a feature names is covered by that skill alone: a similar one is not what was asked for.

        Args:
            features: The features.
            cosines: Of every feature with every card, shape (features, skills); None: literal hits only.
        """
        cover: Array = np.zeros((self.size, len(features)))
        if cosines is not None:
            cover = np.clip((cosines.T - COSINE_ZERO) / COSINE_RANGE, 0.0, 1.0)
        for column, feature in enumerate(features):
            if feature.skills:
                cover[:, column] = 0.0
                cover[list(feature.skills), column] = 1.0
            for phrase in feature.phrases:
                cover[self._holders.get(phrase, []), column] = 1.0
        return cover

    def unfit(self, features: Sequence[Feature]) -> NDArray[np.bool_]:
        """Return which skills say that they are not for something that the features ask, shape (skills,)."""
        found = np.zeros(self.size, dtype=np.bool_)
        for feature in features:
            for phrase in feature.phrases:
                found[self._unfit.get(phrase, [])] = True
        return found


def inverted(sets: Sequence[Collection[str]]) -> dict[str, Any]:
    """Return phrase -> places of the sets that hold it, int64, ascending."""
    holders: dict[str, list[int]] = {}
    for place, phrases in enumerate(sets):
        for phrase in phrases:
            holders.setdefault(phrase, []).append(place)
    return {phrase: np.array(places, dtype=np.int64) for phrase, places in holders.items()}
