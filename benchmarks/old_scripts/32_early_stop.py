# When a callback stops training, the rollout and the training still end in order.
from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback


class StopInTheMiddle(BaseCallback):
    def __init__(self):
        super(StopInTheMiddle, self).__init__()
        self.ends = []

    def _on_step(self):
        return self.num_timesteps < 40

    def _on_rollout_end(self):
        self.ends.append('rollout')

    def _on_training_end(self):
        self.ends.append('training')


model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, nminibatches=4)
weights = model.get_parameters()['model/pi/w:0']
callback = StopInTheMiddle()
assert model.learn(320, callback=callback) is model
assert callback.ends == ['rollout', 'rollout', 'training']
assert model.num_timesteps == 40

# one update was made; the second rollout was given up
assert (model.get_parameters()['model/pi/w:0'] != weights).any()

# training can go on
model.learn(64, reset_num_timesteps=False)
assert model.num_timesteps == 104
