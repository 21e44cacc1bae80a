"""The decision ledger: every choice that decides results, whose it is, and the setting that changes it."""

from __future__ import annotations

from typing import Any

from steelyard.card import Decision, Source


def _decision(id: str, what: str, chosen: str, source: Source, why: str, **rest: Any) -> Decision:
    return Decision(id=id, what=what, chosen=chosen, source=source, why=why, **rest)


_PAPER, _CODE, _OURS = Source.PAPER, Source.CODE, Source.RECON
DECISIONS = (
    _decision("G1", "Average", "micro over all questions; macro shown beside it", _PAPER,
              "types differ in size, and the printed averages are micro"),
    _decision("G2", "Indexed text", "the content alone", _CODE, "as the release does; the header is an arm of its own",
              alternatives=("header: author, role, channel, phase, content",), knob="fields"),
    _decision("G3", "Query", "the asker's id, then the question", _CODE, "as the release does",
              knob="query_prefix_asker"),
    _decision("G4", "Messages a reader gets", "10", _CODE, "as the release does", knob="k"),
    _decision("G5", "Tokens", "lower-cased runs of letters, digits and underscores, no stop words", _CODE,
              "as the release does", alternatives=("a callable",), knob="tokeniser"),
    _decision("G6", "BM25", "Okapi, k1 1.5, b .75, epsilon .25", _CODE, "the defaults of the release's package; equal "
              "to it to 1e-9", alternatives=("other variants, not for protocol runs",), knob="epsilon"),
    _decision("G7", "Order on load", "channel, timestamp, id", _CODE, "as the release does"),
    _decision("G8", "Reader and judge", "offline: the first passage with an answer of the asked form, compared as "
              "normalised text; in the protocol a large model behind an endpoint", _OURS, "weighings need no model; "
              "absolute figures belong to a reader, so every figure stands beside BM25's with the same one",
              alternatives=("LMReader, LMJudge", "any callable"), knob="reader"),
    _decision("G9", "Unclear judgement", "counts as wrong, and is counted apart", _CODE, "as the release does"),
    _decision("G10", "Evaluated questions", "all of the release (745) unless the filtered 715 are named", _CODE,
              "two domains ship unfiltered", knob="filtered"),
    _decision("G11", "Generator", "stories of decisions, dates, paths, statuses and blockers; replies by chain or "
              "branch; names by speaker and listener", _OURS, "the abstract says graph-grounded synthesis with "
              "personas and audiences; the rates have no source", alternatives=("an LLM realiser",), knob="p_chain"),
    _decision("G12", "Adversarial search", "up to 5 further wordings and askers; the one is kept that fewest "
              "attackers answer; only solvable ones are tried", _OURS, "the abstract names the idea; attackers have no "
              "structure, so that the structured memory is not what questions are chosen against",
              knob="adversarial_iters"),
    _decision("G13", "Hardness", "BM25 .3 to .45 micro, flat facts not above it, dense near it, on tuning seeds; "
              "frozen as version 1.0 before the structured memory read a chat", _OURS, "else generator and memory "
              "share their cues and the result is circular", alternatives=("easy: the circular chat",),
              knob="hardness"),
    _decision("G14", "Factors outside scope and for others' messages", ".05 and .1", _OURS, "of the reconstruction",
              knob="scope_out"),
    _decision("G15", "Lending along replies", ".9 per reply, two replies, closed form", _OURS,
              "two sweeps in place let a score travel further in long chains", knob="hops"),
    _decision("G16", "Supersession", "x 1.2 for a change, x .6 for what it changed, transitive", _OURS,
              "of the reconstruction", alternatives=("a change detector of yours",), knob="change_boost"),
    _decision("G17", "Aliases", "glossary lines, and best mutual matches of contexts in the same thread above .5",
              _OURS,
              "the threshold has no measured value", alternatives=("a table of yours", "None: glossary only"),
              knob="alias_tau"),
    _decision("G18", "Abstention", "off; a threshold by split conformal prediction on request", _OURS,
              "it needs unanswerable questions of the same chat", knob="abstain"),
    _decision("G19", "Weights of the thread mode", "3, .8, depth 6, .3, .05, .5", _OURS, "of the reconstruction",
              knob="link"),
    _decision("G20", "Windows of the reply predictor", "150, 60 and 40 lines", _OURS, "of the reconstruction",
              alternatives=("any callable",), knob="address_window"),
    _decision("G21", "Constant of rank fusion", "60", _OURS, "the usual one", knob="rrf_k"),
    _decision("G22", "Key of a flat fact", "phase and first four content words; the later one overwrites", _OURS,
              "the plainest form of extract-and-overwrite", alternatives=("an extractor of yours",), knob="flat_key"),
    _decision("G23", "Ties", "a permutation by seed and id", _OURS, "the order of arrival would give answers away",
              knob="seed"),
    _decision("G24", "Privacy", "the audience is looked at before anything is ranked", _OURS,
              "a hidden message must not be returned, nor lend a score", alternatives=("None: public",),
              knob="audience"),
)  # fmt: skip
