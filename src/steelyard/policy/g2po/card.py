"""What G2PO does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.policy.g2po.claims import CLAIMS
from steelyard.policy.g2po.config import Config
from steelyard.policy.g2po.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="g2po",
    name="G2PO",
    summary="Critic-free credit for the steps of an agent: the rollouts of a task become a graph of states, and an "
    "action is credited by where it led; which states count as the same decides the sign.",
    does=(
        "Several rollouts of one task are merged: equal anchors become one node, whose value is the mean discounted "
        "return of all visits. An action gets the episode's advantage (GRPO), plus how the value it led to compares "
        "with what other actions from the same node led to, plus the rise in value along its edge in standard "
        "deviations over the task. It is a function of flat arrays, costs some tenths of a microsecond a step and "
        "needs no critic."
    ),
    use_when=(
        "An agent gets one reward at the end of many steps and several rollouts of a task pass through the same "
        "states.",
        "You can say what a state is: simulator state, or an observation that contains it.",
        "GRPO learns slowly because all steps of a rollout get the same credit.",
    ),
    avoid_when=(
        "Your only anchor is a text that different states share ('You pick up the mug'): the check of anchors says so, "
        "and with such anchors a small policy unlearned here.",
        "Nearly every state is visited once: there is nothing to average or compare.",
        "One rollout a task: everything but the edges is 0.",
    ),
    cost="One pass over the steps: hashing of anchors, a few sums by group. No model, no GPU.",
    paper=Paper(
        title="Group-Graph Policy Optimization for Long-Horizon Agentic Reinforcement Learning",
        authors="Wang, Song, Zihan Zhang, Shaohan Huang, Haizhen Huang, Furu Wei, Deng, Sun, Qi Zhang",
        identifier="arXiv 2606.22995v1",
        venue="NeurIPS 2026",
        basis="Equations and tables by transcriptions at second hand; semantics checked against what is known of the "
        "authors' code (Nala-YN/G2PO, Apache-2.0). Written anew from the equations.",
    ),
    usage=(
        "import numpy as np\n"
        "from steelyard.policy import StepBatch, alias_report, g2po_advantage, grpo\n"
        "batch = StepBatch(\n"
        "    task=[0] * 6, traj=[0, 0, 0, 1, 1, 1], t=[0, 1, 2, 0, 1, 2],\n"
        "    reward=[0, 0, 10.0, 0, 0, 0], anchor=['A', 'B', 'C', 'A', 'B', 'B'],\n"
        ")\n"
        "print(np.round(g2po_advantage(batch), 2), np.round(grpo(batch), 2))\n"
        "print(alias_report(batch).lines())\n"
    ),
    claims=CLAIMS,
    limits=(
        "What is weighed here is a log-linear policy on text games, not a language model; the paper's 22 points are "
        "not tested by it.",
        "The simulator's state as an anchor is privileged information during training (never while playing). It holds "
        "no reward. The anchor of observation and one turn of history uses none, and stands beside it.",
        "The state anchor is nearly Markov, not quite: opened receptacles and moved objects are missing. The check of "
        "anchors prints the share of steps on states with different admissible actions for every arm.",
        "Anchors other than the raw observation were tried, at second hand, after that had failed; all arms that were "
        "tried there are arms here.",
        "Repeated visits of a state by one rollout are not independent, so that averaging reduces variance by less "
        "than the number of visits says; a state's number of different rollouts is shown beside it.",
        "A policy step takes the mean over steps, so that long rollouts weigh more, in every arm alike. Arms are "
        "compared at equal iterations; an arm that wins sooner plays fewer steps, which are shown.",
        "Episodes end after 30 commands here, after 50 in the paper.",
        "The arms that leave out a term take the whole method's learning rate (.05). In a first full weighing they had "
        "tuned ones of their own (.1, for the node term by a tie), learned faster than the whole, and both claims of "
        "added terms came out reversed; that compared rates, so it was changed after it had been seen. At .1 for all, "
        "on ten tuning seeds, the whole less the episode and edge terms had an area of -.026 [-.086, .034], less the "
        "episode and node terms .021 [-.040, .082].",
        "GiGPO's tuned rate is .1 by the raw observation, .05 by the state: their difference is not that of anchors.",
        "Each arm had three learning rates on three tuning seeds and nothing else was tuned; weights of the terms are "
        "the paper's.",
        "The official games come from a mirror or from an ALFWorld folder of yours; 600 of the 3,553 training games "
        "are in the packed file. Without them the games made here serve, which are smaller and easier.",
        "On a user's own rollouts there is no truth: credit from one half of the rollouts is compared with Monte-Carlo "
        "advantages from the other half, which are noisy themselves, only where both halves visited.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "The paper says that observations contain a few steps of history; the authors' code groups by the raw text of "
        "the environment. Here the anchor is an argument, and both are arms.",
        "The last step of a success has the value .95 * R and leads to R itself, so that the last edge always rises: a "
        "seam of the transcribed rules, kept.",
        "The variance of an edge's credit is said to be at most that of a single visit. That needs two visits at both "
        "of its ends; edge_variance_bound says when it holds.",
        "The code's test for success is a return of exactly 10, which fails for shaped or penalised rewards: here a "
        "flag says it.",
    ),
    config=Config,
)
