# bound to TensorFlow
# Values of one's own in TensorBoard, through TensorFlow's summaries.
import numpy as np
import tensorflow as tf

from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback

model = PPO2("MlpPolicy", "Pendulum-v0", n_steps=32, tensorboard_log="tb", verbose=1)


class TensorboardCallback(BaseCallback):
    def __init__(self, verbose=0):
        self.is_tb_set = False
        super(TensorboardCallback, self).__init__(verbose)

    def _on_step(self):
        if not self.is_tb_set:
            with self.model.graph.as_default():
                tf.summary.scalar('value', tf.reduce_mean(self.model.act_model.value_flat))
                self.model.summary = tf.summary.merge_all()
            self.is_tb_set = True
        summary = tf.Summary(value=[tf.Summary.Value(tag='random_value', simple_value=np.random.random())])
        self.locals['writer'].add_summary(summary, self.num_timesteps)
        return True


model.learn(64, callback=TensorboardCallback())
