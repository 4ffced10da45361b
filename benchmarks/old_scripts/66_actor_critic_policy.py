# bound to TensorFlow
# A policy whose graph is written in TensorFlow.
import tensorflow as tf

from stable_baselines import PPO2
from stable_baselines.common.policies import ActorCriticPolicy


class GraphPolicy(ActorCriticPolicy):
    def __init__(self, sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse=False, **kwargs):
        super(GraphPolicy, self).__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse=reuse, scale=True)
        with tf.variable_scope("model", reuse=reuse):
            hidden = tf.nn.relu(tf.layers.dense(tf.layers.flatten(self.processed_obs), 64, name='pi_fc'))
            value_fn = tf.layers.dense(hidden, 1, name='vf')
            self._proba_distribution, self._policy, self.q_value = \
                self.pdtype.proba_distribution_from_latent(hidden, hidden, init_scale=0.01)
        self._value_fn = value_fn
        self._setup_init()

    def step(self, obs, state=None, mask=None, deterministic=False):
        action, value, neglogp = self.sess.run([self.action, self.value_flat, self.neglogp], {self.obs_ph: obs})
        return action, value, self.initial_state, neglogp

    def proba_step(self, obs, state=None, mask=None):
        return self.sess.run(self.policy_proba, {self.obs_ph: obs})

    def value(self, obs, state=None, mask=None):
        return self.sess.run(self.value_flat, {self.obs_ph: obs})


model = PPO2(GraphPolicy, 'CartPole-v1', n_steps=32, verbose=1)
model.learn(64)
