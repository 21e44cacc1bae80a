"""The controller: equivariance, caps, labels kept out, weights on disk."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.agents.dear.actions import capped, draw_index, draw_mask, log_likelihood, macro_masks, random_peers
from steelyard.agents.dear.audit import audit_label_leak
from steelyard.agents.dear.controller import DEARController
from steelyard.agents.dear.env import DebateEnv
from steelyard.agents.dear.episodes import BEHAVIOURS, KEEP, permute_agents, random_order, relabel_options
from steelyard.agents.dear.network import PolicyNet, Seen, Sizes
from steelyard.agents.dear.observation import observe
from steelyard.agents.dear.policies import KeepAll
from steelyard.agents.dear.recorded import RecordedAgents
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.settings import PPOSettings
from steelyard.agents.dear.simulator import SimAgents
from steelyard.errors import InputError
from steelyard.models.safefile import write_safe
from steelyard.rng import generator, torch_generator

SMALL = {"hidden": (8, 8), "settings": PPOSettings(batch=64)}


def small(backend=None, episodes=128, seed=0, **changes):
    return DEARController(**{**SMALL, **changes}).fit(backend or SimAgents(), episodes=episodes, seed=seed)


@pytest.fixture(scope="module")
def controller():
    return small()


def played_states(backend, seed, batch=40):
    """States of three rounds under random actions."""
    random = generator("test", "dear/states", seed)
    state = backend.start(batch, random)
    states = [state]
    for _ in range(2):
        reads = random.random((batch, backend.n_agents, backend.n_agents)) < 0.5
        reads[:, np.arange(backend.n_agents), np.arange(backend.n_agents)] = False
        state = backend.advance(state, reads, random.integers(4, size=state.answers.shape), generator=random)
        states.append(state)
    return states


def decided(controller, state, seed=0):
    seen = observe(state.public(), 3, identity=controller.identity, evidence=controller.evidence)
    return controller.decide(seen, state.public(), generator("test", "dear/draws", seed))


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_decisions_move_with_the_agents(seed):
    controller = EQUIVARIANT[seed % len(EQUIVARIANT)]
    order = generator("test", "dear/order", seed).permutation(5)
    for state in played_states(SimAgents(), seed, 10):
        reads, behaviours = decided(controller, state)
        moved_reads, moved_behaviours = decided(controller, permute_agents(state, order))
        np.testing.assert_array_equal(moved_behaviours, behaviours[:, order])
        np.testing.assert_array_equal(moved_reads, reads[:, order][:, :, order])


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_decisions_do_not_depend_on_the_names_of_options(seed):
    controller = EQUIVARIANT[seed % len(EQUIVARIANT)]
    for state in played_states(SimAgents(), seed, 10):
        names = random_order(state.batch, 4, generator("test", "dear/names", seed))
        for left, right in zip(
            decided(controller, state), decided(controller, relabel_options(state, names)), strict=True
        ):
            np.testing.assert_array_equal(left, right)


EQUIVARIANT = [small(), small(selection="macro"), small(d_max=2)]


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 7))
def test_the_cap_keeps_the_best_peers_and_breaks_ties_by_the_order(seed, d_max, agents):
    random = generator("test", "dear/cap", seed)
    scores = random.integers(0, 3, size=(4, agents, agents)).astype(float)
    mask = draw_mask(scores - 1, random)
    places = random_order(4, agents, random)
    kept = capped(mask, scores, d_max, places)
    assert (kept <= mask).all()
    np.testing.assert_array_equal(kept.sum(-1), np.minimum(mask.sum(-1), d_max))
    for b in range(4):
        for i in range(agents):
            wanted = sorted(np.flatnonzero(mask[b, i]), key=lambda j: (-scores[b, i, j], places[b, j]))[:d_max]
            assert set(np.flatnonzero(kept[b, i])) == set(wanted)


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_random_peers_have_the_degree_and_never_the_agent_itself(seed, agents):
    random = generator("test", "dear/random", seed)
    degrees = random.integers(0, agents, size=(5, agents))
    drawn = random_peers(degrees, random)
    np.testing.assert_array_equal(drawn.sum(-1), degrees)
    assert not drawn[:, np.arange(agents), np.arange(agents)].any()


def test_macro_sets_by_hand():
    backend = SimAgents(n_agents=4)
    state = backend.start(1, generator("test", "dear/macro", 0))
    state = type(state)(**{**vars(state), "answers": np.array([[2, 2, 0, -1]]), "agent_tie": np.array([[1, 0, 2, 3]])})
    nobody, everyone, disagreeing, speaker, rivals = macro_masks(state)[0].transpose(1, 0, 2).astype(int)
    assert nobody.sum() == 0
    assert everyone.tolist() == (1 - np.eye(4, dtype=int)).tolist()
    assert disagreeing.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    assert speaker.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]  # agent 1 comes first
    assert rivals.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_log_likelihood_by_hand():
    behaviour, peers = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])), torch.zeros(1, 2, 2)
    picks, speaks = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([0.0, 1.0])
    found, entropy = log_likelihood((behaviour, peers), torch.tensor([[1, 0]]), picks, speaks)
    np.testing.assert_allclose(found.numpy(), [[np.log(0.75 * 0.5), np.log(0.5)]], rtol=1e-6)  # who keeps, reads nobody
    first = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)) + 0.75 * np.log(2)
    np.testing.assert_allclose(entropy.numpy(), [[first, 1.5 * np.log(2)]], rtol=1e-6)
    macro = torch.log(torch.tensor([[[0.2, 0.8], [0.6, 0.4]]]))
    found, _ = log_likelihood((behaviour, macro), torch.tensor([[1, 1]]), torch.tensor([[0, 1]]), speaks)
    np.testing.assert_allclose(found.numpy(), [[np.log(0.75 * 0.2), np.log(0.5 * 0.4)]], rtol=1e-6)


def test_drawn_indices_follow_the_softmax():
    logits = np.broadcast_to(np.log([0.1, 0.2, 0.7]), (20_000, 3))
    drawn = draw_index(logits, generator("test", "dear/softmax", 0))
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.1, 0.2, 0.7], atol=0.015)
    assert draw_index(logits[:1], None).tolist() == [2]


def test_training_takes_seeds_and_leaves_torch_alone():
    before = torch.get_rng_state()
    one, same, other = small(seed=3), small(seed=3), small(seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert one.history == same.history != other.history


def test_act_is_decide_for_one_debate(controller):
    state = SimAgents().start(1, generator("test", "dear/act", 0))
    graph, behaviours = controller.act(state.public())
    reads, chosen = decided(controller, state)
    np.testing.assert_array_equal(graph, reads[0])
    assert graph.dtype == np.int64
    assert behaviours == [BEHAVIOURS[index] for index in chosen[0]]


def test_keepers_read_nobody_and_the_cap_holds():
    controller = small(d_max=1, decision="sample")
    for state in played_states(SimAgents(), 1):
        reads, behaviours = decided(controller, state)
        assert reads.sum(-1).max() <= 1
        assert not reads[behaviours == KEEP].any()


def test_ablations():
    state = played_states(SimAgents(), 2)[0]
    assert (decided(small(how="revise"), state)[1] == BEHAVIOURS.index("revise")).all()
    blind = small(evidence=False)
    assert not blind.evidence
    learned, random = small(seed=5), small(seed=5, who="random")
    random._policy = learned._policy
    (reads, _), (others, _) = decided(learned, state), decided(random, state)
    np.testing.assert_array_equal(reads.sum(-1), others.sum(-1))
    known = small(identity=True)
    assert known.settings.sizes[1] == learned.settings.sizes[1] + 5


def test_the_audit_finds_no_leak(controller):
    assert audit_label_leak(SimAgents(), controller=controller, episodes=400).passed


def test_own_evidence_and_reward(tmp_path):
    paid = []

    def evidence(state):
        return (state.answers[:, :1] == state.answers).mean(axis=1, keepdims=True)

    def reward(before, after, ended, lam):
        paid.append(ended)
        return -lam * (after.cost - before.cost)

    made = small(evidence=evidence, reward=reward)
    assert paid
    assert made.settings.evidence == "own"
    assert made.settings.sizes[0] == 1
    made.save(tmp_path)
    with pytest.raises(InputError, match="evidence"):
        DEARController.from_pretrained(tmp_path)
    state = played_states(SimAgents(), 3)[1]
    again = DEARController.from_pretrained(tmp_path, evidence=evidence)
    for left, right in zip(decided(made, state), decided(again, state), strict=True):
        np.testing.assert_array_equal(left, right)
    with pytest.raises(InputError, match="evidence must return"):
        small(evidence=lambda state: np.full((state.batch, 1), np.nan))


def test_environment_gives_rounds_and_price():
    made = DEARController(**SMALL).fit(DebateEnv(SimAgents(n_agents=3), rounds=2, lam=0.5), episodes=64)
    assert made.settings.rounds == 2
    assert made.settings.sizes is not None


def test_trained_items_are_refused_for_judging(recording):
    agents = RecordedAgents(recording)
    made = DEARController(**SMALL).fit(agents, episodes=64, items=[0, 1])
    draws = generator("test", "dear/items", 0)
    assert made.evaluate(agents, batch=2, generator=draws, items=[2, 3]).vote.shape == (2,)
    with pytest.raises(InputError, match="items: 1 of them were trained on, the first is 1"):
        made.evaluate(agents, batch=2, generator=draws, items=[1, 2])
    with pytest.raises(InputError, match="items must be given"):
        made.evaluate(agents, batch=2, generator=draws)


@pytest.fixture
def recording():
    """Four questions, two agents, every key; nobody is ever moved."""
    from steelyard.agents.dear.recorded import Entry, RecordedQuestion, Recording

    questions = [RecordedQuestion(id=f"q{n}", question="?", options=["a", "b"], answer=n % 2) for n in range(4)]
    entries = []
    for question in questions:
        for place, agent in enumerate(("x", "y")):
            own = place
            entries.append(Entry(question=question.id, agent=agent, behaviour="start", answer=own))
            for behaviour in BEHAVIOURS[1:]:
                for read in ([], [0], [1]):
                    entries.append(
                        Entry(question=question.id, agent=agent, own=own, read=read, behaviour=behaviour, answer=own)
                    )
    return Recording(agents=["x", "y"], questions=questions, entries=entries)


def test_stored_controllers_decide_alike(controller, tmp_path):
    controller.save(tmp_path / "stored")
    assert sorted(file.name for file in (tmp_path / "stored").iterdir()) == ["config.json", "controller.safetensors"]
    again = DEARController.from_pretrained(tmp_path / "stored")
    assert again.settings == controller.settings
    one, other = (
        rollout(SimAgents(), policy, batch=100, generator=generator("test", "dear/stored", 0))
        for policy in (controller, again)
    )
    np.testing.assert_array_equal(one.answersT, other.answersT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden": [8, 100_000]}, "hidden"),
        ({"hidden": [16, 8]}, "not the configuration's"),
        ({"sizes": None}, "sizes"),
        ({"sizes": [9, 8, 10**9]}, "sizes"),
        ({"selection": "macro"}, "is odd"),
        ({"evil": 1}, "evil"),
        ({"behaviours": ["keep", "keep"]}, "behaviours"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_hostile_configurations(controller, tmp_path, changes, said):
    controller.save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=said):
        DEARController.from_pretrained(tmp_path)


def test_hostile_files(controller, tmp_path):
    controller.save(tmp_path)
    weights, config = tmp_path / "controller.safetensors", tmp_path / "config.json"
    good = dict(controller._policy.state_dict())
    name = next(iter(good))
    write_safe(weights, {**good, name: good[name] * float("nan")}, {})
    with pytest.raises(InputError, match="not finite"):
        DEARController.from_pretrained(tmp_path)
    write_safe(weights, {**good, name: good[name].double()}, {})
    with pytest.raises(InputError, match="F64"):
        DEARController.from_pretrained(tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(InputError, match="safetensors"):
        DEARController.from_pretrained(tmp_path)
    config.write_text("[1]")
    with pytest.raises(InputError, match="one JSON table"):
        DEARController.from_pretrained(tmp_path)
    config.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        DEARController.from_pretrained(tmp_path)
    config.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        DEARController.from_pretrained(tmp_path)
    config.symlink_to(__file__)
    with pytest.raises(InputError, match="link"):
        DEARController.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot be made a folder"):
        controller.save(weights)
    shutil.rmtree(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        DEARController.from_pretrained(tmp_path)


def test_a_configuration_of_too_many_bytes(controller, tmp_path):
    controller.save(tmp_path)
    with (tmp_path / "config.json").open("a") as file:
        file.write(" " * 16_000_001)
    with pytest.raises(InputError, match="more than"):
        DEARController.from_pretrained(tmp_path)


def test_policies_start_near_a_full_debate():
    sizes = Sizes(9, 8, 6)
    net = PolicyNet(sizes, (8, 8), 4, 0, torch_generator("test", "dear/net", 0))
    seen = Seen(torch.zeros(2, 9), torch.zeros(2, 5, 8), torch.zeros(2, 5, 5, 6))
    with torch.no_grad():
        behaviours, peers = net(seen)
    assert behaviours.shape == (2, 5, 4)
    assert (torch.sigmoid(peers) > 0.75).all()


def test_one_agent_is_no_debate(controller):
    state = SimAgents(n_agents=1).start(2, generator("test", "dear/one", 0))
    with pytest.raises(InputError, match="at least 2 agents"):
        decided(controller, state)
    KeepAll()
