"""TRL's trainer with an advantage a turn: a small real language model with LoRA, and a tiny one for the rest."""

import os
import warnings

import numpy as np
import pytest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig

from steelyard.errors import InputError
from steelyard.models import smollm2 as weights
from steelyard.policy import ARCTrainer, CommitmentFormat, G2POTrainer, RuleVerifier, StepBatch, g2po_advantage
from steelyard.policy.household.generate import generate_games
from steelyard.policy.household.tracker import HouseholdTracker
from steelyard.policy.tokens import broadcast_to_tokens
from steelyard.policy.trl import EpisodeRollout, admissible, token_advantages, token_offsets


class NearTheEnd:
    """A game that begins one command before its walkthrough wins, and shows few commands."""

    def __init__(self, game, shown=4, before=1):
        self.env, self.before, self.shown = game.make_env(8, 10.0), before, shown
        self.game = game

    def reset(self, *, seed=None, options=None):
        observation, info = self.env.reset()
        for command in self.game.walkthrough[: -self.before]:
            observation, _, _, _, info = self.env.step(command)
        return observation, self._few(info)

    def step(self, command):
        observation, reward, done, cut, info = self.env.step(command)
        return observation, reward, done, cut, self._few(info)

    def state_key(self, full=False):
        return self.env.state_key(full)

    def _few(self, info):
        wins = self.game.walkthrough[-1]
        others = [one for one in info["admissible"] if one != wins and not one.startswith("go ")]
        kept = sorted(others[: self.shown - 1] + [wins] * (wins in info["admissible"]))
        return {**info, "admissible": kept}


GAMES = {game.task: game for game in generate_games(2, 5, ("pick_and_place_simple", "look_at_obj_in_light"))}


def settings(folder, steps, **more):
    return GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, max_steps=steps, per_device_train_batch_size=4,
        num_generations=2, learning_rate=1e-3, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        max_completion_length=256, beta=0.0, seed=3, gradient_checkpointing=False, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def smollm2():
    torch.set_num_threads(1)
    return weights.load(), weights.tokenizer()


def adapters(model):
    return {name: value.detach().clone() for name, value in model.named_parameters() if "lora" in name}


LORA = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
DATA = Dataset.from_dict({"prompt": list(GAMES) * 4})


def test_g2po_trains_smollm2_on_games(smollm2, tmp_path):
    model, tokenizer = smollm2
    seen = []

    class Watched(G2POTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((inputs, output))
            return output

    trainer = Watched(
        model, lambda task: NearTheEnd(GAMES[task]), max_turns=3, candidates=admissible, args=settings(tmp_path, 2),
        train_dataset=DATA, processing_class=tokenizer, peft_config=LORA,
    )  # fmt: skip
    before = adapters(trainer.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    groups = [{row["episode_return"] for row in inputs[place : place + 2]} for inputs, _ in seen for place in (0, 2)]
    assert any(len(returns) == 2 for returns in groups), "no group has both outcomes"
    assert any(not torch.equal(before[name], value) for name, value in adapters(trainer.model).items())
    for inputs, output in seen:
        batch = StepBatch.from_episodes([row["episode"] for row in inputs])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            credit = g2po_advantage(batch)
        place = 0
        for row, given in zip(inputs, output["advantages"], strict=True):
            mask = np.zeros((len(row["turn_spans"]), len(given)))
            for turn, (start, end) in enumerate(row["turn_spans"]):
                mask[turn, start:end] = 1
            own = credit[place : place + len(mask)]
            place += len(mask)
            wanted = broadcast_to_tokens(own, mask).sum(axis=0)
            np.testing.assert_array_equal(given.numpy(), wanted.astype(np.float32))
        answers = output["tool_mask"] * output["completion_mask"] == 0
        assert (output["advantages"][answers] == 0).all(), "a token of the environment has an advantage"


def test_zero_advantages_move_nothing(smollm2, tmp_path):
    model, tokenizer = smollm2

    class Zero(G2POTrainer):
        def turn_advantages(self, batch):
            return np.zeros(len(batch))

    trainer = Zero(
        model, lambda task: NearTheEnd(GAMES[task]), max_turns=2, candidates=admissible, args=settings(tmp_path, 1),
        train_dataset=DATA, processing_class=tokenizer, peft_config=LORA,
    )  # fmt: skip
    before = adapters(trainer.model)
    trainer.train()
    assert all(torch.equal(before[name], value) for name, value in adapters(trainer.model).items())


FORM = CommitmentFormat()


def turns(observation, info):
    """Some commands, each with a right-looking and a wrong-looking statement."""
    return [
        FORM.render(progress=f"hold={held}; done=no; placed=0", action=command, prediction="next=moved")
        for command in info["admissible"][:2]
        for held in ("target", "none")
    ]


def test_arc_sends_the_process_part_to_the_commitments_alone(smollm2, tmp_path):
    model, tokenizer = smollm2
    seen = []

    class Watched(ARCTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((inputs, output))
            return output

    trainer = Watched(
        model, lambda task: NearTheEnd(GAMES[task]),
        {"progress": RuleVerifier(), "prediction": RuleVerifier()}, tracker=HouseholdTracker, max_turns=2,
        candidates=turns, args=settings(tmp_path, 2), train_dataset=DATA, processing_class=tokenizer, peft_config=LORA,
        credit={"alpha": 0.5},
    )  # fmt: skip
    before = adapters(trainer.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert any(not torch.equal(before[name], value) for name, value in adapters(trainer.model).items())
    differs = 0
    for inputs, output in seen:
        batch = StepBatch.from_episodes([row["episode"] for row in inputs])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            credit = trainer.turn_advantages(batch)
        number = 0
        for row, given in zip(inputs, output["advantages"], strict=True):
            for (start, end), segments in zip(row["turn_spans"], row["turn_segments"], strict=True):
                own = {name: given[[start + token for token in tokens]] for name, tokens in segments.items()}
                for name, key in (("progress", "progress"), ("action", "action"), ("predict", "predict")):
                    expected = np.float32(credit[key][number])
                    assert len(own[name]) > 3
                    assert (own[name].numpy() == expected).all(), name
                differs += float(own["progress"][0]) != float(own["action"][0])
                assert end > start
                number += 1
    assert differs, "no statement got anything of its own"


class _Rollouts:
    """What a rollout asks of a trainer."""

    num_generations = num_generations_eval = 2
    temperature = 1.0

    def __init__(self, model, tokenizer):
        self.model, self.processing_class = model, tokenizer
        self.accelerator = self

    def unwrap_model(self, model):
        return model


@pytest.fixture(scope="module")
def tiny():
    from steelyard.models.tiny import tiny_random_lm

    lm = tiny_random_lm()
    return _Rollouts(lm.model, lm.tokenizer)


def test_written_turns_end_at_the_stop_and_answers_are_masked(tiny):
    game = generate_games(1, 1)[0]
    play = EpisodeRollout(lambda _: game.make_env(5), max_turns=2, turn_tokens=6)
    out = play(["do it"] * 4, tiny)
    for prompt, completion, mask, spans, steps in zip(
        out["prompt_ids"], out["completion_ids"], out["env_mask"], out["turn_spans"], out["episode"], strict=True
    ):
        assert len(prompt) > 10
        assert len(completion) == len(mask) == spans[-1][1]
        inside = [place for start, end in spans for place in range(start, end)]
        assert [place for place, one in enumerate(mask) if one] == inside
        assert len(steps) == len(spans) == 2
        assert steps[-1]["truncated"]
    assert [episode[0]["task"] for episode in out["episode"]] == [0, 0, 1, 1]


def test_equal_seeds_draw_equal_candidates(tiny):
    game = generate_games(1, 1)[0]
    one, two = (
        EpisodeRollout(lambda _: game.make_env(5), max_turns=2, candidates=admissible, seed=4)(["x"] * 2, tiny)
        for _ in range(2)
    )
    assert one["completion_ids"] == two["completion_ids"]
    assert all(step["action"] in game.make_env().reset()[1]["admissible"] for step in [one["episode"][0][0]])


def test_prompts_that_are_messages_are_refused(tiny):
    play = EpisodeRollout(lambda _: generate_games(1, 1)[0].make_env(5))
    with pytest.raises(InputError, match="prompt"):
        play([[{"role": "user", "content": "x"}]], tiny)


def test_token_offsets_cover_the_text(tiny):
    ids = tiny.processing_class("take mug", add_special_tokens=False).input_ids
    offsets = token_offsets(tiny.processing_class, ids)
    assert offsets[0][0] == 0
    assert offsets[-1][1] == len("take mug")


def test_advantages_of_tokens_are_those_of_their_turn():
    rows = [{"turn_spans": [(0, 2), (4, 5)], "turn_segments": []}, {"turn_spans": [(0, 1)], "turn_segments": []}]
    found = token_advantages(rows, np.array([1.0, 2.0, 3.0]), torch.zeros(2, 6))
    assert found.tolist() == [[1, 1, 0, 0, 2, 0], [3, 0, 0, 0, 0, 0]]


def test_segments_get_their_own_and_the_rest_of_a_turn_the_commands():
    rows = [{"turn_spans": [(1, 5)], "turn_segments": [{"progress": [0], "action": [1], "predict": [3]}]}]
    credit = {"progress": np.array([1.0]), "action": np.array([2.0]), "predict": np.array([3.0])}
    assert token_advantages(rows, credit, torch.zeros(1, 6)).tolist() == [[0, 1, 2, 2, 3, 0]]


@pytest.mark.parametrize("options", [{"max_turns": 0}, {"turn_tokens": 0}])
def test_a_rollout_without_turns_is_refused(options):
    with pytest.raises(InputError):
        EpisodeRollout(lambda _: None, **options)


def test_rewards_of_ones_own_are_refused(tmp_path):
    with pytest.raises(InputError, match="reward_funcs"):
        G2POTrainer(None, lambda _: None, reward_funcs=[])
