"""Generated graphs: a contextual stochastic block model whose nodes carry words, the bench's data without a download.

Reconstruction: block models with features are the usual test bed; words in the place of Gaussian features let the
same sources of uncertainty be planted as on citation networks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Arrays = dict[str, NDArray[Any]]


def generate_csbm(
    generator: np.random.Generator,
    *,
    nodes: int = 1000,
    classes: int = 4,
    degree: float = 4.0,
    homophily: float = 0.85,
    words: int = 600,
    topic_words: int = 60,
    words_per_node: float = 18.0,
    topic_share: float = 0.4,
    train_per_class: int = 20,
    val: int = 200,
) -> Arrays:
    """Return a graph drawn from a contextual stochastic block model.

    Each of ``nodes * degree / 2`` edges joins a uniform node to one of its own class with probability ``homophily``,
    else to one of another class; loops and repeats are dropped. Every class has ``topic_words`` words of its own. A
    node has each topic word of its class and each other word with probabilities whose expected counts are
    ``topic_share`` and the rest of ``words_per_node``.

    Args:
        generator: Source of every draw.
        nodes: Number of nodes N; classes are as even as can be.
        classes: Number of classes.
        degree: Mean degree before repeats are dropped.
        homophily: Probability of an edge within a class, from 0 to 1.
        words: Number of words F.
        topic_words: Words that are a class's own.
        words_per_node: Mean number of words of a node.
        topic_share: Part of them that are topic words of the node's class.
        train_per_class: Labelled nodes of each class.
        val: Validation nodes; the rest are test nodes.

    Returns:
        The arrays of :func:`steelyard.data.graph_arrays`: ``x`` float32 (N, F) of 0 and 1, ``edge_index`` (2, E), ``y``
        and the three masks.

    Raises:
        InputError: The sizes do not fit each other.
    """
    _check(nodes, classes, homophily, words, topic_words, train_per_class, val)
    y = generator.permutation(np.arange(nodes) % classes)
    topic, other = (
        topic_share * words_per_node / topic_words,
        (1 - topic_share) * words_per_node / (words - topic_words),
    )
    own = np.arange(words)[None, :] // topic_words == y[:, None]
    x = generator.random((nodes, words)) < np.where(own, topic, other)
    return {
        "x": x.astype(np.float32),
        "edge_index": _edges(generator, y, int(nodes * degree / 2), homophily),
        "y": y.astype(np.int64),
        **_split(generator, y, train_per_class, val),
    }


def _check(
    nodes: int, classes: int, homophily: float, words: int, topic_words: int, train_per_class: int, val: int
) -> None:
    if classes < 2 or nodes < classes * (train_per_class + 2) + val:
        raise InputError(
            f"nodes must be at least classes * (train_per_class + 2) + val for 2 classes or more, got {nodes} nodes "
            f"and {classes} classes"
        )
    if not 0 <= homophily <= 1:
        raise InputError(f"homophily must be from 0 to 1, got {homophily}")
    if not 1 <= topic_words * classes <= words:
        raise InputError(f"words must be at least topic_words * classes, got {words} for {topic_words} * {classes}")


def _edges(generator: np.random.Generator, y: NDArray[Any], count: int, homophily: float) -> NDArray[np.int64]:
    """Return (2, E): both directions of every edge, sorted."""
    nodes, classes = len(y), int(y.max()) + 1
    source = generator.integers(nodes, size=count)
    within = generator.random(count) < homophily
    shift = np.where(within, 0, generator.integers(1, classes, size=count))
    wanted = (y[source] + shift) % classes
    order, sizes = np.argsort(y, kind="stable"), np.bincount(y, minlength=classes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    target = order[starts[wanted] + (generator.random(count) * sizes[wanted]).astype(np.int64)]
    source, target = source[source != target], target[source != target]
    keys = np.unique(np.concatenate([source * nodes + target, target * nodes + source]))
    return np.stack([keys // nodes, keys % nodes])


def _split(generator: np.random.Generator, y: NDArray[Any], per_class: int, val: int) -> Arrays:
    order = generator.permutation(len(y))
    train = np.concatenate([order[y[order] == kind][:per_class] for kind in range(int(y.max()) + 1)])
    rest = order[~np.isin(order, train)]
    masks = {}
    for name, chosen in (("train_mask", train), ("val_mask", rest[:val]), ("test_mask", rest[val:])):
        masks[name] = np.zeros(len(y), dtype=bool)
        masks[name][chosen] = True
    return masks
