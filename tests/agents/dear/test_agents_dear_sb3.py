"""The environment under stable-baselines3's PPO: the library's own training is another, but users may want theirs."""

import numpy as np
import torch
from safetensors.torch import load, save
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from steelyard.agents.dear.env import DebateEnv
from steelyard.agents.dear.simulator import SimAgents


def test_ppo_trains_the_joint_controller_and_keeps_its_weights_without_a_pickle():
    torch.set_num_threads(1)
    env = DummyVecEnv([lambda seed=seed: DebateEnv(SimAgents(n_agents=3), seed=seed).as_gymnasium() for seed in (0, 1)])
    kwargs = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "policy_kwargs": {"net_arch": [16]}, "device": "cpu"}
    model = PPO("MlpPolicy", env, seed=0, **kwargs)
    before = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
    model.learn(128)
    after = model.policy.state_dict()
    assert any(not torch.equal(before[name], weight) for name, weight in after.items())
    other = PPO("MlpPolicy", env, seed=1, **kwargs)
    other.policy.load_state_dict(load(save(dict(after))))
    seen = env.reset()
    np.testing.assert_array_equal(*(one.predict(seen, deterministic=True)[0] for one in (model, other)))
