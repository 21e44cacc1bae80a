"""EmbeddingDiscrepancy on a tiny random model: passes counted, invariances, generated states, options, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from steelyard.errors import InputError
from steelyard.guard import EmbeddingDiscrepancy, score_from_states
from steelyard.guard.discrepancy.core import distance
from steelyard.guard.discrepancy.length import LengthAdjustment, fit_length_adjustment
from steelyard.guard.discrepancy.passes import forward
from steelyard.guard.discrepancy.theory import detector_cost
from steelyard.models.protocols import CallableLM
from steelyard.models.tiny import tiny_random_lm

QUESTIONS = ["Where is it?", "Who has been there before, and with whom?", "Why?", "When was that?", "How many?"]
RESPONSES = ["In the harbour.", "Nobody.", "Because of the weather at sea", "x", "Seven or eight of them"]
CONTEXTS = ["The ship lies in the harbour.", None, "A storm came.", None, None]


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    return tiny_random_lm(layers=4)


@pytest.fixture(scope="module")
def base_lm():
    return tiny_random_lm(layers=4, chat=False)


@pytest.fixture
def counted(lm):
    """Rows through the blocks and calls of the output head while the fixture is alive."""
    count = {"rows": 0, "head": 0}

    def rows(_, args, kwargs, out):
        count["rows"] += kwargs["input_ids"].shape[0]

    def head(*_):
        count["head"] += 1

    handles = [
        lm.model.base_model.register_forward_hook(rows, with_kwargs=True),
        lm.model.get_output_embeddings().register_forward_hook(head),
    ]
    yield count
    for handle in handles:
        handle.remove()


def test_two_passes_an_answer_and_no_output_head(lm, counted):
    EmbeddingDiscrepancy(lm, batch_size=2).score(QUESTIONS, RESPONSES, CONTEXTS)
    assert counted == {"rows": 2 * len(RESPONSES), "head": 0}


def test_one_pass_an_answer_when_the_states_are_there(lm, counted):
    det = EmbeddingDiscrepancy(lm)
    done = lm.generations([[{"role": "user", "content": QUESTIONS[0]}]], layers=det.layers, max_new_tokens=6)
    counted.update(rows=0, head=0)
    det.score_from_generate(done)
    assert counted == {"rows": 1, "head": 0}


@given(
    st.lists(st.sampled_from(range(5)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from(["mean", "last", "token"]),
    st.sampled_from(["cosine", "l2", "rel_l2"]),
)
@settings(max_examples=15)
def test_scores_do_not_depend_on_batch_or_order(rows, size, pool, dist):
    lm = _shared_lm()
    alone = np.concatenate(
        [
            EmbeddingDiscrepancy(lm, pool=pool, dist=dist).score([QUESTIONS[r]], [RESPONSES[r]], [CONTEXTS[r]])
            for r in rows
        ]
    )
    together = EmbeddingDiscrepancy(lm, pool=pool, dist=dist, batch_size=size).score(
        [QUESTIONS[r] for r in rows], [RESPONSES[r] for r in rows], [CONTEXTS[r] for r in rows]
    )
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


_MODELS = []


def _shared_lm():
    if not _MODELS:
        _MODELS.append(tiny_random_lm(layers=4))
    return _MODELS[0]


def test_score_is_that_of_the_states_by_the_models_own_means(lm):
    det = EmbeddingDiscrepancy(lm, layer=2)
    prompts = [[{"role": "user", "content": q}] for q in QUESTIONS]
    with_question = lm.hidden_states(prompts, RESPONSES, [2])
    alone = lm.hidden_states([lm.assistant_header_ids()] * 5, RESPONSES, [2])
    expected = [score_from_states(a, b)[0] for a, b in zip(with_question, alone, strict=True)]
    np.testing.assert_allclose(det.score(prompts, RESPONSES), expected, atol=1e-5)
    for row, states in enumerate(with_question):
        assert det.score_states([states], [lm.response_ids(RESPONSES[row])])[0] == pytest.approx(
            expected[row], abs=1e-5
        )


def test_at_layer_0_nothing_differs_and_it_is_refused(lm):
    for pair in EmbeddingDiscrepancy(lm).passes(QUESTIONS, RESPONSES, layers=[0]):
        assert distance(pair.context.states, pair.alone.states).max() == 0
    with pytest.raises(InputError, match="layer 0 holds the embeddings"):
        EmbeddingDiscrepancy(lm, layer=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_states_from_generation_give_the_score_of_two_passes(lm, temperature):
    det = EmbeddingDiscrepancy(lm, pool="token", layer=(2, 3))
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    done = lm.generations(chats, layers=det.layers, max_new_tokens=9, temperature=temperature, seed=3)
    rows = [row for row, one in enumerate(done) if one.tokens and set(one.tokens) - set(lm.tokenizer.all_special_ids)]
    rows = [row for row in rows if done[row].tokens[-1] not in lm.tokenizer.all_special_ids]
    assert len(rows) >= 3
    twice = det.score([chats[row] for row in rows], [done[row].tokens for row in rows])
    np.testing.assert_allclose(det.score_from_generate([done[row] for row in rows]), twice, rtol=1e-4, atol=1e-4)


def hf_generate(lm, chats, **options):
    rows = [lm.prompt_ids(chat) for chat in chats]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return lm.model.generate(
        ids, attention_mask=mask, do_sample=False, pad_token_id=lm.tokenizer.pad_token_id,
        output_hidden_states=True, return_dict_in_generate=True, **options,
    )  # fmt: skip


def test_what_transformers_generates_gives_the_same_score(lm):
    det = EmbeddingDiscrepancy(lm)
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS[:2]]
    out = hf_generate(lm, chats, max_new_tokens=8)
    answers = [row[-8:].tolist() for row in out.sequences]
    end = answers[0][4]  # taken as if it ended answers
    ends = [lm.tokenizer.eos_token_id, end]
    cut = [answer[: next((i for i, t in enumerate(answer) if t in ends), 7)] for answer in answers]
    assert len(cut[0]) <= 4
    assert len({len(answer) for answer in cut}) > 1
    np.testing.assert_allclose(det.score_from_generate(out, ends), det.score(chats, cut), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(det.score_from_generate(out), det.score(chats, [a[:7] for a in answers]), atol=1e-4)
    assert det.score_from_generate(out, end).shape == (2,)
    with pytest.raises(InputError, match="no answer token with states"):
        det.score_from_generate(out, [answers[0][0]])


def test_generate_outputs_that_cannot_be_used(lm):
    det = EmbeddingDiscrepancy(lm)
    chats = [[{"role": "user", "content": "Why?"}]]
    out = hf_generate(lm, chats, max_new_tokens=3)
    with pytest.raises(InputError, match="beam search"):
        det.score_from_generate(hf_generate(lm, chats, max_new_tokens=3, num_beams=2))
    for steps, message in ((None, "no hidden states"), (tuple((s[:2]) for s in out.hidden_states), "of layer 3")):
        out.hidden_states = steps
        with pytest.raises(InputError, match=message):
            det.score_from_generate(out)


def test_answer_and_score_answers_as_the_model_does(lm, base_lm):
    for model in (lm, base_lm):
        det = EmbeddingDiscrepancy(model)
        (found,) = det.answer_and_score(["Why?"], ["A storm came."], max_new_tokens=5)
        assert isinstance(found.answer, str)
        assert math.isfinite(found.score)

    class Silent:  # an answer that ends at once has no score
        def __getattr__(self, name):
            return getattr(lm, name)

        def generations(self, prompts, **options):
            return [done.__class__("", [], np.zeros((1, 0, 32), np.float32)) for done in lm.generations(prompts)]

    det.lm = Silent()
    assert math.isnan(det.answer_and_score(["Why?"])[0].score)


def test_explanation_adds_up_to_the_token_aligned_discrepancy(lm):
    for layer in (2, (1, 3)):
        det = EmbeddingDiscrepancy(lm, pool="token", layer=layer)
        found = det.explain(QUESTIONS[0], RESPONSES[0], CONTEXTS[0])
        assert "".join(found.tokens) == RESPONSES[0]
        assert found.discrepancy.shape == (len(found.tokens),)
        assert found.value == pytest.approx(-det.score(QUESTIONS[:1], RESPONSES[:1], CONTEXTS[:1])[0], abs=1e-9)
        assert found.discrepancy.mean() == pytest.approx(found.value)


def test_a_band_is_the_mean_of_its_layers(lm):
    each = [EmbeddingDiscrepancy(lm, layer=layer).score(QUESTIONS, RESPONSES) for layer in (2, 3)]
    np.testing.assert_allclose(EmbeddingDiscrepancy(lm, layer=(2, 3)).score(QUESTIONS, RESPONSES), np.mean(each, 0))


def test_condition_and_base_are_the_two_sides(lm):
    det = EmbeddingDiscrepancy(lm)
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    np.testing.assert_array_equal(det.score(None, RESPONSES, condition=chats), det.score(chats, RESPONSES))
    assert (det.score(None, RESPONSES, condition=chats, base=chats) == 0).all()  # the same on both sides
    documents = [[{"role": "user", "content": f"{c}\n{q}"}] for q, c in zip(QUESTIONS, CONTEXTS, strict=True)]
    assert (det.score(None, RESPONSES, condition=documents, base=chats) < 0).all()


def test_a_response_that_restates_the_question_is_scored_like_any_other(lm):
    S = EmbeddingDiscrepancy(lm).score(QUESTIONS, QUESTIONS)
    assert np.isfinite(S).all()
    assert (S < 0).all()


def test_one_token_pools_are_one(lm):
    scores = [EmbeddingDiscrepancy(lm, pool=pool).score(["Why?"], ["x"])[0] for pool in ("mean", "last", "token")]
    assert scores == pytest.approx([scores[0]] * 3)
    assert EmbeddingDiscrepancy(lm, drop_first=True).score(["Why?"], ["x"])[0] == pytest.approx(scores[0])


def test_drop_first_leaves_the_first_token_out(lm):
    det = EmbeddingDiscrepancy(lm)
    (pair,) = det.passes(["Why?"], ["storm"])
    expected = score_from_states(pair.context.states[:, 1:], pair.alone.states[:, 1:])[0]
    assert EmbeddingDiscrepancy(lm, drop_first=True).score(["Why?"], ["storm"])[0] == pytest.approx(expected)


def test_end_of_turn_is_no_part_of_the_answer(lm):
    det = EmbeddingDiscrepancy(lm)
    plain = det.score(["Why?"], ["storm"])
    np.testing.assert_array_equal(det.score(["Why?"], ["storm<|im_end|>"]), plain)
    np.testing.assert_array_equal(det.score(["Why?"], [[*lm.response_ids("storm"), lm.tokenizer.eos_token_id]]), plain)


def test_center_is_taken_off_both_sides(lm):
    det = EmbeddingDiscrepancy(lm, layer=(2, 3))
    before = det.score(QUESTIONS, RESPONSES)
    center = det.fit_center(QUESTIONS, RESPONSES)
    pairs = det.passes(QUESTIONS, RESPONSES)
    means = np.mean([s.states.mean(1, dtype=np.float64) for p in pairs for s in p], axis=0)
    np.testing.assert_allclose(center, means)
    after = det.score(QUESTIONS, RESPONSES)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(EmbeddingDiscrepancy(lm, layer=(2, 3), center=center).score(QUESTIONS, RESPONSES), after)
    l2 = EmbeddingDiscrepancy(lm, layer=(2, 3), dist="l2")
    shifted = EmbeddingDiscrepancy(lm, layer=(2, 3), dist="l2", center=center[0])
    np.testing.assert_allclose(shifted.score(QUESTIONS, RESPONSES), l2.score(QUESTIONS, RESPONSES))
    with pytest.raises(InputError, match="center"):
        EmbeddingDiscrepancy(lm, center=np.zeros(3))
    with pytest.raises(InputError, match="at least one answer"):
        det.fit_center([], [])


def test_length_adjustment_leaves_nothing_of_the_length(lm):
    det = EmbeddingDiscrepancy(lm)
    raw = det.score(QUESTIONS, RESPONSES)
    line = det.fit_length_adjust(raw, RESPONSES)
    T = np.array([len(lm.response_ids(text)) for text in RESPONSES])
    adjusted = det.score(QUESTIONS, RESPONSES)
    np.testing.assert_allclose(adjusted, line.apply(raw, T))
    assert np.corrcoef(adjusted, np.log(T))[0, 1] == pytest.approx(0, abs=1e-9)
    assert adjusted.std() == pytest.approx(1)
    states = [pair.context.states for pair in det.passes(QUESTIONS, RESPONSES)]
    from_states = det.score_states(states, [lm.response_ids(text) for text in RESPONSES])
    np.testing.assert_allclose(from_states, adjusted, atol=1e-4)


def test_a_line_on_the_log_of_length_is_found():
    T = np.array([1, 2, 4, 8])
    noise = np.array([1.0, -1.0, -1.0, 1.0])  # orthogonal to the line
    line = fit_length_adjustment(0.5 - 2 * np.log(T) + 0.1 * noise, T)
    assert line == pytest.approx((0.5, -2.0, 0.1))
    assert LengthAdjustment(0.5, -2.0, 0.1).apply([0.6], [1])[0] == pytest.approx(1)
    for scores, lengths, message in (
        ([1, 2], [1, 2], "at least 3"),
        ([1, 2, 3], [2, 2, 2], "all equal"),
        ([1, 2, 3], [0, 1, 2], "at least 1"),
        (-np.log([1, 2, 3]), [1, 2, 3], "function of the length alone"),
    ):
        with pytest.raises(InputError, match=message):
            fit_length_adjustment(scores, lengths)


def test_prefixes(lm, base_lm):
    header = EmbeddingDiscrepancy(lm)
    assert header.prefix_ids == lm.assistant_header_ids()
    assert EmbeddingDiscrepancy(lm, prefix="bos").prefix_ids == [lm.tokenizer.bos_token_id]
    assert EmbeddingDiscrepancy(base_lm).prefix_ids == [base_lm.tokenizer.bos_token_id]
    assert EmbeddingDiscrepancy(lm, prefix=lm.assistant_header_ids()).prefix_ids == header.prefix_ids
    for prefix in ([], "", "nothing"):
        with pytest.raises(InputError, match="prefix"):
            EmbeddingDiscrepancy(lm, prefix=prefix)
    with pytest.raises(InputError, match="chat template"):
        EmbeddingDiscrepancy(base_lm, prefix="header")


def test_a_base_model_reads_question_and_answer_lines(base_lm):
    det = EmbeddingDiscrepancy(base_lm)
    asked = ["Context: A storm came.\nQuestion: Why?\nAnswer:", "Question: Why?\nAnswer:"]
    plain = det.score(["Why?", "Why?"], ["storm", " storm"], ["A storm came.", None])
    np.testing.assert_allclose(plain, det.score(None, [" storm", " storm"], condition=asked), atol=1e-6)
    with pytest.raises(InputError, match="chat template"):
        det.score([[{"role": "user", "content": "Why?"}]], ["storm"])


def test_a_tokenizer_without_begin_token(base_lm):
    tokenizer = base_lm.tokenizer
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    try:
        tokenizer.bos_token = None
        assert EmbeddingDiscrepancy(base_lm).prefix_ids == [tokenizer.eos_token_id]
        tokenizer.eos_token = None
        with pytest.raises(InputError, match="no token that begins a text"):
            EmbeddingDiscrepancy(base_lm)
    finally:
        tokenizer.bos_token, tokenizer.eos_token = bos, eos


@pytest.fixture(scope="module")
def absolute(lm):
    size = len(lm.tokenizer)
    torch_config = GPT2Config(vocab_size=size, n_positions=256, n_embd=32, n_layer=4, n_head=4, bos_token_id=0)
    model = GPT2LMHeadModel(torch_config).eval()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=g))
    return model


def test_aligned_positions_matter_to_absolute_ones_only(lm, absolute):
    own, aligned = ({"position_ids": kind} for kind in ("own", "aligned"))
    for model, tokenizer, alike in ((lm, None, True), (absolute, lm.tokenizer, False)):
        scores = [EmbeddingDiscrepancy(model, tokenizer, **kind).score(["Why?"], ["storm"]) for kind in (own, aligned)]
        assert np.allclose(*scores, atol=1e-4) == alike
    (pair,) = EmbeddingDiscrepancy(absolute, lm.tokenizer, **aligned).passes(["Why?"], ["storm"], layers=[0])
    assert np.abs(pair.context.states - pair.alone.states).max() == 0  # the embeddings with their positions


def test_half_precision_is_compared_in_float64():
    full, half = tiny_random_lm(layers=4), tiny_random_lm(layers=4, dtype="bfloat16")
    S = [EmbeddingDiscrepancy(model).score(QUESTIONS, RESPONSES) for model in (full, half)]
    assert S[1].dtype == np.float64
    np.testing.assert_allclose(S[0], S[1], atol=0.1)


def test_token_statistics_are_the_models_own(lm):
    pairs = EmbeddingDiscrepancy(lm, system=None).passes(
        QUESTIONS, RESPONSES, layers=[1, 4], logits=True, keep_prefix=True
    )
    prompts = [[{"role": "user", "content": q}] for q in QUESTIONS]
    for pair, logprob, prompt, text in zip(pairs, lm.logprobs(prompts, RESPONSES), prompts, RESPONSES, strict=True):
        start, ids = len(lm.prompt_ids(prompt)), lm.prompt_ids(prompt) + lm.response_ids(text)
        logits = lm.model(torch.tensor([ids])).logits[0, start - 1 : -1].detach().double()
        logs = logits.log_softmax(-1)
        np.testing.assert_allclose(pair.context.tokens.nll, -logprob, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(pair.context.tokens.entropy, -(logs.exp() * logs).sum(-1), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(pair.context.tokens.energy, -logits.logsumexp(-1), rtol=1e-3, atol=1e-4)
        assert pair.context.prefix_states.shape == (2, start, 32)
        assert pair.alone.prefix_states.shape == (2, len(lm.assistant_header_ids()), 32)


def test_logits_of_a_model_that_always_gives_all(lm):
    class All(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.device, self.config = lm.model, lm.model.device, lm.model.config

        def forward(self, **arguments):
            return self.inner(**arguments)

    class Wrapped:
        model, context = All(), lm.context
        exclusive = lm.exclusive

    rows = ([lm.prompt_ids("Why?")], [lm.response_ids("storm")], [1])
    plain, all_logits = forward(lm, *rows, logits=True), forward(Wrapped(), *rows, logits=True)
    np.testing.assert_allclose(plain[0].tokens.nll, all_logits[0].tokens.nll, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["Why?"], [""]), r"responses\[0\] is empty"),
        ((["Why?", "Who?"], ["x", "  \n"]), r"responses\[1\] is empty"),
        ((["Why?"], [[]]), r"responses\[0\] is empty"),
        ((["Why?"], [None]), r"responses\[0\] is empty"),
        ((["Why?"], ["<|im_end|>"]), r"responses\[0\] holds special tokens only"),
        ((["Why?"], ["<s><|im_start|>"]), "special tokens only"),
        ((["Why?"], ["x", "y"]), "questions and responses must be equally long, got 1 and 2"),
        ((["Why?"], ["x"], ["a", "b"]), "questions and contexts must be equally long"),
        (("Why?", ["x"]), "questions must be a list"),
        ((["Why?"], "x"), "responses must be a list"),
        ((["Why?"], ["x"], "text"), "contexts must be a list"),
        ((["Why?"], ["x"], [3]), r"contexts\[0\] must be text or None"),
        (([" "], ["x"]), r"prompts\[0\] is empty"),
        (([[{"role": "user", "content": "Why?"}]], ["x"], ["c"]), "stands beside a chat"),
        ((["Why?"], ["x" * 1100]), r"responses\[0\] and its prompt have \d+ tokens, and the model takes 1024"),
        ((["y" * 1100], ["x"]), r"responses\[0\] and its prompt have"),
        ((None, ["x"]), "either questions or condition"),
    ],
)
def test_bad_texts(lm, arguments, message):
    with pytest.raises(InputError, match=message):
        EmbeddingDiscrepancy(lm).score(*arguments)


def test_bad_sides(lm):
    det = EmbeddingDiscrepancy(lm)
    for options, message in (
        ({"questions": ["a"], "condition": ["a"]}, "either questions or condition"),
        ({"questions": None, "condition": ["a"], "contexts": ["c"]}, "contexts go with questions"),
        ({"questions": None, "condition": ["a", "b"]}, "condition and responses must be equally long"),
        ({"questions": ["a"], "base": ["a", "b"]}, "base and responses must be equally long"),
        ({"questions": ["a"], "base": [""]}, "is empty"),
    ):
        with pytest.raises(InputError, match=message):
            det.score(responses=["x"], **options)


def test_nothing_to_score(lm):
    assert EmbeddingDiscrepancy(lm).score([], []).shape == (0,)
    assert EmbeddingDiscrepancy(lm).score_states([], []).shape == (0,)


def test_bad_states(lm):
    det = EmbeddingDiscrepancy(lm)
    for states, ids in (
        (np.zeros((2, 3, 32)), [1, 2, 3]),
        (np.zeros((1, 2, 32)), [1, 2, 3]),
        (np.zeros((1, 0, 32)), []),
    ):
        with pytest.raises(InputError, match=r"states\[0\] must be"):
            det.score_states([states], [ids])
    with pytest.raises(InputError, match="equally long"):
        det.score_states([], [[1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "pool must be one of"),
        ({"dist": "dot"}, "dist must be one of"),
        ({"position_ids": "free"}, "position_ids must be one of"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"layer": 9}, r"layer must lie in 1\.\.4"),
        ({"length_adjust": True}, "length_adjust must be the line"),
    ],
)
def test_bad_options(lm, options, message):
    with pytest.raises(InputError, match=message):
        EmbeddingDiscrepancy(lm, **options)


def test_layers_of_passes_are_checked(lm):
    for layers in ([], [5], [-1]):
        with pytest.raises(InputError, match=r"layers must be indices 0\.\.4"):
            EmbeddingDiscrepancy(lm).passes(["Why?"], ["x"], layers=layers)


def test_a_model_of_transformers_stays_where_it_is():
    moved = tiny_random_lm(layers=2)
    assert EmbeddingDiscrepancy(moved.model.to("meta"), moved.tokenizer).lm.model.device.type == "meta"


def test_a_model_without_states_points_to_the_black_box(lm):
    for model in (CallableLM(lambda prompts: ["x"]), "http://127.0.0.1:1"):
        with pytest.raises(InputError, match="BlackBoxDiscrepancy"):
            EmbeddingDiscrepancy(model)
    with pytest.raises(InputError, match="tokenizer is missing"):
        EmbeddingDiscrepancy(lm.model)


def test_cost_model():
    cost = detector_cost(32, 150, k=10)
    assert cost.flops_ratio == 10
    assert cost.time_ratio == 160  # K T / 2
    assert cost.forward_tokens == 33
    assert detector_cost(32, 96, k=5, shared=False).flops_ratio == pytest.approx(5 * (1 + 96 / 32))
    both = detector_cost(32, 150, k=5, reuse_states=False)
    assert both.forward_tokens == 1 + 150 + 64
    assert both.time_ratio == 40
    with pytest.raises(InputError, match="prompt_len must be at least 1"):
        detector_cost(1, 0)
