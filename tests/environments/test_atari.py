from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from minerva.environments import Episode, Step, make, resolve
from minerva.evaluation import Evaluator
from tests.environments.optional import needs

pytestmark = needs("ale_py", "cv2")


def played(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    """Play at random through lost lives; return every observation, reward and flag."""
    generator = np.random.default_rng(seed)
    story: list[Any] = [env.reset(seed=seed)[0].tobytes()]
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(int(generator.integers(env.action_space.n)))
        story.append((observation.tobytes(), reward, terminated, truncated, info["lives"]))
        if terminated or truncated:
            story.append(env.reset()[0].tobytes())
    return story


def test_a_seed_determines_a_game_independent_of_earlier_games() -> None:
    # If only part of the emulator's state is restored, one of these keeps its screen and one its random numbers.
    for name in ("ALE/Qbert-v5", "ALE/BeamRider-v5"):
        one, other = resolve(name, training=True)(), resolve(name, training=True)()
        story = played(one, 5, 60)
        played(other, 9, 100)
        assert played(other, 5, 60) == story
        assert played(other, 6, 60) != story


def test_observations_are_stacks_of_the_newest_frames() -> None:
    env = resolve("ALE/Breakout-v5")()
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    first, _ = env.reset(seed=0)
    assert all(np.array_equal(frame, first[0]) for frame in first)
    seen = [first[-1]]
    for t in range(6):
        frames, *_ = env.step(2)
        seen.append(frames[-1])
        expected = [seen[max(0, t + 1 - back)] for back in (3, 2, 1, 0)]
        np.testing.assert_array_equal(frames, np.stack(expected))
    assert len({frame.tobytes() for frame in seen}) > 4


def test_a_step_is_four_frames_and_shows_the_maximum_of_the_last_two() -> None:
    import cv2

    env = resolve("ALE/Breakout-v5", training=True)()
    ale = env.get_wrapper_attr("ale")
    env.reset(seed=0)
    for _ in range(30):
        state, before = ale.cloneSystemState(), ale.getEpisodeFrameNumber()
        frames, *_ = env.step(0)
        assert ale.getEpisodeFrameNumber() == before + 4
        after = ale.cloneSystemState()
        ale.restoreSystemState(state)
        screens = []
        for _ in range(4):
            ale.act(0)
            screens.append(ale.getScreenGrayscale().copy())
        ale.restoreSystemState(after)
        by_hand = cv2.resize(np.maximum(screens[2], screens[3]), (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(frames[-1], by_hand)


def test_a_game_starts_with_noop_frames_and_fire() -> None:
    # The frame of the fire button is the last of at most thirty; a game without the button has one more no-op.
    for name, least, most in (("ALE/Breakout-v5", 1, 30), ("ALE/Freeway-v5", 1, 30)):
        env = resolve(name)()
        ale = env.get_wrapper_attr("ale")
        frames = []
        for seed in range(40):
            env.reset(seed=seed)
            frames.append(ale.getEpisodeFrameNumber())
        assert least <= min(frames) < 6
        assert 25 < max(frames) <= most
        # The ball is in play.
        if name == "ALE/Breakout-v5":
            assert int(ale.getRAM()[101]) != 0


def test_training_has_lives_and_signs_but_reports_games_and_scores() -> None:
    batch = make("ALE/Breakout-v5", 2, seed=1)
    whole = Evaluator(resolve("ALE/Breakout-v5"), 2, 0)
    batch.reset()
    generator = np.random.default_rng(0)
    lives = np.zeros(2, dtype=int)
    points = np.zeros(2)
    episodes: list[Episode] = []
    ends = []
    for _ in range(900):
        step = batch.step(generator.integers(0, 4, (2, 1)).astype(np.float32))
        assert set(step.rewards.tolist()) <= {-1.0, 0.0, 1.0}
        lives += step.terminated
        points += step.rewards
        for episode in step.episodes:
            i = episode.env_index
            ends.append(int(lives[i]))
            assert episode.episode_return >= points[i]  # a brick is worth 1, 4 or 7 points
            lives[i], points[i] = 0, 0
            episodes.append(episode)
    assert set(ends) == {5}  # lives of a game
    assert len(episodes) >= 4
    assert any(episode.episode_return > 0 for episode in episodes)
    batch.close()
    evaluation = whole.run(lambda rows: np.full((2, 1), 2, dtype=np.float32))
    assert (evaluation.lengths > 100).all()  # five lives, each started with fire
    assert (evaluation.lengths < 2000).all()
    whole.close()


def test_training_and_evaluation_play_the_same_game() -> None:
    name = "ALE/Qbert-v5"  # its rewards are at least 25
    batch, whole = make(name, seed=4), resolve(name)()
    rows = batch.reset()
    frames, _ = whole.reset(seed=batch.state_dict()["episode_seeds"][0])
    generator = np.random.default_rng(0)
    points, lost, over = 0.0, 0, False
    while not over:
        action = int(generator.integers(6))
        step = batch.step(np.array([[action]], dtype=np.float32))
        if not step.restarting[0]:
            assert rows[0].tolist() == frames.reshape(-1).tolist()
            frames, reward, over, _, _ = whole.step(action)
            points += float(reward)
            assert step.rewards[0] == np.sign(float(reward))
            lost += int(step.terminated[0])
        elif lost:  # a new life is stacked on the last frames of the old one
            assert step.observations[0].reshape(4, -1)[:3].tolist() == rows[0].reshape(4, -1)[1:].tolist()
        rows = step.observations
    assert lost == 4
    [episode] = step.episodes
    assert episode.episode_return == points > 20
    batch.close()
    whole.close()


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_a_game_resumes_bit_for_bit_in_any_life(vectorization: Any) -> None:
    one, other = (make("ALE/Breakout-v5", 2, seed, vectorization, 2) for seed in (1, 2))
    one.reset()
    generator = np.random.default_rng(0)
    actions = generator.integers(0, 4, (260, 2, 1)).astype(np.float32)
    states: dict[int, dict[str, Any]] = {}
    steps: list[Step] = []
    for t in range(260):
        if t in (60, 200) or (steps and steps[-1].terminated.any() and len(states) < 3):
            states[t] = one.state_dict()  # within a life, and right after a lost life
        steps.append(one.step(actions[t]))
    assert sum(int(step.terminated.sum()) for step in steps) > 10
    assert any(state["continued"][0] for state in states.values())
    assert any(any(state["goes_on"]) for state in states.values())
    for t, state in states.items():
        assert other.load_state_dict(state) is None
        for s in range(t, min(t + 40, 260)):
            step = other.step(actions[s])
            for name in ("observations", "rewards", "terminated", "truncated", "restarting"):
                np.testing.assert_array_equal(getattr(step, name), getattr(steps[s], name))
            assert step.episodes == steps[s].episodes
    one.close()
    other.close()


def test_sticky_actions_are_off_by_default() -> None:
    name = "ALE/Pong-v5"
    env = resolve(name)()
    assert env.get_wrapper_attr("ale").getFloat("repeat_action_probability") == 0.0
    sticky = resolve(name, {"repeat_action_probability": 0.25, "full_action_space": True})()
    assert sticky.get_wrapper_attr("ale").getFloat("repeat_action_probability") == 0.25
    assert sticky.action_space == gymnasium.spaces.Discrete(18)
    assert played(sticky, 3, 30) == played(sticky, 3, 30)


def test_arguments_of_the_preprocessing_are_errors() -> None:
    with pytest.raises(ValueError, match="env_kwargs: frameskip is fixed by the preprocessing of Atari games"):
        resolve("ALE/Pong-v5", {"frameskip": 2})()
    with pytest.raises(ValueError, match=r"no environment is called 'ALE/Pongg-v5'\. Did you mean ALE/Pong-v5"):
        resolve("ALE/Pongg-v5")


# Against EnvPool


@needs("envpool", "ale_py", "cv2")
@pytest.mark.parametrize("name", ["ALE/Pong-v5", "ALE/Breakout-v5"])
def test_the_pool_shows_the_same_frames(name: str) -> None:
    """A life in EnvPool equals, pixel for pixel, a life here with some number of no-op frames."""
    pool = make(name, 2, seed=3, backend="envpool")
    env = resolve(name, training=True)()
    first = pool.reset()
    generator = np.random.default_rng(0)
    stories: list[list[tuple[bytes, float, bool]]] = [[], []]
    actions = generator.integers(0, 4, (40, 2, 1)).astype(np.float32)
    for t in range(40):
        step = pool.step(actions[t])
        for i in range(2):
            if not any(moment[2] for moment in stories[i]):
                stories[i].append((step.observations[i].tobytes(), step.rewards[i], bool(step.terminated[i])))
    for i in range(2):
        assert any(same_story(env, seed, first[i], actions[:, i, 0], stories[i]) for seed in range(150))


def same_story(env: Any, seed: int, first: NDArray[np.uint8], actions: Any, story: list[Any]) -> bool:
    if env.reset(seed=seed)[0].tobytes() != first.tobytes():
        return False
    for action, moment in zip(actions, story, strict=False):
        observation, reward, terminated, _, _ = env.step(int(action))
        if (observation.tobytes(), reward, terminated) != moment:
            return False
    return True


@cache
def games(backend: Any) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return scores and lengths of whole games, lengths of lives and brightness of frames for a random policy."""
    batch = make("ALE/Breakout-v5", 4, seed=10, backend=backend)
    generator = np.random.default_rng(11)
    batch.reset()
    points, lengths, lives, brightness = [], [], [], []
    life = np.zeros(4, dtype=int)
    for _ in range(1200):
        step = batch.step(generator.integers(0, 4, (4, 1)).astype(np.float32))
        points += [episode.episode_return for episode in step.episodes]
        lengths += [float(episode.length) for episode in step.episodes]
        life += ~step.restarting
        for i in np.flatnonzero(step.terminated):
            lives.append(float(life[i]))
            brightness.append(float(step.observations[i].mean()))
            life[i] = 0
    batch.close()
    return points, lengths, lives, brightness


@needs("envpool", "ale_py", "cv2")
@pytest.mark.parametrize("what", ["points", "lengths", "lives", "brightness"])
def test_the_pool_plays_the_same_game(what: str) -> None:
    # Kolmogorov-Smirnov test at the level of 0.001; the seeds are fixed, so the result never changes.
    index = ["points", "lengths", "lives", "brightness"].index(what)
    here, there = games("gymnasium")[index], games("envpool")[index]
    assert min(len(here), len(there)) >= 15
    assert ks_2samp(here, there).pvalue > 1e-3
