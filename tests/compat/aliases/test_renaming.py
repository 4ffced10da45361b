from __future__ import annotations

from minerva.compat.aliases.renaming import renamed

BEFORE = '''\
#!/usr/bin/env python
"""import gym"""
import os, gym, numpy as np
import gym.spaces
import stable_baselines.common.vec_env as v
from stable_baselines import PPO2  # from gym import this
from  stable_baselines.common.policies import (
    MlpPolicy,
)
from gym import spaces; from gymless import x
from .gym import y
import tensorflow as tf

class Ä(gym.Env): "é"; import gym as g
act = tf.nn.relu
'''
AFTER = '''\
#!/usr/bin/env python
"""import gym"""
import os, minerva.compat.gym as gym, numpy as np
import minerva.compat.gym as gym, minerva.compat.gym.spaces
import minerva.compat.stable_baselines.common.vec_env as v
from minerva.compat.stable_baselines import PPO2  # from gym import this
from  minerva.compat.stable_baselines.common.policies import (
    MlpPolicy,
)
from minerva.compat.gym import spaces; from gymless import x
from .gym import y
import minerva.compat.tensorflow as tf

class Ä(gym.Env): "é"; import minerva.compat.gym as g
act = tf.nn.relu
'''


def test_imports_are_renamed_and_nothing_else() -> None:
    assert renamed(BEFORE.encode()).decode() == AFTER


def test_line_ends_stay() -> None:
    assert renamed(b"import gym\r\nx = 1\r\n") == b"import minerva.compat.gym as gym\r\nx = 1\r\n"


def test_a_script_that_needs_more_of_tensorflow_keeps_it() -> None:
    for use in ("tf.layers.dense", "tf.nn.conv2d"):
        source = f"import tensorflow as tf\nx = {use}\n".encode()
        assert renamed(source) == source
    source = b"from tensorflow.contrib import layers\n"
    assert renamed(source) == source
