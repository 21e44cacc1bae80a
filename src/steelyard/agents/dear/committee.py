"""Five weak classifiers of handwritten digits as debaters: real beliefs and real errors, a modelled social response.

Data: scikit-learn's bundled digits, permuted once; 150 to fit the classifiers, 750 to train a controller on, 897 to
test. Ties in predicted probabilities (nearest neighbours and trees have many) are broken by the episode's permutation,
and the options are renamed per episode. Reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from steelyard.agents.dear.episodes import Episodes, Floats, Ints, argmax_by, begin, random_order, relabel_options
from steelyard.agents.dear.recorded import choose_items
from steelyard.agents.dear.simulator import SocialAgents, mean_in_any_order, stated_confidence
from steelyard.data.embedded import digits
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.rng import generator as stream

Split = Literal["controller", "test"]

CLASSIFIERS = ("naive Bayes", "logistic regression, C = 0.3", "9 nearest neighbours", "tree of depth 5",
               "logistic regression, C = 0.05")  # fmt: skip
_FIT, _CONTROLLER = 150, 750
_PIXELS = 12
_FLOOR = 1e-3  # added to every class probability
_ROOT = "dear committee"


class CommitteeAgents(SocialAgents):
    """Classifiers that debate about digits.

    Args:
        split: "controller" (750 images) or "test" (897); they share none.
        conformity: Pull of peers' answers, as in `SimAgents`.
        arguments: Argument channel.
        explore_scale: Gumbel scale of "explore".
        pixel_seed: Which 12 pixels each classifier sees. The draw decides how good they are.
    """

    def __init__(
        self,
        split: Split = "test",
        *,
        conformity: float = 3.5,
        arguments: bool = True,
        explore_scale: float = 0.8,
        pixel_seed: int = 0,
    ) -> None:
        super().__init__(len(CLASSIFIERS), 10, conformity=conformity, arguments=arguments, explore_scale=explore_scale)
        if split not in ("controller", "test"):
            raise InputError(f"split must be 'controller' or 'test', not {split!r}.")
        self.split = split
        self.pixel_seed = pixel_seed
        beliefs, labels = _beliefs_and_labels(pixel_seed)
        part = slice(0, _CONTROLLER) if split == "controller" else slice(_CONTROLLER, None)
        self.beliefs: Floats = beliefs[part]
        self.labels: Ints = labels[part]

    @property
    def size(self) -> int:
        """Number of images of the split."""
        return len(self.labels)

    def start(self, batch: int, generator: np.random.Generator, *, items: Sequence[int] | None = None) -> Episodes:
        """Return ``batch`` debates about the images numbered ``items``, or random ones (each once if they suffice)."""
        chosen = choose_items(batch, self.size, generator, items)
        logits = self.beliefs[chosen]
        tie = random_order(batch, self.n_options, generator)
        answers = argmax_by(logits, tie)
        plain = begin(
            answers,
            self.labels[chosen],
            self.n_options,
            generator,
            private=logits,
            items=chosen,
            confidence=stated_confidence(logits, answers),
            tie=tie,
        )
        return relabel_options(plain, random_order(batch, self.n_options, generator))

    def accuracies(self) -> Floats:
        """Return each classifier's expected accuracy on the split, float64 (5,): a tie among n best counts 1/n."""
        top = self.beliefs == self.beliefs.max(axis=2, keepdims=True)
        hit = np.take_along_axis(top, self.labels[:, None, None], axis=2)[..., 0]
        accuracy: Floats = (hit / top.sum(axis=2)).mean(axis=0)
        return accuracy


@lru_cache(maxsize=4)
def _beliefs_and_labels(pixel_seed: int) -> tuple[Floats, Ints]:
    """Return private logits (1647, 5, 10) and labels (1647,) of all images that no classifier was fitted on."""
    pixels, labels = digits()
    order = stream(_ROOT, "images", 0).permutation(len(labels))
    pixels, labels = pixels[order], labels[order]
    draw = stream(_ROOT, "pixels", pixel_seed)
    beliefs = []
    for classifier in _classifiers():
        columns = draw.permutation(pixels.shape[1])[:_PIXELS]
        classifier.fit(pixels[:_FIT, columns], labels[:_FIT])
        share = np.zeros((len(labels) - _FIT, 10))
        share[:, classifier.classes_] = classifier.predict_proba(pixels[_FIT:, columns])
        share += _FLOOR
        logits = 0.5 * np.log(share / share.sum(axis=1, keepdims=True))
        beliefs.append(logits - mean_in_any_order(logits)[:, None])
    stacked = np.stack(beliefs, axis=1)
    stacked.setflags(write=False)
    return stacked, labels[_FIT:]


def _classifiers() -> list[Any]:
    linear = require("sklearn.linear_model", "agents").LogisticRegression
    return [
        require("sklearn.naive_bayes", "agents").GaussianNB(var_smoothing=1e-2),
        linear(C=0.3, max_iter=2000),
        require("sklearn.neighbors", "agents").KNeighborsClassifier(9),
        require("sklearn.tree", "agents").DecisionTreeClassifier(max_depth=5, random_state=0),
        linear(C=0.05, max_iter=2000),
    ]
