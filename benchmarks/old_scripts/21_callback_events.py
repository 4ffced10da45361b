# The events of a callback and what it knows.
from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.common.cmd_util import make_vec_env


class CustomCallback(BaseCallback):
    def __init__(self, verbose=0):
        super(CustomCallback, self).__init__(verbose)
        self.events = []

    def _init_callback(self):
        self.events.append('init')
        assert self.model is not None and self.training_env is self.model.get_env()

    def _on_training_start(self):
        self.events.append('training_start')
        assert self.locals['total_timesteps'] == 64 and self.locals['self'] is self.model
        assert isinstance(self.globals, dict)

    def _on_rollout_start(self):
        self.events.append('rollout_start')

    def _on_step(self):
        self.events.append('step')
        assert self.n_calls == self.events.count('step')
        assert self.num_timesteps == self.model.num_timesteps == 2 * self.n_calls
        return True

    def _on_rollout_end(self):
        self.events.append('rollout_end')

    def _on_training_end(self):
        self.events.append('training_end')


callback = CustomCallback(verbose=1)
assert callback.n_calls == 0 and callback.num_timesteps == 0
assert callback.model is None and callback.training_env is None and callback.parent is None
assert callback.verbose == 1

model = PPO2('MlpPolicy', make_vec_env('CartPole-v1', n_envs=2), n_steps=16)
model.learn(64, callback=callback)
rollout = ['rollout_start'] + 16 * ['step'] + ['rollout_end']
assert callback.events == ['init', 'training_start'] + 2 * rollout + ['training_end']
assert callback.logger is not None
