# Attributes are looked up through all wrappers; names that two have are refused.
import gym

from stable_baselines.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize


class WrapperA(VecNormalize):
    def __init__(self, venv):
        VecNormalize.__init__(self, venv)
        self.var_a = 'a'


class WrapperB(VecNormalize):
    def __init__(self, venv):
        VecNormalize.__init__(self, venv)
        self.var_b = 'b'

    def func_b(self):
        return self.var_b

    def name_test(self):
        return self.__class__


class WrapperBB(WrapperB):
    def __init__(self, venv):
        WrapperB.__init__(self, venv)
        self.var_bb = 'bb'


venv = DummyVecEnv([lambda: gym.make('CartPole-v1')])
wrapped = WrapperA(WrapperBB(venv))
assert wrapped.var_a == 'a' and wrapped.var_b == 'b' and wrapped.var_bb == 'bb'
assert wrapped.func_b() == 'b'
assert wrapped.name_test() == WrapperBB
assert wrapped.unwrapped is venv and wrapped.envs is venv.envs

double_wrapped = WrapperA(WrapperB(wrapped))
assert double_wrapped.var_a == 'a'  # its own
for name in ('var_b', 'nonexistent_attribute'):
    try:
        getattr(double_wrapped, name)
    except AttributeError:
        pass
    else:
        raise AssertionError(name)

stacked = VecFrameStack(VecNormalize(DummyVecEnv([lambda: gym.make('CartPole-v1')]), clip_obs=3.), 2)
assert stacked.clip_obs == 3. and stacked.obs_rms.mean.shape == (4,)
stacked.reset()
assert stacked.get_original_obs().shape == (1, 4)
