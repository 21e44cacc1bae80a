"""What DEAR does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.agents.dear.claims import CLAIMS
from steelyard.agents.dear.config import Config
from steelyard.agents.dear.ledger import DECISIONS
from steelyard.card import Card, Paper

__all__ = ["CARD", "Config"]

CARD = Card(
    id="dear",
    name="DEAR",
    summary="Debate among models in which a learned controller decides who reads whom and how each answers; "
    "reconstructed from an abstract.",
    does=(
        "Models that debate adopt each other's answers blindly. After the first answers a controller looks at the "
        "group: how many agree, how divided the rest is, who moved. For each model it then decides whether it speaks "
        "again at all, which peers it reads, and whether it revises, critiques (arguments shown, answers hidden) or "
        "explores. One small policy is shared by all models and trained by multi-agent PPO on debates with known "
        "answers; at inference it sees none. The debate ends when all agree, and a vote decides."
    ),
    use_when=(
        "You run debates among models anyway and want fewer calls: agents that gain nothing by speaking keep silent.",
        "You can record or simulate debates with known answers to train the controller on.",
        "You want debates over any chat callable with a vote, early stop, graphs and cost counted, learned or not.",
    ),
    avoid_when=(
        "You look for accuracy: a fixed policy, critique-all with early stop, is as often right; it costs more.",
        "One model, no debate: weigh self-consistency at equal calls first, it needs no messages.",
        "You know which model is best, or its stated confidence means something: in the simulator the best single "
        "agent, a vote weighted by each agent's record, and a vote by confidence, all without debate, were right more "
        "often than DEAR, for a fraction of the calls.",
        "Your team answers unlike what the controller was trained on: record some debates of yours and train on them.",
    ),
    cost=(
        "A policy of ten thousand weights, under a millisecond of processor time a round for eight agents; a call "
        "of a language model takes seconds. Training on 30,000 simulated debates takes some ten seconds on one core. "
        "Debates cost N first answers and at most N calls a round."
    ),
    paper=Paper(
        title="Group Perspective Matters: Regulating Debate Relationships Can Mitigate Blind Conformity in Multi-Agent "
        "Debate",
        authors="Wu et al.",
        identifier="arXiv 2608.03648",
        venue="NeurIPS 2026",
        basis="The abstract and one line of third parties: the stages What, Who and How and joint training are known; "
        "every formula, feature, reward and the training algorithm are reconstructions. No table is known.",
    ),
    usage=(
        "from steelyard.agents import DEARController, Debate, SimAgents\n"
        "controller = DEARController().fit(SimAgents(n_agents=3), episodes=256)  # in earnest 20,000\n"
        "def model(messages):  # any chat callable; in earnest a language model or an endpoint\n"
        "    return 'Two pairs of two make four.\\nAnswer: 4'\n"
        "debate = Debate([model, model, model], controller, rounds=2)\n"
        "result = debate.run('What is 2 + 2?', options=['3', '4'])\n"
        "print(result.answer, result.calls)\n"
    ),
    claims=CLAIMS,
    limits=(
        "Reconstructed from an abstract: what is weighed here is this reconstruction, not the authors' system.",
        "In the full weighing, with strong conformity, DEAR was as often right as plain debate for a third of its "
        "cost, and half a point less often than critique-all with early stop, for seven tenths of its cost. Without "
        "the choice of peers, or without group evidence, it was as often right: only the choice of behaviour showed a "
        "gain.",
        "In all tasks but the recording the social response is a model (how far an agent follows what it reads); the "
        "simulator's beliefs are made up, the committee's are real. Nothing here shows how language models respond.",
        "The recording holds 20 questions of one small model under three prompts: one answer is 5 points. It tests the "
        "machinery and has no verdict; half of it trains the controller.",
        "Settings, the price of a call among them, were chosen on the simulator's tuning streams and hold for all "
        "tasks. DEAR had four prices there, after some twenty trials of sizes and rates by hand; the ring had 27 "
        "settings, ReConcile 9, all that it has; MAD and critique-all have none.",
        "One early series of 100 two-round plans of who speaks and whom to read, tried on tuning streams, had none "
        "that was right more than .2 points more often than critique-all with early stop. That is why half a point "
        "over it may not be there to be had without knowing who is who; the series is no part of the bench.",
        "A controller that knows who is who (identity) learns which agents to believe. Its fair rival knows that too: "
        "a vote weighted by each agent's record on other debates, for no more than the first answers.",
        "Every trained seed counts, also one that ended in a poor policy; the raw rows show each.",
        "Self-consistency draws further first answers from the same beliefs; its samples in the simulator and the "
        "committee share an agent's errors, as an agent's own samples do.",
        "A seed of the committee has classifiers of its own, but all seeds share the 897 test images.",
        "RUMAD, DyLAN, ChatEval, GroupDebate, S2-MAD and Free-MAD are not among the rivals: they need texts, ratings "
        "or a training of their own.",
        "A user's questions are debated under a controller trained on the simulator, never on the user's model.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "A control of conformity 0 alone is none: arguments still carry truth there. The control here is without "
        "arguments too.",
        "An earlier trial stored the right option first and broke ties by index: its gain of 3.4 points was that leak. "
        "Ties and the right option's place are random per episode here, and audit_label_leak looks for leaks.",
        "With discount 1 the reward for an agent's change of correctness telescopes: it is a bonus on final "
        "correctness and no penalty on conformity of its own.",
    ),
    config=Config,
)
