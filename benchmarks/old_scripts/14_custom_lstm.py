# Recurrent policies of one's own shape.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.policies import LstmPolicy


class CustomLSTMPolicy(LstmPolicy):
    def __init__(self, sess, ob_space, ac_space, n_env, n_steps, n_batch, n_lstm=24, reuse=False, **_kwargs):
        super().__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, n_lstm, reuse,
                         net_arch=[8, 'lstm', dict(vf=[5, 10], pi=[10])],
                         layer_norm=True, feature_extraction="mlp", **_kwargs)


class LateLayer(LstmPolicy):
    def __init__(self, sess, ob_space, ac_space, n_env, n_steps, n_batch, n_lstm=16, reuse=False, **_kwargs):
        super().__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, n_lstm, reuse,
                         net_arch=['lstm', 8], layer_norm=False, feature_extraction="mlp", **_kwargs)


for policy, cells in ((CustomLSTMPolicy, 24), (LateLayer, 16)):
    model = PPO2(policy, 'CartPole-v1', nminibatches=1, n_steps=8)
    model.learn(total_timesteps=16)
    env = model.get_env()
    obs = env.reset()
    action, state = model.predict(obs, deterministic=True)
    assert state.shape == (1, 2 * cells)
    shapes = {name: value.shape for name, value in model.get_parameters().items()}
    if policy is CustomLSTMPolicy:
        assert shapes['model/shared_fc0/w:0'] == (4, 8)
        assert shapes['model/lstm1/wx:0'] == (8, 96) and shapes['model/lstm1/wh:0'] == (24, 96)
        assert shapes['model/lstm1/gx:0'] == (96,) and shapes['model/lstm1/bc:0'] == (24,)
        assert shapes['model/vf_fc1/w:0'] == (5, 10) and shapes['model/pi_fc0/w:0'] == (24, 10)
    else:
        assert shapes['model/lstm1/wx:0'] == (4, 64)
        assert 'model/lstm1/gx:0' not in shapes
    p = model.action_probability(obs)
    model.save('lstm.zip')
    loaded = PPO2.load('lstm.zip', policy=policy)
    assert np.allclose(loaded.action_probability(obs), p)
