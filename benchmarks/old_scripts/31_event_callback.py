# An event of one's own.
from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines.common.cmd_util import make_vec_env


class OnLongEpisode(EventCallback):
    """Trigger the child when an episode was long."""

    def __init__(self, length, callback, verbose=0):
        super(OnLongEpisode, self).__init__(callback, verbose=verbose)
        self.length = length
        self.longest = 0

    def _on_step(self):
        for info in self.locals['infos']:
            episode = info.get('episode')
            if episode is not None and episode['l'] >= self.length:
                self.longest = episode['l']
                return self._on_event()
        return True


class StopOnThird(BaseCallback):
    def _on_training_start(self):
        self.started = True

    def _on_step(self):
        assert self.parent.longest >= self.parent.length
        return self.n_calls < 3


child = StopOnThird()
event = OnLongEpisode(10, child)
model = PPO2('MlpPolicy', make_vec_env('CartPole-v1'), n_steps=128)
model.learn(10000, callback=CallbackList([event]))
assert child.started and child.parent is event
assert child.n_calls == 3 and model.num_timesteps < 1000

# without a child, an event does nothing
model.learn(128, callback=EventCallback())
assert model.num_timesteps == 128
