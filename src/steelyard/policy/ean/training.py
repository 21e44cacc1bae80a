"""Reinforcement learning of the small policy with a verifiable reward: GRPO, and what EAN and PAPO add to it.

One pass a batch, so that the ratio of new and old probabilities is 1 where the gradient is taken. A prompt's rollouts
share one forward pass, which is exact for answers of one token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.policy.ean.core import RATIO, Form, bounded_negative_loss, image_information_gain, mixed_ranking
from steelyard.policy.ean.toy_policy import ToyPolicy
from steelyard.policy.ean.world import CELLS, COLOURS, Items, blank, draw_items
from steelyard.policy.groups import standardise

STD_EPS = 1e-4
"""Added to a group's standard deviation, as TRL does."""
Data = Literal["all", "selected", "random_half"]
Ablation = Literal["saliency", "random", "blank"]


@dataclass(frozen=True)
class Settings:
    """How a policy is trained.

    Attributes:
        updates: Steps of the optimiser.
        prompts: Questions an update.
        rollouts: Answers a question.
        learning_rate: Of AdamW without weight decay.
        data: Fresh items at every update, or drawn again and again from a pool: its half by mixed ranking of the
            scaled gain, or a random half.
        pool: Items of the pool.
        coefficient: Of the term of negatives; 0 draws none.
        negatives: Drawn for every question.
        form: Of the term.
        ablation: What is hidden when negatives are drawn: the most salient patches, as many random ones, or everything.
        ratio: Share of the patches that is hidden.
        normalizer: Of the term.
        papo: Weight of PAPO's divergence between the image and one with random patches hidden; 0: none.
        papo_entropy: Weight of its two entropies.
        papo_mask: Share of the patches that PAPO hides.
        prior: Of the training data; 0 is unbiased data.
    """

    updates: int = 200
    prompts: int = 32
    rollouts: int = 8
    learning_rate: float = 3e-4
    data: Data = "all"
    pool: int = 6000
    coefficient: float = 0.0
    negatives: int = 4
    form: Form = "prob"
    ablation: Ablation = "saliency"
    ratio: float = RATIO
    normalizer: Literal["kept", "drawn"] = "drawn"
    papo: float = 0.0
    papo_entropy: float = 0.0
    papo_mask: float = 0.6
    prior: float = 0.85


@dataclass
class Log:
    """What a training was like: means over the updates.

    Attributes:
        zero_variance: Share of questions whose rollouts are all right or all wrong, one an update.
        rescued: Share of those that still had a negative, one an update.
        kept: Share of the drawn negatives that were kept, one an update.
        reward: Share of right rollouts, one an update.
        selected_counter: Share of counter-prior items in the data before and after selection.
    """

    zero_variance: list[float] = field(default_factory=list)
    rescued: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    selected_counter: tuple[float, float] = (float("nan"), float("nan"))


def patch_saliency(policy: ToyPolicy, images: Tensor, question: Tensor, answer: Tensor) -> Tensor:
    """Return how much each patch bears on an answer's log-probability, (N, patches): |gradient x input|, summed."""
    with torch.enable_grad():
        embedded = policy.embed(images).detach().requires_grad_(True)
        logs = policy.read(embedded, question).gather(1, answer[:, None]).sum()
        (slope,) = torch.autograd.grad(logs, embedded)
    found: Tensor = (slope * embedded).sum(-1).abs().detach()
    return found


def hidden(images: Tensor, patches: Tensor) -> Tensor:
    """Return images with some patches empty, (N, 16, 48); ``patches`` are true where they are hidden, (N, 16)."""
    return torch.where(patches[..., None], blank(images), images)


def ablated(policy: ToyPolicy, items: Items, answer: Tensor, settings: Settings, draws: torch.Generator) -> Tensor:
    """Return the items' images with their evidence hidden, as ``settings.ablation`` says."""
    if settings.ablation == "blank":
        return blank(items.images)
    count = max(1, round(settings.ratio * CELLS))
    if settings.ablation == "saliency":
        score = patch_saliency(policy, items.images, items.question, answer)
    else:
        score = torch.rand((len(items), CELLS), generator=draws)
    top = score.argsort(dim=1, descending=True, stable=True)[:, :count]
    return hidden(items.images, torch.zeros_like(score, dtype=torch.bool).scatter_(1, top, True))


def select(policy: ToyPolicy, pool: Items, data: Data, rng: np.random.Generator) -> Tensor:
    """Return the rows of a pool to train on: half of it."""
    if data == "random_half":
        return torch.from_numpy(rng.permutation(len(pool))[: len(pool) // 2])
    with torch.no_grad():
        seen, blind = (
            policy(images, pool.question).gather(1, pool.answer[:, None])
            for images in (pool.images, blank(pool.images))
        )
    gain = image_information_gain(seen, blind)
    return torch.from_numpy(mixed_ranking(gain.scaled, pool.question.tolist()).kept)


def train_rl(policy: ToyPolicy, settings: Settings, rng: np.random.Generator, draws: torch.Generator) -> Log:
    """Train ``policy`` in place.

    Args:
        policy: The supervised start.
        settings: How.
        rng: Of the data.
        draws: Of rollouts, negatives and random masks.

    Raises:
        InputError: A number of the settings below 1.
    """
    for name in ("updates", "prompts", "rollouts", "negatives", "pool"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(settings, name)}")
    log, pool = Log(), None
    if settings.data != "all":
        whole = draw_items(rng, settings.pool, prior=settings.prior)
        pool = whole.take(select(policy, whole, settings.data, rng))
        log.selected_counter = float(whole.counter.float().mean()), float(pool.counter.float().mean())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    for _ in range(settings.updates):
        if pool is None:
            items = draw_items(rng, settings.prompts, prior=settings.prior)
        else:
            items = pool.take(torch.from_numpy(rng.integers(0, len(pool), settings.prompts)))
        loss = _update(policy, items, settings, draws, log)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return log


def _update(policy: ToyPolicy, items: Items, settings: Settings, draws: torch.Generator, log: Log) -> Tensor:
    """Return the loss of one batch and write down what it was made of."""
    logs = policy(items.images, items.question)
    rollouts = torch.multinomial(logs.detach().exp(), settings.rollouts, replacement=True, generator=draws)
    reward = (rollouts == items.answer[:, None]).double()
    group = np.repeat(np.arange(len(items)), settings.rollouts)
    advantage = torch.from_numpy(standardise(reward.numpy().ravel(), group, len(items), eps=STD_EPS)).view_as(reward)
    loss: Tensor = -(logs.gather(1, rollouts) * advantage.to(logs)).mean()
    flat = (reward.mean(1) == 0) | (reward.mean(1) == 1)
    log.reward.append(float(reward.mean()))
    log.zero_variance.append(float(flat.float().mean()))
    if settings.coefficient:
        term, weights = _negative_term(policy, items, logs, rollouts[:, 0], settings, draws)
        loss = loss + settings.coefficient * term
        log.kept.append(float(weights.mean()))
        log.rescued.append(float((weights.sum(1) > 0)[flat].float().mean()) if bool(flat.any()) else 0.0)
    if settings.papo:
        loss = loss + _papo_term(policy, items, logs, settings, draws)
    return loss


def _negative_term(
    policy: ToyPolicy, items: Items, logs: Tensor, own: Tensor, settings: Settings, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the term of negatives, and which of those drawn are kept, (prompts, negatives).

    They are drawn by the policy as it is, on ablated images; right answers and doubles are dropped. Their probabilities
    are taken with the clean image.
    """
    with torch.no_grad():
        seen = policy(ablated(policy, items, own, settings, draws), items.question)
    drawn = torch.multinomial(seen.exp(), settings.negatives, replacement=True, generator=draws)
    again = (drawn[:, :, None] == drawn[:, None]).tril(-1).any(-1)
    weights = ((drawn != items.answer[:, None]) & ~again).double()
    clean = logs.gather(1, drawn).reshape(-1, 1)
    term = bounded_negative_loss(
        clean, torch.ones_like(clean), form=settings.form, weights=weights.reshape(-1), logp_old=clean.detach(),
        normalizer=settings.normalizer,
    )  # fmt: skip
    return term, weights


def _papo_term(policy: ToyPolicy, items: Items, logs: Tensor, settings: Settings, draws: torch.Generator) -> Tensor:
    """Return PAPO's term: it pushes the answers apart from those on an image with random patches hidden."""
    patches = torch.rand((len(items), CELLS), generator=draws) < settings.papo_mask
    other = policy(hidden(items.images, patches), items.question)
    divergence = (logs.exp() * (logs - other)).sum(1).mean()
    entropies = torch.stack([-(one.exp() * one).sum(1).mean() for one in (logs, other)]).sum()
    term: Tensor = settings.papo_entropy * entropies - settings.papo * divergence
    return term


@torch.no_grad()
def evaluate(policy: ToyPolicy, items: Items) -> dict[str, float]:
    """Return how a policy does: right answers and the usual colour's probability, with the image and without."""
    logs, blind = policy(items.images, items.question), policy(blank(items.images), items.question)
    counter = items.counter
    right = (logs.argmax(1) == items.answer).float()
    usual = logs.exp().gather(1, items.usual[:, None])[:, 0]
    return {
        "accuracy": float(right.mean()),
        "counter": float(right[counter].mean()),
        "prior": float(usual[counter].mean()),
        "shortcut": float((logs.argmax(1) == items.usual)[counter].float().mean()),
        "blind_prior": float((blind.argmax(1) == items.usual).float().mean()),
    }


def chance() -> float:
    """Return how often a random colour is right."""
    return 1 / COLOURS
