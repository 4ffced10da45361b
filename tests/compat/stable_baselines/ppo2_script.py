"""A short script for PPO2 of stable-baselines 2.10, in which only the import lines were changed."""
# mypy: ignore-errors
# ruff: noqa: PTH208, UP008, UP031

import os

import gymnasium as gym
import numpy as np

from minerva.compat.stable_baselines import (
    PPO2,
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    CnnPolicy,
    DummyVecEnv,
    EvalCallback,
    MlpLstmPolicy,
    MlpPolicy,
    StopTrainingOnRewardThreshold,
    VecFrameStack,
    VecNormalize,
    evaluate_policy,
    make_atari_env,
    make_vec_env,
)


def linear_schedule(initial_value):
    def schedule(progress):
        return progress * initial_value

    return schedule


# CartPole: four environments, a schedule, TensorBoard, and a table after each tenth update

env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
model = PPO2(
    MlpPolicy,
    env,
    n_steps=32,
    learning_rate=linear_schedule(2.5e-4),
    cliprange=linear_schedule(0.2),
    verbose=1,
    tensorboard_log="./ppo2_tensorboard/",
    seed=0,
)
model.learn(total_timesteps=1280, log_interval=10, tb_log_name="cartpole")
model.save("ppo2_cartpole")
del model

model = PPO2.load("ppo2_cartpole")
obs = env.reset()
for _ in range(50):
    action, _states = model.predict(obs)
    obs, rewards, dones, info = env.step(action)
probabilities = model.action_probability(obs)
assert probabilities.shape == (4, 2)

mean_reward, std_reward = evaluate_policy(model, gym.make("CartPole-v1"), n_eval_episodes=3)
print("Mean reward: %.2f +/- %.2f" % (mean_reward, std_reward))

# Continue training a saved model, and callbacks: checkpoints, evaluation, a stop at a threshold


class StopAfterSteps(BaseCallback):
    def __init__(self, limit, verbose=0):
        super(StopAfterSteps, self).__init__(verbose)
        self.limit = limit

    def _on_training_start(self):
        assert self.training_env.num_envs == 4

    def _on_step(self):
        return self.num_timesteps < self.limit


model = PPO2.load("ppo2_cartpole", env=env, learning_rate=1e-3, cliprange=0.2, verbose=0)
stop_on_reward = StopTrainingOnRewardThreshold(reward_threshold=1, verbose=1)
evaluation = EvalCallback(
    gym.make("CartPole-v1"),
    callback_on_new_best=stop_on_reward,
    eval_freq=40,
    n_eval_episodes=2,
    best_model_save_path="./logs/best",
    log_path="./logs/results",
)
checkpoints = CheckpointCallback(save_freq=20, save_path="./logs/", name_prefix="cartpole")
model.learn(total_timesteps=int(1e5), callback=CallbackList([checkpoints, evaluation, StopAfterSteps(10000)]))
stopped_at = model.num_timesteps
assert sorted(os.listdir("./logs")) == ["best", "cartpole_160_steps.zip", "cartpole_80_steps.zip", "results"]
assert np.load("./logs/results/evaluations.npz")["timesteps"].tolist() == [160]

best_so_far = -np.inf


def callback(_locals, _globals):
    global best_so_far
    if len(_locals["self"].ep_info_buf) > 0:
        best_so_far = max(best_so_far, max(episode["r"] for episode in _locals["self"].ep_info_buf))
    return _locals["self"].num_timesteps < 300


model.learn(total_timesteps=1024, callback=callback)
assert model.num_timesteps == 300

# Pendulum: observations and rewards normalized, statistics saved with the model

env = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
env = VecNormalize(env, norm_obs=True, norm_reward=True, clip_obs=10.0)
model = PPO2("MlpPolicy", env, n_steps=64, ent_coef=0.0, policy_kwargs={"net_arch": [{"pi": [32], "vf": [32, 32]}]})
model.learn(total_timesteps=256)
model.save("ppo2_pendulum")
env.save("vec_normalize.pkl")
del model, env

env = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
env = VecNormalize.load("vec_normalize.pkl", env)
env.training = False
env.norm_reward = False
model = PPO2.load("ppo2_pendulum", env=env)
obs = env.reset()
for _ in range(20):
    action, _states = model.predict(obs, deterministic=True)
    obs, rewards, dones, info = env.step(action)
assert env.get_original_obs().shape == (1, 3)

# A recurrent (LSTM) policy, in eight environments

env = make_vec_env("CartPole-v1", n_envs=8)
model = PPO2(MlpLstmPolicy, env, n_steps=16, nminibatches=4, policy_kwargs={"n_lstm": 32})
model.learn(total_timesteps=256)
obs = env.reset()
state = None
done = [False for _ in range(env.num_envs)]
for _ in range(30):
    action, state = model.predict(obs, state=state, mask=done)
    obs, rewards, done, info = env.step(action)
assert state.shape == (8, 64)

# Pong: convolutions over four frames

env = make_atari_env("PongNoFrameskip-v4", num_env=2, seed=0)
env = VecFrameStack(env, n_stack=4)
assert env.observation_space.shape == (84, 84, 4)
model = PPO2(CnnPolicy, env, n_steps=8, nminibatches=2, noptepochs=1)
model.learn(total_timesteps=32)
obs = env.reset()
action, _states = model.predict(obs)
obs, rewards, dones, info = env.step(action)
assert obs.dtype == np.uint8
env.close()
