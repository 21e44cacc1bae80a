"""What GoSkills does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.agents.goskills.claims import CLAIMS
from steelyard.agents.goskills.config import Config
from steelyard.agents.goskills.ledger import DECISIONS
from steelyard.card import Card, Paper

__all__ = ["CARD", "Config"]

CARD = Card(
    id="goskills",
    name="GoSkills",
    summary="Retrieves skills in groups and hands the agent a contract (START, SUPPORT, CHECK, AVOID) within a budget.",
    does=(
        "A folder of SKILL.md files becomes a typed graph (dependency, workflow, semantic, alternative) and small "
        "groups around an anchor, whose members have roles. A task becomes required features; one anchor group is "
        "chosen by a fixed linear score, support groups follow, the plan is squeezed into a budget of skills and "
        "characters, and what is required but not covered is filled up while the budget lasts. The result is a "
        "contract: where to start, what supports and when, what to check, what to avoid, and a DEBT line for what the "
        "library cannot cover. Nothing is trained and no language model is needed."
    ),
    use_when=(
        "An agent has dozens to thousands of skills, more than fit its context, and tasks that need several of them.",
        "Tasks often name the tools that they want: named skills are never dropped while the budget lasts.",
        "It should be said what the library cannot do: the DEBT line says it, where a ranked list stays silent.",
    ),
    avoid_when=(
        "A task needs one skill: a ranked list is simpler, and BM25 with named skills first is a strong one.",
        "Tasks never name skills: a plain hybrid of BM25 and vectors found more there; weigh on your own tasks.",
        "All skills fit the context: giving all has beaten flat vector retrieval in Graph of Skills' own figures.",
    ),
    cost=(
        "Reading and linking a few hundred skills takes seconds, once. A query costs one BM25 search, the vectors of "
        "its clauses and milliseconds of selection; the context is bounded by 12,000 characters by default."
    ),
    paper=Paper(
        title="Group of Skills: Group-Structured Skill Retrieval for Agent Skill Libraries",
        authors="Zeng, Huo, Zhang, Ye, Zhuo, Liu, Lu, Wen, Tang",
        identifier="arXiv 2605.06978",
        venue="NeurIPS 2026",
        basis="The abstract and a third party's summary of the full paper, without its tables and its code; constants "
        "are those of Graph of Skills (arXiv 2604.05333), its structural reference; weights and equations are "
        "reconstructions.",
    ),
    usage=(
        "from steelyard.agents import GoSkillsRetriever, Skill, SkillLibrary\n"
        "library = SkillLibrary.from_skills([  # in earnest: SkillLibrary.from_dir('skills')\n"
        "    Skill('csv-reader', 'Reads CSV files into tables.', outputs=('table',)),\n"
        "    Skill('report-writer', 'Writes reports in PDF from tables.', inputs=('table',), outputs=('pdf',)),\n"
        "    Skill('pdf-checker', 'Checks the PDF reports of report-writer.', inputs=('pdf',)),\n"
        "])\n"
        "library.build_graph().build_groups()\n"
        "contract = GoSkillsRetriever(library, budget=3).retrieve('Read sales.csv and write a report as PDF')\n"
        "print(contract.render('markdown'))\n"
    ),
    claims=CLAIMS,
    limits=(
        "A seed is a fold of tasks: every seed has examples (or plugins) of its own that no other seed has, and the "
        "library is the whole one each time, so decoys are all other skills. Retrieval is deterministic; what varies "
        "between seeds is the tasks, so the intervals are over tasks, with all queries of one example or plugin in one "
        "fold. Ten folds of 23 examples are two or three each: the intervals are wide, and rightly so.",
        "Must-hit of any method that puts named skills first is 1.00 by construction: the same detector finds the "
        "names for the backfill and for the measure. It says nothing about ranking.",
        "Most of the gain over plain rankings is coverage backfill. In the full weighing it was 50 points of recall "
        "on whole workflows. Over the two hybrids with named skills first nothing was gained: no interval lies above "
        "0, and at five skills it was 7 points behind on whole workflows and 4 on masked steps (reversed). Besides, "
        "support groups changed next to no selection: what they hold is in the backfill's pool already, so with "
        "backfill they only give roles. In a first measurement of another version they added about nothing, too.",
        "Growth of a plan stops where a group newly covers less than a twentieth of what is required. A whole workflow "
        "requires some 60 features, so 16 of the 23 plans were the anchor group alone: without backfill GoSkills hands "
        "over about two skills of eight, and its must-hit there (about a third) is no like for like with the "
        "second-hand .73, whose plans are not known. With the stop on the whole score its recall was .33, not .24.",
        "Where tasks name no skill (masked steps, plugins) nothing was gained over the plain hybrid; on plugins "
        "GoSkills was 7 points behind it (reversed), and a difference from Graph of Skills' PageRank was not found.",
        "The vector of a whole query sees its first 96 tokens only, which is little of a full workflow; the arm with a "
        "vector per clause, and the hybrid built on it, are the fair comparisons.",
        "Steps are asked with every name masked, and a step's gold are the skills that it named: a strict label of one "
        "skill, where backfill has nothing to fill in by name.",
        "A plugin's skills are the gold of its commands and agents: weak labels, wrong by about one skill a plugin.",
        "The library is the part of three public collections whose licence allows it: 287 skills, not 328, so gold "
        "lists are 6.00 skills long on average, not 9.04; figures of the full set are others.",
        "Visible-requirement coverage is computed by GoSkills' own schema and cover function, also for its rivals.",
        "The simulated agent is a rule, no agent: it succeeds when all gold skills are there and the first skill "
        "executed is one of them, less 3 % for every skill too many. It is no evidence about rewards.",
        "Rewards and running times of real agents (SkillsBench, ALFWorld) need a model and were not measured.",
        "Weights were set before the first run and never tuned on the tasks; with other weights results would differ. "
        "The toy library was seen while the bench was written: its verdicts show that the bench works, no more.",
        "After two full weighings had been read, reviewers and a newcomer had code changed that decides results: "
        "fusions no longer count what scored 0, an anchor's coverage is its group's, a clause with several verbs is "
        "several operations, bare verbs and words of most skills are no match. None of these was chosen by scores. One "
        "was: colons, semicolons and line breaks are taken out of what the encoder reads, for every arm alike, because "
        "they took room from words in the 96 tokens and made the vector arms weaker than a plain text would (recall "
        ".40 for .41 at 8 skills, .42 for .49 at 3). The receipt is of the weighing after them.",
        "On a folder of your own without tasks, held-out sentences must find their skill: that measures whether "
        "descriptions tell skills apart, not whether sets of skills are found.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "Eight skills of 2,400 characters do not fit 12,000 characters: a fixed 2,400 each would turn a budget of 8 "
        "into 5 in silence, so the texts share what the contract leaves.",
        "The stop rule of the expansion is said of the gain and of the coverage gain; it is read as the normalised "
        "coverage gain, with the whole score as a setting.",
        "Coverage in the acceptance rule cannot be GoSkills' own, which would be judged by itself; it is read as "
        "recall of the gold skills.",
    ),
    config=Config,
)
