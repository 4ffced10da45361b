# A recurrent policy: state and mask go back into predict.
from stable_baselines import PPO2

# the number of environments must be a multiple of nminibatches
model = PPO2('MlpLstmPolicy', 'CartPole-v1', nminibatches=1, n_steps=32, verbose=1)
model.learn(64)

env = model.get_env()
obs = env.reset()
state = None
done = [False for _ in range(env.num_envs)]
for _ in range(40):
    action, state = model.predict(obs, state=state, mask=done)
    obs, reward, done, _ = env.step(action)
    env.render(mode='rgb_array')
# 256 cells and 256 hidden units
assert state.shape == (1, 512)
