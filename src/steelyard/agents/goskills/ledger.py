"""The decision ledger: every choice that the sources do not settle, and the setting that changes it."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="S1", what="Edge types of the skill graph", chosen="dependency, workflow, semantic, alternative",
        source=Source.SECOND_HAND, why="a summary of the full paper lists exactly the four types of Graph of Skills, "
        "whose code is public", alternatives=("a linker of your own",), knob="linker",
    ),
    Decision(
        id="S2", what="Weights of the types, and of their reverse edges",
        chosen="1 / .7 / .4 / .3, reversed 1 / .5 / .2 / .1", source=Source.SECOND_HAND,
        why="the constants of Graph of Skills, the structural reference", alternatives=("any weights",),
        knob="type_weights",
    ),
    Decision(
        id="S3", what="Size of a group", chosen="an anchor and at most two members with roles: preprocessor, parser, "
        "formatter, checker, fallback", source=Source.SECOND_HAND, why="a summary of the full paper",
        alternatives=("any number of members",), knob="max_members",
    ),
    Decision(
        id="S4", what="Size of a plan", chosen="one anchor group and at most two support groups",
        source=Source.SECOND_HAND, why="a summary of the full paper", alternatives=("any number of support groups",),
        knob="max_support",
    ),
    Decision(
        id="S5", what="Dimensions of the query schema", chosen="goal, task_name, domain, operations, artifacts, "
        "constraints, keywords", source=Source.RECON, why="the sources say seven; Graph of Skills has these seven",
        alternatives=("a schema callable of your own",), knob="schema_reader",
    ),
    Decision(
        id="S6", what="Confidence of a feature, and from where on it is required", chosen="literal name or format "
        ".95, operation or artifact .7, by embedding .4; required from .7", source=Source.RECON,
        why="fixed before the first run; no number is known", alternatives=("any confidences",), knob="confidences",
    ),
    Decision(
        id="S7", what="How well a skill covers a feature", chosen="1 on a literal hit, else (cosine - .3) / .5 cut to "
        "[0, 1]", source=Source.RECON, why="no formula is known; linear between unrelated and nearly equal texts",
        alternatives=("literal hits only",), knob="cover",
    ),
    Decision(
        id="S8", what="When a feature counts as covered", chosen="cover of .5 or more (a cosine of .55)",
        source=Source.RECON, why="no number is known", alternatives=("any threshold",), knob="theta_cov",
    ),
    Decision(
        id="S9", what="Weights of the anchor's score", chosen=".30 words, .30 cosine, .20 coverage, .10 role, .05 "
        "centrality, .05 group, -.30 incompatible", source=Source.RECON,
        why="the sources say fixed and linear, not which; set a priori and never tuned on the tasks",
        alternatives=("any weights",), knob="weights",
    ),
    Decision(
        id="S10", what="Which support groups are added, and when to stop", chosen=".5 coverage gain + .3 link + .2 "
        "anchor score; stop when the gain in coverage is below .05", source=Source.RECON,
        why="greedy on the group graph is second hand, the weights are not", alternatives=("any weights",),
        knob="expansion",
    ),
    Decision(
        id="S11", what="Which payloads are kept", chosen="greedy on coverage gain + .3 anchor score + 1 for a literal "
        "requirement, cost 1 a skill; the anchor stays", source=Source.RECON,
        why="a bounded set is second hand, its score is not", alternatives=("cost in tokens",), knob="cost",
    ),
    Decision(
        id="S12", what="Budgets", chosen="8 skills, 2,400 characters a skill, 12,000 in all", source=Source.SECOND_HAND,
        why="the constants of Graph of Skills; the texts share what the contract leaves, since 8 of 2,400 do not fit",
        alternatives=("any budget, characters or tokens",), knob="budget",
    ),
    Decision(
        id="S13", what="Backfill of what is required and not covered", chosen="on, skills that the task names first",
        source=Source.SECOND_HAND, why="must-hit 1.00 with it and .73 without is second hand; the order is ours",
        alternatives=("off",), knob="backfill",
    ),
    Decision(
        id="S14", what="Fields of the contract", chosen="START, SUPPORT, CHECK, AVOID, always all four, and a DEBT "
        "line",
        source=Source.PAPER, why="the abstract names the four; the line for what is not covered is second hand",
    ),
    Decision(
        id="S15", what="How edges are found without a model", chosen="mentions of other skills' names, classified by "
        "cue words near them; nearest neighbours for semantic edges", source=Source.RECON,
        why="Graph of Skills asks a language model; rules are free and repeatable", alternatives=("an LLM linker",),
        knob="linker",
    ),
    Decision(
        id="S16", what="When nothing in the library matches", chosen="an empty contract whose DEBT holds all that is "
        "required (the task itself where nothing is): no telling word in common, no cosine of .3",
        source=Source.RECON,
        why="an arbitrary anchor would send an agent astray", alternatives=("a floor of your own",), knob="floor",
    ),
    Decision(
        id="S17", what="Coverage when nothing is required", chosen="1.0, marked as vacuous", source=Source.RECON,
        why="nothing is missing; the mark keeps it from passing as a success", alternatives=("nan",), knob="vacuous",
    ),
    Decision(
        id="S18", what="What coverage means in the acceptance rule", chosen="recall of the gold skills",
        source=Source.RECON, why="GoSkills' own coverage would be judged by its own schema; it is reported beside it",
        alternatives=("visible-requirement coverage",), knob="coverage",
    ),
    Decision(
        id="S19", what="What each arm is given", chosen="the same query string, from which alone the schema is "
        "computed",
        source=Source.RECON, why="in a first measurement one arm had seen more than the others",
        alternatives=("first lines of the steps in the place of their whole text",), knob="query",
    ),
    Decision(
        id="S20", what="Ties", chosen="by name", source=Source.RECON,
        why="the order of files must not decide", knob="ties",
    ),
)  # fmt: skip
