"""Step advantages inside verl, whose own hook for estimators hands over neither trajectories nor anchors.

verl's ``compute_advantage`` gives a registered estimator the rewards of tokens, the response mask and the prompt's uid,
and the rest of a batch (``non_tensor_batch``) to one estimator of its own alone. :func:`patch_verl` wraps that function
so that "g2po" and "gigpo" get the rest as well; :func:`side_table_estimator` does without a patch. A row is one step,
as verl-agent has it. Written against the documented signature of verl 0.9.1, which does not install beside this
library's other dependencies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from steelyard.errors import InputError
from steelyard.policy.advantages import gigpo
from steelyard.policy.g2po.core import g2po_advantage
from steelyard.policy.steps import StepBatch
from steelyard.policy.tokens import broadcast_to_tokens

ESTIMATORS: Mapping[str, Callable[..., Any]] = {"g2po": g2po_advantage, "gigpo": gigpo}
_MODULE = "verl.trainer.ppo.ray_trainer"
_NEEDED = ("uid", "traj_uid", "anchor_obs")


def row_batch(token_level_rewards: Any, fields: Mapping[str, Any]) -> tuple[StepBatch, Any]:
    """Return the steps of verl's rows without copies, and of each row which step it is.

    Args:
        token_level_rewards: (rows, tokens); a step's reward is their sum.
        fields: ``uid`` of the prompt, ``traj_uid``, ``anchor_obs``, and if there is one ``step`` (else rows of a
            trajectory are in time) and ``is_action_valid``.

    Rows that verl-agent doubled to fill a batch, those with the same trajectory and ``step``, count once.

    Raises:
        InputError: A field is missing or cannot be used, or copies differ.
    """
    for name in _NEEDED:
        if name not in fields:
            raise InputError(f"non_tensor_batch: '{name}' is missing; the rollout must write it, one a row")
    traj = [str(name) for name in fields["traj_uid"]]
    times = list(fields["step"]) if "step" in fields else _counted(traj)
    valid = fields.get("is_action_valid")
    return StepBatch.without_copies(
        task=list(map(str, fields["uid"])), traj=traj, t=times, reward=token_level_rewards.sum(-1),
        anchor=list(fields["anchor_obs"]), valid=None if valid is None else list(map(bool, valid)),
    )  # fmt: skip


def _counted(traj: list[str]) -> list[int]:
    seen: dict[str, int] = {}
    times = []
    for name in traj:
        times.append(seen.get(name, 0))
        seen[name] = times[-1] + 1
    return times


def step_advantages(
    name: str, token_level_rewards: Any, response_mask: Any, fields: Mapping[str, Any], **options: Any
) -> tuple[Any, Any]:
    """Return verl's pair (advantages, returns), each (rows, tokens), of an estimator of this library.

    Raises:
        InputError: The estimator is not known, or a field is missing.
    """
    rule = _estimator(name)
    batch, step = row_batch(token_level_rewards, fields)
    values = broadcast_to_tokens(rule(batch, **options)[step], response_mask)
    return values, values


def _estimator(name: str) -> Callable[..., Any]:
    if name not in ESTIMATORS:
        raise InputError(f"estimator '{name}' is not known; there are {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


def side_table_estimator(name: str, table: Mapping[str, Mapping[str, Any]], **options: Any) -> Callable[..., Any]:
    """Return an estimator for verl's ``register_adv_est`` that finds a row's fields in a table, without a patch.

    Args:
        name: "g2po" or "gigpo".
        table: From a row's ``uid``, which must then be one of its own, to its fields; ``uid`` in it names the prompt.
        **options: Of the estimator.

    Raises:
        InputError: The estimator is not known; when it is called, a row or one of its fields is missing.
    """
    _estimator(name)

    def estimate(token_level_rewards: Any, response_mask: Any, config: Any = None, index: Any = None, **_: Any) -> Any:
        if index is None:
            raise InputError("index: verl must hand over the uid of each row; its estimators of outcomes get it")
        names = list(map(str, index))
        for row in names:
            if row not in table:
                raise InputError(f"table: there is no row '{row}'")
            lacking = sorted(set(table[names[0]]) - set(table[row]))
            if lacking:
                raise InputError(f"table: row '{row}' lacks '{lacking[0]}', which '{names[0]}' has")
        fields = {field: [table[row][field] for row in names] for field in (table[names[0]] if names else ())}
        return step_advantages(name, token_level_rewards, response_mask, fields, **options)

    return estimate


@contextmanager
def patch_verl(module: Any = None, **options: Any) -> Iterator[None]:
    """Let verl's trainer compute advantages with ``algorithm.adv_estimator`` "g2po" or "gigpo", within the block.

    Args:
        module: Where ``compute_advantage`` is; None: verl's own.
        **options: Of the estimators.

    Raises:
        InputError: verl is not installed, or has no such function.
    """
    if module is None:
        try:
            module = importlib.import_module(_MODULE)
        except ModuleNotFoundError as error:
            raise InputError(
                f"verl is not installed here, for want of '{error.name}'; it wants an environment of its own (0.9.1)"
            ) from None
    own = getattr(module, "compute_advantage", None)
    if own is None:
        raise InputError(f"{module.__name__} has no compute_advantage; this patch is written for verl 0.9.1")

    def compute_advantage(data: Any, adv_estimator: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(getattr(adv_estimator, "value", adv_estimator))
        if name not in ESTIMATORS:
            return own(data, adv_estimator, *args, **kwargs)
        rewards, mask = data.batch["token_level_rewards"], data.batch["response_mask"]
        values, returns = step_advantages(name, rewards, mask, data.non_tensor_batch, **options)
        data.batch["advantages"], data.batch["returns"] = values, returns
        return data

    module.compute_advantage = compute_advantage
    try:
        yield
    finally:
        module.compute_advantage = own
