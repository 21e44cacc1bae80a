"""Disrupt, rectify, respond, vote: one prompt is asked ``n`` times through random noise and the majority decides."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.arguments import check_count, check_gamma, check_one_of
from steelyard.guard.dr_smoothing.core import (
    as_kernel,
    disrupt_insert,
    disrupt_patch,
    disrupt_random,
    disrupt_swap,
    vote_threshold,
)
from steelyard.guard.dr_smoothing.judges import JudgeError, PrefixJudge, as_judge
from steelyard.guard.dr_smoothing.prompts import Scope, user_turns
from steelyard.guard.dr_smoothing.rectifiers import (
    MAX_RATIO,
    Chain,
    LLMRectifier,
    Rectified,
    SpellRectifier,
    as_rectifier,
    guarded,
)
from steelyard.guard.dr_smoothing.result import Copy, SmoothedResponse, SmoothingWarning
from steelyard.guard.dr_smoothing.vote import Drawn, Vote
from steelyard.models.protocols import CallableLM, CausalLM, Prompt, as_lm

Choose = Literal["uniform", "first", "longest"]
OnJudgeError = Literal["raise", "safe", "jailbroken"]
SAMPLING = ("max_new_tokens", "temperature", "top_p", "stop")


class DRSmoothing:
    """A defence round a language model: copies of the user's text are disrupted, rectified, answered and judged.

    Copy ``j`` draws from streams named after the seed, the prompt and ``j`` alone, so a prompt's votes and answer are
    the same in every batch. With a known seed the noise is known too: against attackers pass ``seed=None``.
    Source: the paper's abstract for the scheme; the vote rule is SmoothLLM's; the rest is a reconstruction.

    Args:
        generate: The target: a language model, or a function from a list of prompts to a list of texts. May be left
            out here and given with each call.
        disrupt: A kernel, a function ``f(text, rng) -> text``, a list of them (one is drawn per copy), or "random".
            Default: swap ``q`` of the characters.
        q: Share of the characters for the default ``disrupt``; other kernels take a share of their own.
        rectify: A rectifier, a function from a text to a text, or None (no rectification: SmoothLLM). Default:
            :class:`SpellRectifier`.
        judge: A judge, or a function from an answer to a bool (True: complied). Default: :class:`PrefixJudge`.
        n: Copies. 10 is the paper's standard; an odd number, such as 9, leaves no ties.
        gamma: Vote threshold in [0, 1).
        seed: Root of all draws; None draws a fresh one per call, which the result tells.
        judge_tokens: Judge answers of so many tokens and let only the winner's go on to its end.
        early_stop: Stop as soon as the verdict is certain; the answer is then one of the copies that were asked.
        dedupe: Ask the target once for equal copies and count the vote for each: "auto" when the temperature is known
            to be 0, True, or False.
        scope: "last_user", or "all_user" to disrupt every turn of the user.
        on_rectifier_failure: "fallback" to the disrupted text, or "raise" when the rectifier raises.
        on_rectifier_refusal: "safe_vote" (the refusal is the copy's answer), or "fallback" to the disrupted text.
        on_judge_error: What a copy without a verdict counts as: "raise", "safe" or "jailbroken".
        choose: Which answer of the majority is returned: "uniform" at random, "first" or "longest".
        sampling: max_new_tokens, temperature, top_p and stop for the target.

    Raises:
        InputError: An argument is out of range or does not fit.
    """

    def __init__(
        self,
        generate: Any = None,
        *,
        disrupt: Any = None,
        q: float | None = None,
        rectify: Any = "spell",
        judge: Any = None,
        n: int = 10,
        gamma: float = 0.5,
        seed: int | None = 0,
        judge_tokens: int | None = None,
        early_stop: bool = False,
        dedupe: bool | Literal["auto"] = "auto",
        scope: Scope = "last_user",
        on_rectifier_failure: Literal["fallback", "raise"] = "fallback",
        on_rectifier_refusal: Literal["safe_vote", "fallback"] = "safe_vote",
        on_judge_error: OnJudgeError = "raise",
        choose: Choose = "uniform",
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        check_count("n", n, least=1)
        check_gamma(gamma)
        if judge_tokens is not None:
            check_count("judge_tokens", judge_tokens, least=1)
        check_one_of("scope", scope, get_args(Scope))
        check_one_of("on_rectifier_failure", on_rectifier_failure, ("fallback", "raise"))
        check_one_of("on_rectifier_refusal", on_rectifier_refusal, ("safe_vote", "fallback"))
        check_one_of("on_judge_error", on_judge_error, get_args(OnJudgeError))
        check_one_of("choose", choose, get_args(Choose))
        if dedupe not in (True, False, "auto"):
            raise InputError(f"dedupe must be True, False or 'auto', got {dedupe!r}")
        self.sampling = checked_sampling(sampling)
        if dedupe is True and self.sampling.get("temperature", 0) != 0:
            raise InputError("dedupe=True needs temperature 0: equal copies would answer differently above it")
        self.generate = None if generate is None else as_lm(generate)
        self.disrupt = _kernel(disrupt, q)
        spell = isinstance(rectify, str) and rectify == "spell"
        self.rectify = None if rectify is None else as_rectifier(SpellRectifier() if spell else rectify)
        self.judge = as_judge(PrefixJudge() if judge is None else judge, catch=on_judge_error != "raise")
        self.n, self.gamma, self.seed = n, gamma, seed
        self.judge_tokens, self.early_stop, self.dedupe, self.scope = judge_tokens, early_stop, dedupe, scope
        self.on_rectifier_failure, self.on_rectifier_refusal = on_rectifier_failure, on_rectifier_refusal
        self.on_judge_error, self.choose = on_judge_error, choose

    @classmethod
    def paper(cls, generate: Any, rectifier_lm: Any = None, **options: Any) -> DRSmoothing:
        """Return the paper's setting as second-hand reports tell it.

        Per copy one random operation on characters or words, then spelling, then a paraphrase by a language model,
        10 copies and a majority vote.

        Args:
            generate: The target.
            rectifier_lm: The model that paraphrases; the target itself when left out.
            **options: Further arguments of the class.
        """
        chain = Chain(SpellRectifier(), LLMRectifier(generate if rectifier_lm is None else rectifier_lm))
        return cls(generate, **{"disrupt": disrupt_random(), "rectify": chain, **options})

    def __call__(self, prompt: Prompt, *, generate: Any = None, seed: int | None = None) -> SmoothedResponse:
        """Return the smoothed answer to one prompt.

        Args:
            prompt: Text, or chat messages (content may be a list of text parts).
            generate: A target in the place of the defence's own.
            seed: A seed in the place of the defence's own.

        Raises:
            InputError: The prompt is empty or holds no user text, or no target is known.
        """
        return self.batch([prompt], generate=generate, seed=seed)[0]

    def batch(
        self, prompts: Sequence[Prompt], *, generate: Any = None, seed: int | None = None
    ) -> list[SmoothedResponse]:
        """Return the smoothed answers to many prompts; all their copies go to the target in one call (one per wave).

        Args:
            prompts: As for a single call.
            generate: A target in the place of the defence's own.
            seed: A seed in the place of the defence's own.

        Raises:
            InputError: As for a single call; the message names the prompt.
        """
        lm = self._target(generate)
        results = self._results(lm, self._run(lm, self._votes(prompts, seed), self.early_stop))
        for note in sorted({note for result in results for note in result.notes}):
            warnings.warn(note, SmoothingWarning, stacklevel=2)
        return results

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, generate: Any = None, seed: int | None = None
    ) -> list[SmoothedResponse]:
        """Return the votes of ``n`` copies of each prompt, all of them asked, without a warning.

        For estimates of the share ``p_hat`` of jailbroken copies on samples of their own: attacks, and certificates,
        which are about the defence's own vote of ``self.n``.

        Args:
            prompts: As for a single call.
            n: Copies in the place of the defence's own number.
            generate: A target in the place of the defence's own.
            seed: A seed in the place of the defence's own.

        Raises:
            InputError: As for a single call.
        """
        lm = self._target(generate)
        return self._results(lm, self._run(lm, self._votes(prompts, seed, n), early_stop=False))

    def draw(self, prompts: Sequence[Prompt], n: int | None = None, *, seed: int | None = None) -> list[list[Prompt]]:
        """Return ``n`` disrupted and rectified copies of each prompt without asking the target.

        They are the copies that a call with the same seed sends; of copies that the rectifier refused the disrupted
        text is given.
        """
        votes = self._votes(prompts, seed, n)
        drawn = [[vote.draw(self.disrupt, j) for j in range(vote.n)] for vote in votes]
        self._rectify([(vote, copy) for vote, copies in zip(votes, drawn, strict=True) for copy in copies])
        return [
            [vote.turns.spliced(copy.rectified) for copy in copies] for vote, copies in zip(votes, drawn, strict=True)
        ]

    def adaptive_eval(self, attack: Any, **options: Any) -> Any:
        """Let an attack optimise against this defence; see :func:`steelyard.guard.adaptive_eval`."""
        from steelyard.guard.dr_smoothing.adaptive import adaptive_eval

        return adaptive_eval(self, attack, **options)

    def _target(self, generate: Any) -> CausalLM:
        lm = target(self.generate, generate)
        if self.judge_tokens is not None and isinstance(lm, CallableLM):
            raise InputError("judge_tokens needs a language model: a plain function cannot stop after a few tokens")
        return lm

    def _run(self, lm: CausalLM, votes: list[Vote], early_stop: bool) -> list[Vote]:
        """Draw, repair, ask and judge wave after wave until every vote is decided."""
        while wave := [(vote, vote.draw(self.disrupt, j)) for vote in votes for j in vote.next_wave(early_stop)]:
            self._rectify(wave)
            self._respond(lm, wave)
            self._judge(wave)
        return votes

    def _votes(self, prompts: Sequence[Prompt], seed: int | None, n: int | None = None) -> list[Vote]:
        n = self.n if n is None else n
        check_count("n", n, least=1)
        root = fresh_seed(self.seed if seed is None else seed)
        turns = read_prompts(prompts, self.scope)
        return [Vote(each, n, vote_threshold(n, self.gamma), root) for each in turns]

    def _rectify(self, wave: Sequence[tuple[Vote, Drawn]]) -> None:
        """Repair the disrupted texts of all copies in one call of the rectifier."""
        if self.rectify is None or not wave:
            return
        texts = [text for _, copy in wave for text in copy.disrupted]
        seeds = [vote.seed("rectify", copy.j * len(copy.disrupted) + k)
                 for vote, copy in wave for k in range(len(copy.disrupted))]  # fmt: skip
        try:
            results = list(self.rectify.rectify(texts, seeds=seeds))
        except Exception:
            if self.on_rectifier_failure == "raise":
                raise
            results = [Rectified(text, failed=True) for text in texts]
        if len(results) != len(texts):
            raise InputError(f"rectify returned {len(results)} results for {len(texts)} texts")
        ratio = float(getattr(self.rectify, "max_ratio", MAX_RATIO))
        given = iter(results)
        for vote, copy in wave:
            copy.take(
                [guarded(next(given), *pair, ratio) for pair in zip(copy.disrupted, vote.turns.texts, strict=True)],
                safe_vote=self.on_rectifier_refusal == "safe_vote",
            )

    def _respond(self, lm: CausalLM, wave: Sequence[tuple[Vote, Drawn]]) -> None:
        """Ask the target once for every copy, or for every group of equal copies of a prompt."""
        groups: dict[tuple[int, object], list[tuple[Vote, Drawn]]] = {}
        merge = self._merges(lm)
        for vote, copy in wave:
            if copy.response is None:
                key = (id(vote), copy.rectified if merge else copy.j)
                groups.setdefault(key, []).append((vote, copy))
        fresh = []
        for members in groups.values():
            vote, copy = members[0]
            known = vote.answered.get(copy.rectified) if merge else None
            if known is None:
                fresh.append(members)
            else:  # an earlier wave asked the same
                share_answer(members, known)
        limits = {} if self.judge_tokens is None else {"max_new_tokens": self.judge_tokens}
        heads = [members[0] for members in fresh]
        for members, text in zip(fresh, self._generate(lm, heads, limits), strict=True):
            members[0][0].calls += 1
            members[0][0].answered[members[0][1].rectified] = text
            share_answer(members, text)

    def _generate(self, lm: CausalLM, asked: Sequence[tuple[Vote, Drawn]], limits: Mapping[str, int]) -> list[str]:
        prompts = [vote.turns.spliced(copy.rectified) for vote, copy in asked]
        seeds = [vote.seed("respond", copy.j) for vote, copy in asked]
        return answers(lm, prompts, seeds, {**self.sampling, **limits})

    def _merges(self, lm: CausalLM) -> bool:
        if self.dedupe != "auto":
            return self.dedupe
        unknown = samples_itself(lm) and "temperature" not in self.sampling
        return not unknown and self.sampling.get("temperature", 0) == 0

    def _judge(self, wave: Sequence[tuple[Vote, Drawn]]) -> None:
        asked = [(vote, copy) for vote, copy in wave if copy.vote is None]
        verdicts = judged(
            self.judge,
            [str(copy.response) for _, copy in asked],
            [vote.turns.request for vote, _ in asked],
            self.on_judge_error,
        )
        for (vote, copy), (verdict, failed) in zip(asked, verdicts, strict=True):
            copy.vote = verdict
            vote.judge_errors += failed
        for vote, copy in wave:
            vote.copies.append(copy)

    def _results(self, lm: CausalLM, votes: Sequence[Vote]) -> list[SmoothedResponse]:
        winners = [(vote, vote.winner(self.choose)) for vote in votes]
        finals = {id(vote): str(copy.response) for vote, copy in winners}
        if self.judge_tokens is not None:
            finals.update(self._continued(lm, [(vote, copy) for vote, copy in winners if not copy.refused]))
        return [self._result(vote, copy, finals[id(vote)]) for vote, copy in winners]

    def _continued(self, lm: CausalLM, winners: Sequence[tuple[Vote, Drawn]]) -> dict[int, str]:
        """Return whole answers of the winners; one whose whole answer is judged otherwise keeps its judged part."""
        if not winners:
            return {}
        texts = self._generate(lm, winners, {})
        requests = [vote.turns.request for vote, _ in winners]
        verdicts = judged(self.judge, texts, requests, self.on_judge_error)
        whole = {}
        for (vote, copy), text, (verdict, failed) in zip(winners, texts, verdicts, strict=True):
            vote.calls += 1
            vote.judge_errors += failed
            if verdict == copy.vote:
                whole[id(vote)] = text
            else:
                vote.cut += 1
        return whole

    def _result(self, vote: Vote, winner: Drawn, response: str) -> SmoothedResponse:
        copies = tuple(
            Copy(
                vote.turns.spliced(copy.rectified),
                "\n".join(copy.disrupted),
                "\n".join(copy.rectified),
                str(copy.response),
                int(copy.vote or 0),
                copy.status,
            )
            for copy in vote.copies
        )
        return SmoothedResponse(
            response=response,
            jailbroken=vote.verdict,
            votes=tuple(copy.vote for copy in copies),
            copies=copies,
            n=vote.n,
            gamma=self.gamma,
            chosen=vote.copies.index(winner),
            calls=vote.calls,
            counts=vote.counts(),
            seed=vote.root,
            notes=vote.notes(self.gamma),
            vote_n=self.n,
        )


class SmoothLLM(DRSmoothing):
    """SmoothLLM (prior work): disruption alone, no rectifier.

    Args:
        generate: The target.
        kind: "swap", "insert" or "patch".
        q: Share of the characters.
        alphabet: SmoothLLM's is "printable".
        **options: Further arguments of :class:`DRSmoothing`.
    """

    def __init__(
        self, generate: Any = None, kind: str = "swap", q: float = 0.10, alphabet: str = "printable", **options: Any
    ) -> None:
        kernels: dict[str, Any] = {"swap": disrupt_swap, "insert": disrupt_insert, "patch": disrupt_patch}
        check_one_of("kind", kind, tuple(kernels))
        super().__init__(generate, disrupt=kernels[kind](q, alphabet), rectify=None, **options)


def _kernel(disrupt: Any, q: float | None) -> Any:
    if disrupt is None:
        return disrupt_swap(q=0.10 if q is None else q)
    if q is not None:
        raise InputError("q belongs to the default disruption; give it to yours, as in disrupt=disrupt_swap(q=0.1)")
    return as_kernel(disrupt)


def target(own: CausalLM | None, given: Any) -> CausalLM:
    """Return the model to ask: the one given with the call, else the defence's own.

    Raises:
        InputError: There is none.
    """
    if given is None and own is None:
        raise InputError(
            "generate is missing: give the defence a language model or a function, or pass one to the call"
        )
    return as_lm(given) if given is not None else own  # type: ignore[return-value]


def samples_itself(lm: CausalLM) -> bool:
    """Whether a target chooses its temperature itself (a plain function, a proxy's client), so that it is unknown."""
    return bool(getattr(lm, "samples_itself", isinstance(lm, CallableLM)))


def fresh_seed(seed: int | None) -> int:
    """Return ``seed``, or a fresh unpredictable one in its place."""
    if seed is None:
        return secrets.randbits(63)
    check_count("seed", seed, least=0)
    return int(seed)


def read_prompts(prompts: Sequence[Prompt], scope: Scope = "last_user") -> list[Any]:
    """Return the user turns of each prompt.

    Raises:
        InputError: A single string in the place of a list, or a prompt that cannot be used.
    """
    if isinstance(prompts, str):
        raise InputError("prompts must be a list of prompts, got one string; write [prompt]")
    return [user_turns(prompt, scope, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def checked_sampling(sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the target's sampling options, or raise InputError for one that a defence does not hand on."""
    options = dict(sampling or {})
    for name in options:
        check_one_of("a key of sampling", name, SAMPLING)
    return options


def answers(lm: CausalLM, prompts: Sequence[Prompt], seeds: Sequence[int], sampling: Mapping[str, Any]) -> list[str]:
    """Return the target's answer to each prompt from one call (no call for no prompt).

    Raises:
        InputError: The target returned something else than one text per prompt.
    """
    if not prompts:
        return []
    texts = lm.generate(list(prompts), seed=list(seeds), **sampling)
    if len(texts) != len(prompts) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"generate must return one string per prompt: {len(prompts)} were asked for")
    return list(texts)


def judged(
    judge: Any, responses: Sequence[str], requests: Sequence[str], on_error: OnJudgeError
) -> list[tuple[int, bool]]:
    """Return (vote, whether the judge failed) for each answer.

    Raises:
        JudgeError: A copy has no verdict and ``on_error`` is "raise".
    """
    if not responses:
        return []
    try:
        verdicts = list(judge.batch(responses, requests))
    except Exception:
        if on_error == "raise":
            raise
        verdicts = [None] * len(responses)
    if len(verdicts) != len(responses):
        raise InputError(f"judge returned {len(verdicts)} verdicts for {len(responses)} answers")
    if on_error == "raise" and any(verdict is None for verdict in verdicts):
        raise JudgeError("the judge gave no verdict on an answer; choose on_judge_error='safe' or 'jailbroken'")
    instead = int(on_error == "jailbroken")
    return [(instead, True) if verdict is None else (int(bool(verdict)), False) for verdict in verdicts]


def share_answer(members: Sequence[tuple[Vote, Drawn]], text: str) -> None:
    """Give one answer to every copy of a group."""
    for _, copy in members:
        copy.response = text
