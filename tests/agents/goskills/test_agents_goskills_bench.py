"""The bench: one query string for every arm, folds that share nothing, arms out of one cell, honest intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from steelyard.agents.goskills import arms, bench, encoded, tasks
from steelyard.agents.goskills.bench import BENCH
from steelyard.agents.goskills.queries import Query, pack
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.shelf import Shelf
from steelyard.agents.goskills.toy import toy_queries, toy_skills
from steelyard.bench import stats
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.models.embedders import HashingEmbedder

TOY = tasks.toy()


def cell(arm="goskills", seed=0, data=None, task="toy"):
    return CellInput(task, arm, {}, {}, {}, seed, TOY if data is None else data)


@pytest.fixture(scope="module")
def found():
    return BENCH.run(cell())


def test_one_cell_carries_every_arm(found):
    derived = BENCH.derive({"goskills": found.metrics})
    assert set(derived) == set(arms.DERIVED_NAMES)
    known = {metric.name for metric in BENCH.metrics}
    for name, values in derived.items():
        assert set(values) <= known
        assert set(values) == ({"tokens"} if name == "vanilla" else known - {"queries"})
        assert all(0 <= values[one] <= 1 for one in set(values) - {"tokens", "latency"})
    assert derived["hybrid_backfill"]["must_hit"] == found.metrics["must_hit"] == 1.0
    assert derived["naive_grouping"]["gold_recall"] == derived["rrf"]["gold_recall"]
    assert derived["vanilla"]["tokens"] > 2 * found.metrics["tokens"]
    assert found.metrics["fields"] == 1.0
    assert arms.derive({}) == {}


def test_equal_seeds_give_equal_results_and_seeds_share_no_task(found):
    again = BENCH.run(cell())
    without_clock = [{k: v for k, v in one.metrics.items() if "latency" not in k} for one in (found, again)]
    assert without_clock[0] == without_clock[1]
    assert found.diagrams == again.diagrams
    folds = [tasks.fold_of(cell(seed=seed)) for seed in range(10)]
    texts = [query.text for fold in folds for query in fold.queries]
    assert sorted(texts) == sorted(query.text for query in toy_queries())
    with pytest.raises(InputError, match="no seed 10"):
        BENCH.run(cell(seed=10))


def test_every_arm_is_given_the_same_string_and_the_schema_sees_no_more(monkeypatch):
    """What a retriever is called with is the query's text, and its schema is a function of that alone."""
    asked: dict[str, set[str]] = {}
    real = bench.makers

    class Spy:
        def __init__(self, name, inner):
            self.name, self.inner = name, inner

        def retrieve(self, task):
            asked.setdefault(self.name, set()).add(task)
            return self.inner.retrieve(task)

    def spied(*arguments):
        return {n: (lambda b, n=n, m=m: Spy(n, m(b))) for n, m in real(*arguments).items()}

    monkeypatch.setattr(bench, "makers", spied)
    BENCH.run(cell(seed=1))
    texts = {query.text for query in tasks.fold_of(cell(seed=1)).queries}
    assert set(asked) == set(arms.DERIVED_NAMES) - {"vanilla"} | {"goskills"}
    assert all(seen == texts for seen in asked.values())
    library = tasks.linked(toy_skills(), None)
    query = toy_queries()[0]
    schemas = [GoSkillsRetriever(library).read(text).schema for text in (query.text, str(query.text))]
    assert schemas[0] == schemas[1]


def test_gold_reaches_no_arm():
    """With every label turned to another skill, all contracts and all that is not judged by labels stay the same."""
    skills, queries = tasks.everything(TOY)
    turned = [Query(query.text, tuple(skill.name for skill in skills[:2]), query.cluster) for query in queries]
    other = {**TOY, "queries": pack(turned)}
    one, two = (BENCH.run(cell(seed=2, data=data)).metrics for data in (TOY, other))
    for name in ("tokens", "vrc", "fields", "roles"):
        for arm in ("", *(f"{arm}:" for arm in arms.DERIVED_NAMES if arm != "vanilla")):
            assert one[arm + name] == two[arm + name]
    assert one["gold_recall"] != two["gold_recall"]


def test_lines_to_compare_with():
    gold, chance = BENCH.run(cell("gold")), BENCH.run(cell("random"))
    assert set(gold.metrics.values()) == {1.0}
    assert chance.metrics["gold_recall"] < 0.5


def test_traces_hold_the_recall_of_every_query(found):
    numbers, values = found.traces["goskills"]
    assert numbers == np.flatnonzero(TOY["fold"] == 0).tolist()
    assert np.mean(values) == pytest.approx(found.metrics["gold_recall"])  # a toy cluster is one query


def test_the_first_seed_alone_draws_a_diagram(found):
    (diagram,) = found.diagrams
    kinds = {node.kind for node in diagram.nodes}
    assert {"main", "good"} <= kinds <= {"plain", "main", "good", "bad", "muted"}
    assert {edge.label for edge in diagram.edges} - {"", "expansion"}
    assert BENCH.run(cell(seed=1)).diagrams == ()


def test_folds_give_an_interval_no_narrower_than_a_bootstrap_over_clusters():
    """Folds of whole clusters are independent: their t-interval covers, where folds that share a cluster would not.

    Queries of a cluster that are all alike are the hardest case: 165 queries, but 42 draws.
    """
    clusters = np.repeat(np.arange(42), 4)
    folds = tasks.assign_folds([f"c{c}" for c in clusters], (), 10, "test")
    covered = boot = 0
    for trial in range(200):
        effect = np.random.default_rng(trial).standard_normal(42)[clusters]
        low, high = stats.paired_interval([effect[folds == fold].mean() for fold in range(10)])[1:]
        covered += low <= 0 <= high
        low, high = stats.clustered_bootstrap(effect, clusters, draws=200, rng=np.random.default_rng(trial))[1:]
        boot += low <= 0 <= high
    assert covered >= 180
    assert covered >= boot - 4


def test_vectors_are_recorded_and_looked_up():
    encode = HashingEmbedder(64).encode
    data = encoded.recorded(encode, lambda encoder: (encoder(["a", "b"]), encoder(["b", "c"])))
    assert data["vectors"].shape == (3, 64)
    assert (encoded.lookup(data)(["c", "a"]) == encode(["c", "a"])).all()


def test_a_text_that_was_not_recorded_is_encoded(monkeypatch):
    encode = HashingEmbedder(64).encode
    monkeypatch.setattr(encoded, "minilm_encoder", lambda: encode)
    look = encoded.lookup(encoded.recorded(encode, lambda encoder: encoder(["a"])))
    assert (look(["new", "a"]) == encode(["new", "a"])).all()


def test_prepared_vectors_are_all_that_the_arms_ask_for(monkeypatch):
    """A cell that has been prepared never loads the model."""
    monkeypatch.setattr(encoded, "minilm_encoder", lambda: HashingEmbedder(64).encode)
    skills, queries = tasks.everything(TOY)
    data = dict(tasks.arrays_of(skills, queries[:10], 10, "toy", "minilm"))
    data |= tasks.prepare(data)

    def refuse():
        raise AssertionError("a text was not prepared")

    monkeypatch.setattr(encoded, "minilm_encoder", refuse)
    grouping = {"naive_grouping"}  # compares cards, which are recorded as such
    measured = BENCH.run(cell(data=data, seed=3))
    assert grouping < set(BENCH.derive({"goskills": measured.metrics}))
    assert tasks.prepare(TOY) == {}
    assert tasks.embedder_of(TOY) is None


def test_must_hit_is_left_out_where_a_fold_has_none():
    skills = toy_skills()
    queries = [Query(f"Read table {n}", (skills[n].name,), f"q{n}") for n in range(10)]
    data = tasks.arrays_of(skills, queries, 10, "toy", "tfidf")
    assert not bool(data["must_hit"])
    assert not [name for name in BENCH.run(cell(data=data)).metrics if "must_hit" in name]


def test_real_tasks_are_those_of_the_specification(skill_folders):
    assert len(tasks.real_skills()) == 287
    counts = {}
    for name in ("kdense_full", "kdense_first", "kdense_steps", "wshobson"):
        data = BENCH.task(name).load()
        skills, queries = tasks.everything(data)
        known = {skill.name for skill in skills}
        assert all(query.gold and set(query.gold) <= known for query in queries)
        counts[name] = (len(queries), len({query.cluster for query in queries}), bool(data["must_hit"]))
    assert counts == {
        "kdense_full": (23, 23, True),
        "kdense_first": (23, 23, True),
        "kdense_steps": (98, 23, False),
        "wshobson": (165, 42, False),
    }
    full = tasks.everything(BENCH.task("kdense_full").load())[1]
    assert np.mean([len(query.gold) for query in full]) == pytest.approx(6.0, abs=0.05)


def test_masked_steps_name_no_skill(skill_folders):
    skills, queries = tasks.everything(tasks.kdense_steps())
    shelf = Shelf(tasks.linked(skills, None))
    assert not any(tasks.named_gold(query, skills, shelf.graph.names) for query in queries)


def test_metrics_are_json(found):
    json.dumps(found.metrics, allow_nan=False)


def test_minilm_reads_96_tokens_without_a_word_of_warning(recwarn):
    encoded.minilm_encoder.cache_clear()
    text = " ".join(["protein"] * 90)
    rows = encoded.minilm_encoder()([f"{text} {'docking ' * 40}", f"{text} {'docking ' * 60}", "a tide table"])
    assert rows.shape == (3, 384)
    assert rows[0] == pytest.approx(rows[1], abs=1e-5)  # both are cut at the same token
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    assert not [one for one in recwarn if "tokens" in str(one.message)]
    encoded.minilm_encoder.cache_clear()
