# Callbacks that are called by hand, in the order in which learn() calls them.
import os

from stable_baselines import PPO2
from stable_baselines.common.callbacks import (
    BaseCallback, CallbackList, CheckpointCallback, ConvertCallback, EvalCallback, EventCallback)
from stable_baselines.common.cmd_util import make_vec_env

seen = []


def note(_locals, _globals):
    seen.append((_locals['answer'], _locals.get('late'), _globals['name']))
    return _locals['answer'] != 3


class Nested(EventCallback):
    def _on_step(self):
        return self._on_event()


class Quiet(BaseCallback):
    started = False

    def _on_training_start(self):
        self.started = self.locals['answer'] == 1

    def _on_step(self):
        return True


model = PPO2('MlpPolicy', make_vec_env('CartPole-v1', n_envs=2), n_steps=8)
quiet = Quiet(verbose=1)
callback = CallbackList([ConvertCallback(note, verbose=1), Nested(quiet)])
assert isinstance(callback, BaseCallback) and callback.callbacks[0].verbose == 1

callback.init_callback(model)
assert quiet.model is model and quiet.training_env is model.get_env() and quiet.logger is not None
variables = {'answer': 1}
callback.on_training_start(variables, {'name': 'here'})
assert quiet.started
callback.on_rollout_start()
assert callback.on_step() is not False
# the variables of a step are added, and every callback sees them
callback.update_locals({'answer': 2, 'late': 'yes'})
assert callback.on_step() is not False
assert variables['late'] == 'yes' and quiet.locals['answer'] == 2
callback.update_locals({'answer': 3})
assert callback.on_step() is False
callback.on_rollout_end()
callback.on_training_end()
assert seen == [(1, None, 'here'), (2, 'yes', 'here'), (3, 'yes', 'here')]
assert callback.n_calls == quiet.n_calls == 3 and quiet.parent.n_calls == 3

# paths stay text, so that scripts can put them together
checkpoints = CheckpointCallback(save_freq=1, save_path='logs')
evaluation = EvalCallback(make_vec_env('CartPole-v1'), log_path='logs', best_model_save_path='logs')
assert checkpoints.save_path + '/last' == 'logs/last'
assert evaluation.best_model_save_path + '/x' == 'logs/x' and evaluation.log_path == os.path.join('logs', 'evaluations')
