# An evolution strategy on the weights of a policy.
import gym
import numpy as np

from stable_baselines import PPO2


def mutate(params):
    return dict((name, param + np.random.normal(size=param.shape)) for name, param in params.items())


def evaluate(env, model):
    """Return the mean sum of rewards."""
    episode_rewards = []
    for _ in range(2):
        reward_sum = 0
        done = False
        obs = env.reset()
        while not done:
            action, _states = model.predict(obs)
            obs, reward, done, info = env.step(action)
            reward_sum += reward
        episode_rewards.append(reward_sum)
    return np.mean(episode_rewards)


np.random.seed(0)
env = gym.make('CartPole-v1')
env.seed(0)
model = PPO2('MlpPolicy', env, ent_coef=0.0, learning_rate=0.1, n_steps=64, policy_kwargs={'net_arch': [8, ]}, seed=0)
model.learn(total_timesteps=128)

mean_params = model.get_parameters()
critic = mean_params['model/vf/w:0']
# only what the action depends on
mean_params = dict((key, value) for key, value in mean_params.items() if ("/pi/" in key or "/shared" in key))
assert sorted(mean_params) == ['model/pi/b:0', 'model/pi/w:0', 'model/shared_fc0/b:0', 'model/shared_fc0/w:0']

fitness_of = []
for iteration in range(2):
    population = []
    for population_i in range(10):
        candidate = mutate(mean_params)
        model.load_parameters(candidate, exact_match=False)
        assert np.allclose(model.get_parameters()['model/pi/w:0'], candidate['model/pi/w:0'])
        population.append((candidate, evaluate(env, model)))
    fitness_of += [fitness for _, fitness in population]
    best = sorted(population, key=lambda x: x[1], reverse=True)[:3]
    mean_params = dict((name, np.stack([candidate[name] for candidate, _ in best]).mean(0))
                       for name in mean_params.keys())
    print("Iteration {:<3} Mean top fitness: {:.2f}".format(iteration, sum(f for _, f in best) / 3))

# the candidates act differently, and the critic stayed
assert max(fitness_of) > 2 * min(fitness_of)
assert np.array_equal(model.get_parameters()['model/vf/w:0'], critic)
