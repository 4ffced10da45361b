"""Act with a saved policy: this needs no trainer, only your own environment.

Run it with `python examples/act_with_saved_policy.py [episodes] [RUN]`. Without RUN, it trains a
short run first.
"""

import sys
import tempfile

import gymnasium

import minerva


def main(episodes: int = 5, run: str | None = None) -> None:
    if run is None:
        run = tempfile.mkdtemp() + "/run"
        minerva.train(
            "ppo",
            "Pendulum-v1",
            total_steps=2048,
            out_dir=run,
            eval_episodes=3,
            console=False,
        )
    policy = minerva.load(run)  # which="best" loads the best checkpoint instead of the last
    print(f"{policy.algorithm} on {policy.env_id} after {policy.env_steps:,} steps")
    env = gymnasium.make(policy.env_id)
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, ended = total + float(reward), terminated or truncated
        print(f"episode {episode}: return {total:.1f}")
    env.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2] if len(sys.argv) > 2 else None)
