# Trigger a callback every n steps.
import os

from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback, CheckpointCallback, EveryNTimesteps

checkpoint_on_event = CheckpointCallback(save_freq=1, save_path='./logs/')
event_callback = EveryNTimesteps(n_steps=50, callback=checkpoint_on_event)
model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=60, nminibatches=3, verbose=1)
model.learn(120, callback=event_callback)
assert sorted(os.listdir('logs')) == ['rl_model_100_steps.zip', 'rl_model_50_steps.zip']


class Stop(BaseCallback):
    def _on_step(self):
        assert isinstance(self.parent, EveryNTimesteps)
        return False


model.learn(1200, callback=EveryNTimesteps(70, Stop()))
assert model.num_timesteps == 70
