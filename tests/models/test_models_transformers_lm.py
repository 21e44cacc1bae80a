"""TransformersLM on a tiny random model: batched equals one by one, with and without a shared start."""

import threading

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import write_tiny

from steelyard.errors import InputError
from steelyard.models import CausalLM, TransformersLM, scoring, tiny_random_lm
from steelyard.models.decoder import Decoder
from steelyard.models.scoring import Scored
from steelyard.models.tiny import byte_tokenizer

SYSTEM = {"role": "system", "content": "You answer in one short sentence and never guess at what you do not know."}
PROMPTS = [
    [SYSTEM, {"role": "user", "content": text}] for text in ("Hi", "Why?", "What is this, then?", "x", "Two", "")
]
RESPONSES = ["Yes.", "I do not know that.", "A", "No, never", "é", "two words"]


@pytest.fixture(scope="module")
def lm():
    return tiny_random_lm(batch_size=4)


@pytest.fixture(scope="module")
def plain(lm):
    return TransformersLM(lm.model, lm.tokenizer, share_prefix=False)


def whole_pass(lm, prompt, response):
    """Everything of one text by one plain forward pass: (states, log-probabilities) at the response."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        out = lm.model(ids, output_hidden_states=True)
    logs = torch.log_softmax(out.logits[0, len(prompt) - 1 : -1].double(), -1)
    chosen = logs.gather(-1, torch.tensor(response)[:, None])[:, 0]
    return torch.stack(out.hidden_states)[:, 0, len(prompt) :].numpy(), chosen.numpy()


@pytest.mark.parametrize("share", ["auto", True, False])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": list(range(6))}])
def test_batched_equals_one_by_one(lm, plain, share, options):
    shared = TransformersLM(lm.model, lm.tokenizer, batch_size=4, share_prefix=share)
    together = shared.generate(PROMPTS, max_new_tokens=16, **options)
    alone = []
    for index, prompt in enumerate(PROMPTS):
        own = {**options, "seed": [index]} if options else {}
        alone += plain.generate([prompt], max_new_tokens=16, **own)
    assert together == alone
    assert len(set(together)) == len(PROMPTS)


def test_n_texts_of_a_prompt_stand_side_by_side(lm, plain):
    options = {"temperature": 1.0, "max_new_tokens": 8}
    texts = lm.generate(PROMPTS[:2], n=5, seed=3, **options)
    assert len(texts) == 10
    assert len(set(texts)) == 10  # one seed, yet a stream for each
    assert texts == plain.generate(PROMPTS[:2], n=5, seed=3, **options)
    assert texts == lm.generate([prompt for prompt in PROMPTS[:2] for _ in range(5)], seed=3, **options)
    assert texts != lm.generate(PROMPTS[:2], n=5, seed=4, **options)
    greedy = lm.generate(PROMPTS[:2], n=2, max_new_tokens=8)
    assert greedy[0] == greedy[1] != greedy[2] == greedy[3]


def test_a_prompt_runs_once_for_all_its_texts(lm, passes):
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 3}
    texts = lm.generate(PROMPTS[:2], n=2, **options)
    assert passes == [(2, passes[0][1]), (4, 1), (4, 1)]
    assert texts == lm.generate([PROMPTS[0]] * 2 + [PROMPTS[1]] * 2, **options)


def test_a_seeded_text_is_the_same_in_any_wave(lm):
    options = {"temperature": 0.8, "max_new_tokens": 8}
    seeds = [11, 12, 13, 14, 15, 16]
    whole = lm.generate(PROMPTS, seed=seeds, **options)
    waves = [
        text
        for place in (0, 2, 4)
        for text in lm.generate(PROMPTS[place : place + 2], seed=seeds[place : place + 2], **options)
    ]
    assert whole == waves
    back = lm.generate(PROMPTS[::-1], seed=seeds[::-1], **options)
    assert whole == back[::-1]


def test_global_random_states_are_left_alone(lm):
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    first = lm.generate(PROMPTS[:2], temperature=1.0, max_new_tokens=6)
    second = lm.generate(PROMPTS[:2], temperature=1.0, max_new_tokens=6)
    tiny_random_lm(seed=5)
    assert first != second  # without a seed every call draws anew
    assert torch.equal(before[0], torch.get_rng_state())
    after = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    assert before[1]["pos"] == after["pos"]
    np.testing.assert_array_equal(before[1]["key"], after["key"])


@pytest.fixture
def passes(monkeypatch):
    """The shape of the tokens of every pass that gives logits."""
    shapes = []
    run = Decoder.logits

    def logits(self, ids, *more, **options):
        shapes.append(tuple(ids.shape))
        return run(self, ids, *more, **options)

    monkeypatch.setattr(Decoder, "logits", logits)
    return shapes


def test_equal_prompts_are_answered_once_at_temperature_0(lm, passes):
    assert len(set(lm.generate([PROMPTS[0]] * 3, n=2, max_new_tokens=2))) == 1
    assert [rows for rows, _ in passes] == [1, 1]


def test_finished_rows_leave_the_batch(lm, monkeypatch, passes):
    tokens = [one.tokens for one in lm.generations(PROMPTS[:3], max_new_tokens=10)]
    end = tokens[0][2]
    monkeypatch.setattr(lm, "_ends", frozenset([end]))
    passes.clear()
    ended = [one.tokens for one in lm.generations(PROMPTS[:3], max_new_tokens=10)]
    assert ended == [row[: row.index(end)] if end in row else row for row in tokens]
    rows = [rows for rows, _ in passes]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < rows[0]


def test_a_shared_start_runs_once(lm, passes):
    lm.generate(PROMPTS, max_new_tokens=1)
    assert all(width < len(lm.prompt_ids(PROMPTS[0])) // 2 for _, width in passes)


def test_stop_strings_cut_the_text_and_what_belongs_to_it(lm):
    full = lm.generations(PROMPTS[:1], layers=[1], max_new_tokens=24)[0]
    stop = full.text[5:7]
    place = full.text.find(stop)
    cut = lm.generations(PROMPTS[:1], layers=[1], max_new_tokens=24, stop=["not in it", stop])[0]
    assert cut.text == full.text[:place]
    assert cut.tokens == full.tokens[: len(cut.tokens)]
    assert lm._text(cut.tokens).startswith(cut.text)
    np.testing.assert_allclose(cut.states, full.states[:, : len(cut.tokens)], rtol=1e-4, atol=1e-4)
    assert lm.generate(PROMPTS[:1], max_new_tokens=24, stop=stop) == [cut.text]
    first = full.text[:1]
    nothing = lm.generations(PROMPTS[:1], layers=[1, 2], max_new_tokens=24, stop=[first])[0]
    assert nothing.text == ""
    assert nothing.states.shape == (2, 0, 32)


@pytest.mark.parametrize("share", [True, False])
def test_log_probabilities_and_states_are_those_of_a_plain_pass(lm, share):
    shared = TransformersLM(lm.model, lm.tokenizer, batch_size=4, share_prefix=share)
    logs = shared.logprobs(PROMPTS, RESPONSES)
    states = shared.hidden_states(PROMPTS, RESPONSES, [0, 1, -1])
    for prompt, response, log, state in zip(PROMPTS, RESPONSES, logs, states, strict=True):
        ids = lm.response_ids(response)
        true_states, true_log = whole_pass(lm, lm.prompt_ids(prompt), ids)
        assert log.dtype == state.dtype == np.float32
        assert log.shape == (len(ids),)
        np.testing.assert_allclose(log, true_log, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state, true_states[[0, 1, 2]], rtol=1e-3, atol=1e-4)


@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from([True, False, "auto"]),
)
def test_padding_on_either_side_scores_alike(lengths, batch_size, share):
    lm = tiny_random_lm()
    stream = np.random.default_rng(sum(a * b for a, b in lengths))
    start = stream.integers(0, 256, 12).tolist()
    before = [[*start[: min(12, a)], *stream.integers(0, 256, max(0, a - 12)).tolist()] for a, _ in lengths]
    texts = Scored(before, [stream.integers(0, 256, b).tolist() for _, b in lengths])
    with torch.no_grad():
        found = {
            side: (
                scoring.logprobs(lm._decoder, texts, batch_size, share, side),
                scoring.states(lm._decoder, texts, [1, 2], batch_size, share, side),
            )
            for side in ("left", "right")
        }
    for index, (prompt, response) in enumerate(zip(*texts, strict=True)):
        true_states, true_log = whole_pass(lm, prompt, response)
        for logs, states in found.values():
            np.testing.assert_allclose(logs[index], true_log, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(states[index], true_states[1:], rtol=1e-3, atol=1e-4)


def test_large_logits_split_a_batch(lm, monkeypatch):
    expected = lm.logprobs(PROMPTS, RESPONSES)
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 1)
    for one, other in zip(lm.logprobs(PROMPTS, RESPONSES), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [1, 9])
def test_states_from_generation_are_those_of_a_teacher_forced_pass(lm, limit):
    texts, states = lm.generate_with_states(PROMPTS, [0, 1, -1], max_new_tokens=limit)
    made = lm.generations(PROMPTS, max_new_tokens=limit)
    assert texts == [one.text for one in made] == lm.generate(PROMPTS, max_new_tokens=limit)
    for prompt, one, state in zip(PROMPTS, made, states, strict=True):
        assert state.shape == (3, len(one.tokens), 32)
        true, _ = whole_pass(lm, lm.prompt_ids(prompt), one.tokens)
        np.testing.assert_allclose(state, true[[0, 1, 2]], rtol=1e-3, atol=1e-4)


def test_states_of_a_text_that_an_end_token_closed(lm, monkeypatch):
    made = lm.generations(PROMPTS[:2], max_new_tokens=10)
    monkeypatch.setattr(lm, "_ends", frozenset([made[0].tokens[4]]))
    for prompt, one in zip(PROMPTS, lm.generations(PROMPTS[:2], layers=[2], max_new_tokens=10), strict=False):
        true, _ = whole_pass(lm, lm.prompt_ids(prompt), one.tokens) if one.tokens else (np.zeros((3, 0, 32)), None)
        np.testing.assert_allclose(one.states, true[[2]], rtol=1e-3, atol=1e-4)


def test_tokens_may_be_given_in_the_place_of_text(lm):
    prompt, response = lm.prompt_ids(PROMPTS[0]), lm.response_ids("Yes.")
    header = lm.assistant_header_ids()
    mixed = lm.logprobs([prompt, PROMPTS[0], header], [response, "Yes.", "Yes."])
    np.testing.assert_allclose(mixed[0], mixed[1], rtol=1e-5)
    np.testing.assert_allclose(mixed[2], whole_pass(lm, header, response)[1], rtol=1e-4)


def test_nothing_in_nothing_out(lm):
    assert lm.generate([]) == []
    assert lm.generate([], temperature=1.0, seed=1) == []
    assert lm.generate_with_states([], [0]) == ([], [])
    assert lm.logprobs([], []) == []
    assert lm.hidden_states([], [], [0]) == []


def test_the_context_is_a_wall_for_prompts_and_an_end_for_texts(lm):
    full = [5] * (lm.context - 2)
    text = "x" * (lm.context - len(lm.prompt_ids("x")) - 2)
    assert len(lm.prompt_ids(text)) == lm.context - 3
    assert len(lm.generations([text], max_new_tokens=50)[0].tokens) <= 3
    with pytest.raises(
        InputError, match=r"prompts\[1\] has 1024 tokens and leaves no room in the model's context of 1024"
    ):
        lm.generate(["a", text + "xxx"])
    with pytest.raises(InputError, match=r"prompts\[0\] and its response have 1025 tokens"):
        lm.logprobs([full], [[1, 2, 3]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens and n must be at least 1"),
        ({"n": 0}, "max_new_tokens and n must be at least 1"),
        ({"temperature": -1.0}, "temperature must be a finite number"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"stop": [""]}, "stop must be a list of non-empty strings"),
        ({"stop": [3]}, "stop must be a list of non-empty strings"),
        ({"seed": [1], "temperature": 1.0}, r"one per text \(2\), got 1"),
        ({"layers": [4]}, "layers: 4 is not between -3 and 2"),
        ({"layers": [-4]}, "layers: -4 is not between -3 and 2"),
    ],
)
def test_arguments_out_of_range(lm, options, message):
    with pytest.raises(InputError, match=message):
        lm.generations(["a", "b"], **options)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("text", "prompts must be a list of prompts"),
        (["a", " "], r"prompts\[1\] is empty"),
        ([[{"role": "robot", "content": "a"}]], r"prompts\[0\]\[0\]: role must be one of"),
    ],
)
def test_prompts_of_a_wrong_form(lm, prompts, message):
    with pytest.raises(InputError, match=message):
        lm.generate(prompts)


def test_responses_of_a_wrong_form(lm):
    with pytest.raises(InputError, match=r"one response per prompt \(1\)"):
        lm.logprobs(["a"], ["b", "c"])
    with pytest.raises(InputError, match=r"one response per prompt \(1\)"):
        lm.logprobs(["a"], "b")
    with pytest.raises(InputError, match=r"responses\[0\] has no tokens"):
        lm.logprobs(["a"], [""])
    with pytest.raises(InputError, match=r"prompts\[0\] has no tokens"):
        lm.logprobs([[]], ["b"])
    with pytest.raises(InputError, match="a token outside 0 to 258"):
        lm.logprobs([[1, 259]], ["b"])
    with pytest.raises(InputError, match="layers must name at least one layer"):
        lm.hidden_states(["a"], ["b"], [])


def test_settings_of_a_wrong_form(lm):
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        TransformersLM(lm.model, lm.tokenizer, batch_size=0)
    with pytest.raises(InputError, match="share_prefix must be"):
        TransformersLM(lm.model, lm.tokenizer, share_prefix="always")
    with pytest.raises(InputError, match="dtype must be one of float32, bfloat16, float16, got 'int8'"):
        TransformersLM(lm.model, lm.tokenizer, dtype="int8")
    with pytest.raises(InputError, match="the model cannot be moved to device 'nowhere'"):
        TransformersLM(lm.model, lm.tokenizer, device="nowhere")


def test_it_is_a_causal_lm_and_its_tokenizer_may_pad_where_it_likes(lm, plain):
    assert isinstance(lm, CausalLM)
    assert repr(lm) == "TransformersLM(LlamaForCausalLM, cpu, torch.float32)"
    right = byte_tokenizer()
    right.padding_side = "right"
    assert TransformersLM(lm.model, right).generate(PROMPTS, max_new_tokens=5) == plain.generate(
        PROMPTS, max_new_tokens=5
    )


def test_threads_take_turns(lm):
    expected = lm.generate_with_states(PROMPTS, [1], max_new_tokens=4)[1]
    found = {}

    def work(name):
        found[name] = lm.generate_with_states(PROMPTS, [1], max_new_tokens=4)[1]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for states in found.values():
        for one, other in zip(states, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_half_precision(lm):
    half = tiny_random_lm(dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    for one, other in zip(half.logprobs(PROMPTS, RESPONSES), lm.logprobs(PROMPTS, RESPONSES), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=1.0)
    assert len(half.generate(PROMPTS, max_new_tokens=3)) == len(PROMPTS)


def sliding_lm():
    """A random Gemma 3 whose first layer looks back over 16 tokens only; its weights come from a stream of its own."""
    tokenizer = byte_tokenizer(chat=False)
    config = transformers.Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, sliding_window=16, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"], pad_token_id=0, bos_token_id=256, eos_token_id=258,
    )  # fmt: skip
    with torch.random.fork_rng():
        model = transformers.Gemma3ForCausalLM(config)
    stream = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream) * (0.3 if parameter.ndim > 1 else 0.1)
    return TransformersLM(model.requires_grad_(False), tokenizer, share_prefix=True)


def test_a_sliding_window_sees_the_same_with_and_without_a_shared_start():
    lm = sliding_lm()
    prompts = ["the start of every text is this one " + end for end in ("a", "and more of it", "bc", "x" * 30)]
    alone = [lm.generate([prompt], max_new_tokens=12)[0] for prompt in prompts]
    assert lm.generate(prompts, max_new_tokens=12) == alone
    short = ["abcd" + end for end in ("a", "b", "cd")]  # within the window: shared
    assert lm.generate(short, max_new_tokens=4) == [lm.generate([text], max_new_tokens=4)[0] for text in short]
    states = lm.hidden_states(prompts, RESPONSES[:4], [1, 2])
    logs = lm.logprobs(prompts, RESPONSES[:4])
    for prompt, response, state, log in zip(prompts, RESPONSES, states, logs, strict=False):
        true_states, true_log = whole_pass(lm, lm.prompt_ids(prompt), lm.response_ids(response))
        np.testing.assert_allclose(state, true_states[1:], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(log, true_log, rtol=1e-4, atol=1e-4)


def test_older_names_of_the_cache_and_models_without_partial_logits(lm):
    class Older(torch.nn.Module):
        """The same model as a release before 5.24 would offer it."""

        def __init__(self):
            super().__init__()
            self.inner, self.config, self.device = lm.model, lm.model.config, lm.model.device
            self.base_model = OlderBody()

        def forward(self, input_ids, attention_mask, position_ids, use_cache, past_key_values):
            return renamed(
                self.inner(input_ids, attention_mask, position_ids, cache=past_key_values, use_cache=use_cache)
            )

    class OlderBody(torch.nn.Module):
        def forward(self, input_ids, attention_mask, position_ids, use_cache, past_key_values):
            return renamed(
                lm.model.model(input_ids, attention_mask, position_ids, cache=past_key_values, use_cache=use_cache)
            )

    def renamed(out):
        return transformers.utils.ModelOutput(
            **{("past_key_values" if key == "cache" else key): value for key, value in out.items()}
        )

    older = TransformersLM.__new__(TransformersLM)
    older.__dict__.update(lm.__dict__, _decoder=Decoder(Older()))
    assert older.generate(PROMPTS, max_new_tokens=6) == lm.generate(PROMPTS, max_new_tokens=6)
    for one, other in zip(older.logprobs(PROMPTS, RESPONSES), lm.logprobs(PROMPTS, RESPONSES), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    with pytest.raises(InputError, match="keeps its layers where they are not found"):
        older.hidden_states(PROMPTS, RESPONSES, [0])


def test_folders_and_gguf_files(lm, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "cache"))
    lm.model.save_pretrained(tmp_path / "saved")
    lm.tokenizer.save_pretrained(tmp_path / "saved")
    again = TransformersLM.from_pretrained(tmp_path / "saved", batch_size=2)
    assert again.is_chat
    assert again.generate(PROMPTS, max_new_tokens=5) == lm.generate(PROMPTS, max_new_tokens=5)
    write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    cached = TransformersLM.from_pretrained(tmp_path, "tiny.gguf")
    direct = TransformersLM.from_pretrained(tmp_path, "tiny.gguf", cache=False)
    assert not cached.is_chat
    assert cached.generate(["t1t2"], max_new_tokens=5) == direct.generate(["t1t2"], max_new_tokens=5)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 1
    with pytest.raises(InputError, match="gguf_file must be the name of a file in"):
        TransformersLM.from_pretrained(tmp_path, "../tiny.gguf")
    with pytest.raises(InputError, match=r"none\.gguf cannot be read"):
        TransformersLM.from_pretrained(tmp_path, "none.gguf")
    with pytest.raises(InputError, match="neither a Hugging Face folder nor a GGUF file"):
        TransformersLM.from_pretrained(tmp_path / "none")
