"""The user's own data: a table with a column of clients and a target; every client fits a linear head of its own.

Learners of one's own, which are callables and no table, are weighed from Python by :func:`weigh_clients`.

Half of each client's rows, drawn anew for each seed, fit its head; the other half judge it. Features are standardised
over the whole table without the target, and a constant joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from steelyard import data as tables
from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.data.table import Table
from steelyard.errors import InputError, did_you_mean
from steelyard.fed.gadaphead.cells import Clients, run_shared
from steelyard.fed.gadaphead.deep import strategies
from steelyard.fed.gadaphead.linear import Floats, Ints, Transitions, fit_clients
from steelyard.fed.gadaphead.rounds import Broadcast, Client, federated_rounds
from steelyard.fed.gadaphead.sharing import LINEAR_THRESHOLD

TASK = "user"
LEARNER_ARMS = ("local", "fedavg", "fedper", "clustered", "gadaphead")
"""Ways to share that need nothing of a client but what every client answers."""
_LEAST_ROWS, _LEAST_CLIENTS, _MOST_CLIENTS, _MOST_FEATURES = 4, 2, 1_000, 500


class Options(Frozen):
    """What the bench takes beside a table of your own."""

    client: str = Field(description="column that says whose row it is")
    target: str = Field(description="column to predict: numbers, or two different texts")
    ridge: float = Field(default=1.0, gt=0, description="penalty of every client's fit")
    threshold: float = Field(default=LINEAR_THRESHOLD, gt=0, le=2, description="clients closer than it share a group")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's table.

    Args:
        data: Path of a CSV, Parquet or npz file, a pandas or polars frame, or a mapping of columns.
        options: Fields of `Options`.

    Raises:
        InputError: The table or a column cannot be used.
    """
    chosen = Options(**options)
    table = tables.read_table(data)
    arrays = client_arrays(table, chosen)
    clients = len(arrays["names"])
    return Task(TASK, f"{chosen.target} by {chosen.client}, {clients} clients", lambda: arrays, table.source)


def client_arrays(table: Table, options: Options) -> dict[str, Any]:
    """Return features with a constant (n, d), target (n,), the client of each row (n,) and the clients' names.

    Raises:
        InputError: The same column twice, a target that is no number, too few clients, or rows of one.
    """
    if options.client == options.target:
        raise InputError(f"client and target are both '{options.client}'; name two columns")
    column = np.asarray(table.column(options.client))
    missing = np.flatnonzero(np.isnan(column) if table.is_numeric(options.client) else column == "")
    if len(missing):
        raise InputError(f"{table.where(options.client, int(missing[0]))}: the client is missing")
    names, owner = np.unique(column.astype(str), return_inverse=True)
    if not _LEAST_CLIENTS <= len(names) <= _MOST_CLIENTS:
        raise InputError(
            f"{table.source}, column '{options.client}': the number of clients is {len(names)}; {_LEAST_CLIENTS} to "
            f"{_MOST_CLIENTS} can be weighed"
        )
    owner = owner.reshape(-1).astype(np.int64)
    counts = np.bincount(owner)
    if counts.min() < _LEAST_ROWS:
        few = str(names[int(counts.argmin())])
        raise InputError(
            f"{table.source}, column '{options.client}': client '{few}' has fewer than {_LEAST_ROWS} rows "
            f"({counts.min()})"
        )
    features = tables.encode_features(table, exclude=(options.client, options.target)).matrix
    if features.shape[1] > _MOST_FEATURES:
        raise InputError(f"{table.source}: it has {features.shape[1]} features; at most {_MOST_FEATURES} can be used")
    matrix = np.column_stack([features, np.ones(len(owner))])
    return {"features": matrix, "target": _target(table, options.target), "owner": owner, "names": names}


def _target(table: Table, name: str) -> Floats:
    """Return the target in standard deviations from its mean; two texts become 0 and 1 first."""
    column = np.asarray(table.column(name))
    if not table.is_numeric(name):
        kinds = np.unique(column)
        if len(kinds) != 2 or "" in kinds:
            raise InputError(f"{table.source}, column '{name}': a target must be numbers or two different texts")
        column = (column == kinds[1]).astype(np.float64)
    values = np.asarray(column, dtype=np.float64)
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise InputError(f"{table.where(name, int(missing[0]))}: the target is missing")
    with np.errstate(over="ignore", invalid="ignore"):
        apart = values - values.mean()
    spread = float(np.abs(apart).max())
    if not 0 < spread < np.inf:
        raise InputError(f"{table.source}, column '{name}': all targets are alike, or too large to be told apart")
    scaled = apart / spread
    return np.asarray(scaled / scaled.std())


def clients_of(cell: CellInput) -> Clients:
    """Return a seed's clients: heads fitted on one half of each client's rows, judged on the other."""
    features, target, owner = (cell.data[name] for name in ("features", "target", "owner"))
    stream = cell.rng("halves")
    fitted, held = list[Transitions](), list[tuple[Floats, Floats]]()
    for client in range(len(cell.data["names"])):
        rows: Ints = stream.permutation(np.flatnonzero(owner == client))
        half = (len(rows) + 1) // 2
        used, kept = rows[:half], rows[half:]
        fitted.append(Transitions(features[used], np.zeros_like(features[used]), target[used]))
        held.append((features[kept], target[kept]))

    def errors(heads: Floats) -> Floats:
        return np.array([((x @ head - y) ** 2).mean() for head, (x, y) in zip(heads, held, strict=True)])

    fits = fit_clients(fitted, discount=0.0, ridge=Options(**cell.options).ridge)
    return Clients(fits, errors, None, tuple(str(name) for name in cell.data["names"]))


def weigh_clients(
    make_clients: Callable[[], Sequence[Client]],
    initial: Broadcast | tuple[Any, Any],
    evaluate: Callable[[int, Client, Broadcast], float],
    *,
    rounds: int = 20,
    seeds: int = 6,
    arms: Sequence[str] = LEARNER_ARMS,
    threshold: float = 1.0,
) -> dict[str, Floats]:
    """Train learners of one's own under several ways to share, and judge every client in each.

    Args:
        make_clients: Returns fresh clients of :func:`federated_rounds`, one a task.
        initial: Trunk and head that all start from.
        evaluate: From a client's number, the client, and what the server sent it last, to a finite number of yours.
        rounds: Of each training.
        seeds: How many trainings an arm; arms share their streams, so differences of one seed pair.
        arms: Ways to share, of those in `LEARNER_ARMS`.
        threshold: Of the groups.

    Returns:
        By arm, the values of all clients, shape (seeds, N).

    Raises:
        InputError: An unknown arm, no seed, a client's answer or a judgement that cannot be used, another number of
            clients than before, or whatever `federated_rounds` refuses. What a client raises itself ends the weighing:
            an arm whose clients fail would be judged by others than its rivals.
    """
    made = strategies(threshold)
    for arm in arms:
        if arm not in LEARNER_ARMS:
            told = ", ".join(LEARNER_ARMS)
            raise InputError(f"arms: '{arm}' is not known; there are {told}.{did_you_mean(arm, LEARNER_ARMS)}")
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    found: dict[str, Floats] = {}
    counts = set[int]()
    for arm in arms:
        values = []
        for seed in range(seeds):
            clients = make_clients()
            counts.add(len(clients))
            if len(counts) > 1:
                raise InputError(f"make_clients: it must return equally many clients each time, got {sorted(counts)}")
            sent = federated_rounds(clients, rounds, made[arm](), seed, initial=initial, skip_failures=False).final
            values.append([_judged(evaluate, number, client, sent[number]) for number, client in enumerate(clients)])
        found[arm] = np.array(values, dtype=np.float64)
    return found


def _judged(evaluate: Callable[[int, Client, Broadcast], float], number: int, client: Client, sent: Broadcast) -> float:
    answer = evaluate(number, client, sent)
    try:
        value = float(answer)
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise InputError(f"evaluate: it must return a finite number, got {answer!r} for client {number}")
    return value


def run(cell: CellInput) -> Measured:
    """Compute one cell on the user's table."""
    return run_shared(cell, clients_of(cell), Options(**cell.options).threshold)
