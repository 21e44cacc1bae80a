"""The decision ledger: the abstract names three stages and what they are for; nearly every choice below is ours."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="D1", what="Group evidence", chosen="shares, entropy, margin, flips; belief, vacuity and dissonance of "
        "subjective logic", source=Source.RECON, why="the abstract says consensus and divergence and gives no formula; "
        "these need no individual confidence", alternatives=("Dempster-Shafer", "a function of yours: evidence="),
        knob="evidence",
    ),
    Decision(
        id="D2", what="Memory of the evidence", chosen="all rounds count alike (gamma 1)", source=Source.RECON,
        why="debates are short", alternatives=("group_evidence(gamma=) below 1",), knob="evidence_gamma",
    ),
    Decision(
        id="D3", what="Consultation tendency", chosen="drift of the answers' shares", source=Source.RECON,
        why="the plainest reading of what the group turns to", alternatives=("a function of yours: evidence=",),
        knob="evidence",
    ),
    Decision(
        id="D4", what="Conformity alarm", chosen="consensus rises while adopters' rationales have a cosine above .9 to "
        "the majority's", source=Source.RECON, why="agreement without a new argument is what blind conformity looks "
        "like; off without an embedder", alternatives=("another threshold",), knob="alarm_cosine",
    ),
    Decision(
        id="D5", what="Who: whom an agent reads", chosen="a score for each peer, each drawn on its own, at most d_max",
        source=Source.RECON, why="equivariant and as fine as the environment's actions",
        alternatives=("macro: one of five sets",), knob="selection",
    ),
    Decision(
        id="D6", what="How: an agent's behaviours", chosen="keep, revise, critique, explore at temperatures .3, .7, 1 "
        "for the last three", source=Source.RECON, why="no call at all, and three ways to use what was read",
        alternatives=("a subset", "other prompts and temperatures in Debate"), knob="behaviours",
    ),
    Decision(
        id="D7", what="Reward", chosen="1 for a right vote, .3 times right agents, .5 times an agent's own change; .02 "
        "a call-unit, in the bench the price tuned on tuning streams", source=Source.RECON,
        why="without labels in the reward lowering adoption does not raise accuracy; with discount 1 the shaping is "
        "no more than a bonus on final correctness", alternatives=("other weights", "a function of yours: reward="),
        knob="lam",
    ),
    Decision(
        id="D8", what="Training", chosen="multi-agent PPO, one shared policy, central critic, ratios clipped per "
        "agent; clip .2, decay .95, 4 epochs, rate 3e-4, entropy .01, widths 64, 64. The bench trains with what was "
        "tuned on tuning streams: 2 epochs, rate 2e-3 and entropy .003, both falling to 0, 30,000 debates, 1,024 at a "
        "time", source=Source.RECON,
        why="second hand: both agents are optimised jointly by multi-agent reinforcement learning; the algorithm is "
        "not named", alternatives=("stable-baselines3's PPO on DebateEnv.as_gymnasium()",), knob="algo",
    ),
    Decision(
        id="D8a", what="Credit of an agent", chosen="what vote and right agents gained by its own change of answer",
        source=Source.RECON, why="the vote is everybody's doing; paid alike, an agent mostly learns from noise",
        alternatives=("team: all are paid alike",), knob="credit",
    ),
    Decision(
        id="D9", what="Agents told apart", chosen="no: the policy is equivariant", source=Source.RECON,
        why="works for any team and any number of agents", alternatives=("identity=True for a fixed team",),
        knob="identity",
    ),
    Decision(
        id="D10", what="When a debate stops", chosen="when unanimous", source=Source.RECON,
        why="nothing is left to read", alternatives=("stable: belief of .8 and nobody moved", "never"),
        knob="early_stop",
    ),
    Decision(
        id="D11", what="Final answer", chosen="majority, ties by the earliest stable agent, then the tie order",
        source=Source.RECON, why="confidence is what the paper distrusts", alternatives=("belief", "reconcile"),
        knob="vote",
    ),
    Decision(
        id="D12", what="Ties", chosen="a permutation of each episode, everywhere", source=Source.DEFAULT,
        why="a tie that goes to a stored order leaks the label where the truth has a place in it; not optional",
    ),
    Decision(
        id="D13", what="Place of the right option", chosen="random in every episode", source=Source.DEFAULT,
        why="a first trial stored it as option 0 and gained 3.4 points from that alone; not optional",
    ),
    Decision(
        id="D14", what="Unit of cost", chosen="1 a call and 1/2 each peer's message in it", source=Source.RECON,
        why="a message read is prompt, an answer is generated; real back ends count tokens too",
        alternatives=("tokens",), knob="cost",
    ),
    Decision(
        id="D15", what="Conformity rates", chosen="joint over all agents, and conditional on those right at first",
        source=Source.DEFAULT, why="papers give one or the other without saying which",
    ),
    Decision(
        id="D16", what="Acceptance", chosen="two claims for each rival: lower limit above minus half a point; lower "
        "limit above plus half a point", source=Source.RECON, why="the bar set for this bench (estimate at least half "
        "a point up) is weaker than the verdict's rule, which decides; the estimate is in the sentence",
        knob="margin",
    ),
    Decision(
        id="D17", what="Headline conformity of the simulator", chosen="3.5", source=Source.RECON,
        why="strong enough that blind conformity is seen; 1.6 and 0 are tasks, others a curve",
        alternatives=("any",), knob="conformity",
    ),
    Decision(
        id="D18", what="Decisions at inference", chosen="the likeliest", source=Source.RECON,
        why="equal states, equal decisions; drawn ones did worse in one early series on tuning streams, not repeated "
        "since", alternatives=("sample",), knob="decision",
    ),
)  # fmt: skip
