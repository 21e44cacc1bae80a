"""What is said of group memories, as sentences that paired seeds decide. A seed is a chat of its own.

Fixed before any chat of the frozen generator was put to the structured memory. Offsets are the bars of the
reconstruction; a margin of 0 asks for a lower limit above the bar and no more. The sentences about real threads were
fixed with reference figures of the same logs at hand, taken elsewhere with the same rules; those about a user's own
chat, without any bar, came later.
"""

from __future__ import annotations

from typing import Any

from steelyard.card import Claim

_OURS = "not of the paper: the structured memory is this library's own"
_NO_TOLERANCE, _TOLERANCE = 0.0, 0.03
_WITHOUT = {
    "bm25": "BM25",
    "bm25_header": "BM25 with header",
    "dense": "dense",
    "hybrid": "hybrid",
    "flat": "flat facts",
}
_PARTS = {
    "no_alias": ("aliases", "term_ambiguity"),
    "no_speaker": ("the speaker", "user_implicit"),
    "no_reply": ("reply links", "multi_hop"),
    "no_supersession": ("supersession", "knowledge_update"),
    "no_scope": ("scope", "micro"),
}
_KINDS = {
    "term_ambiguity": "term ambiguity",
    "user_implicit": "first-person questions",
    "multi_hop": "multi-hop questions",
    "knowledge_update": "knowledge update",
    "micro": "all questions",
}
_THREAD_PARTS = {
    "no_recency": "the recency window",
    "no_same_speaker": "the same speaker",
    "no_links": "predicted reply links",
}


def _claim(id: str, text: str, versus: Any, *, task: str, metric: str, offset: float, **rest: Any) -> Claim:
    given = {"arm": "structured", "paper": _OURS, **rest}
    return Claim(
        id=id, text=text, metric=metric, versus=versus, direction="higher", offset=offset, tasks=(task,), **given
    )


def _threads(id: str, text: str, versus: str | float, offset: float, **rest: Any) -> Claim:
    return _claim(id, text, versus, task="irc", metric="recall", offset=offset, **rest)


def _questions(
    id: str, text: str, versus: str | float, metric: str, offset: float = _NO_TOLERANCE, **rest: Any
) -> Claim:
    return _claim(id, text, versus, task="six_types", metric=metric, offset=offset, **rest)


THREAD_CLAIMS = (
    _threads("threads_above_bm25", "In real threads, with predicted links, recall@10 is .4 above BM25", "bm25", 0.4),
    _threads("threads_above_header", "… .3 above BM25 with speaker header", "bm25_header", 0.3),
    _threads("threads_above_recency", "… .1 above the next ten messages, the baseline to beat", "recency", 0.1),
    _threads("threads_gold_links", "With people's reply links, recall@10 is at least .95", 0.95, 0.0, arm="gold_links"),
    *(
        _threads(f"threads_{arm}", f"In real threads, recall@10 gains by {name}", arm, 0.0)
        for arm, name in _THREAD_PARTS.items()
    ),
)
QUESTION_CLAIMS = (
    _questions(
        "bm25_not_below_flat", "BM25 answers at most .03 fewer questions than flat facts do", "flat", "micro",
        -_TOLERANCE, arm="bm25", paper="BM25 matches or exceeds most agent memories (abstract)",
    ),
    _questions(
        "bm25_finds_more_than_flat", "BM25 finds at most .03 less of the evidence than flat facts do", "flat", "recall",
        -_TOLERANCE, arm="bm25", paper="ingestion throws away what group memory needs (abstract)",
    ),
    *(
        _questions(
            f"hard_types_{arm}",
            f"Knowledge update and term ambiguity are the two lowest types of {name}", 0.0, "others_above", arm=arm,
            paper="27.1 % and 37.7 % against 46.0 % on average, best system",
        )
        for arm, name in _WITHOUT.items()
    ),
    _questions("above_bm25", "The structured memory answers .15 more questions than BM25", "bm25", "micro", 0.15),
    _questions("above_header", "It answers more questions than BM25 with header", "bm25_header", "micro"),
    _questions("finds_more", "It finds more of the evidence than BM25 with header", "bm25_header", "recall"),
    *(
        _questions(f"part_{arm.removeprefix('no_')}", f"Answers to {_KINDS[kind]} gain by {name}",
                   arm, kind)
        for arm, (name, kind) in _PARTS.items()
    ),
    _questions(
        "solvable", "With the gold evidence the same reader answers at least .95", 0.95, "micro", arm="gold_evidence",
        paper="not of the paper: that the questions can be answered",
    ),
)  # fmt: skip


def _own(id: str, text: str, versus: str) -> Claim:
    return _claim(id, text, versus, task="user", metric="recall", offset=0.0)


OWN_CLAIMS = (
    _own("own_above_bm25", "On your chat, the structured memory finds more of what belongs together than BM25", "bm25"),
    _own("own_above_header", "… more than BM25 with header", "bm25_header"),
    _own("own_above_recency", "… more than the next ten messages, where threads are asked for", "recency"),
    *(_own(f"own_{arm}", f"On your chat, more is found with {name}", arm) for arm, name in _THREAD_PARTS.items()),
)


def _paper(id: str, text: str, arm: str, versus: str | float, paper: str, metric: str = "micro") -> Claim:
    return Claim(
        id=id, text=text, metric=metric, arm=arm, versus=versus, direction="higher", paper=paper, paper_scale_only=True
    )


PAPER_CLAIMS = (
    _paper("paper_strongest", "The strongest memory answers 46.0 % of 715 questions", "strongest memory", "bm25",
           "46.0 % (329 of 715), micro"),
    _paper("paper_knowledge_update", "… of knowledge update 27.1 %", "strongest memory", "bm25",
           "27.1 % (29 of 107)", "knowledge_update"),
    _paper("paper_term_ambiguity", "… of term ambiguity 37.7 %", "strongest memory", "bm25",
           "37.7 % (40 of 106)", "term_ambiguity"),
    _paper("paper_bm25", "BM25 matches or exceeds most agent memories", "bm25", "most agent memories",
           "43.22 % (309 of 715) against the maximum of 46.0 %"),
)  # fmt: skip
CLAIMS = (*THREAD_CLAIMS, *QUESTION_CLAIMS, *OWN_CLAIMS, *PAPER_CLAIMS)
