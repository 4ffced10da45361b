# A progress bar as callback, inside of a context manager.
import sys

from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback


class Bar:
    """What tqdm does, in short."""

    def __init__(self, total):
        self.n, self.total = 0, total

    def update(self, n):
        self.n += n
        sys.stderr.write("\r{}/{}".format(self.n, self.total))

    def close(self):
        sys.stderr.write("\n")


class ProgressBarCallback(BaseCallback):
    def __init__(self, pbar):
        super(ProgressBarCallback, self).__init__()
        self._pbar = pbar

    def _on_step(self):
        self._pbar.n = self.num_timesteps
        self._pbar.update(0)
        # returns nothing: training goes on


class ProgressBarManager(object):
    def __init__(self, total_timesteps):
        self.pbar = None
        self.total_timesteps = total_timesteps

    def __enter__(self):
        self.pbar = Bar(total=self.total_timesteps)
        return ProgressBarCallback(self.pbar)

    def __exit__(self, exc_type, exc_val, exc_tb):
        self.pbar.close()


model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=64, verbose=0)
with ProgressBarManager(192) as callback:
    model.learn(192, callback=callback)
assert callback._pbar.n == callback._pbar.total == 192
