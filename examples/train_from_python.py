"""Train PPO from Python with a preset; pass further settings as keyword arguments.

python examples/train_from_python.py [total_steps] [out_dir]
"""

import sys

import minerva


def main(total_steps: int = 100_000, out_dir: str | None = None) -> None:
    result = minerva.train("ppo", "Pendulum-v1", total_steps=total_steps, out_dir=out_dir, seed=1)
    print(f"The learning curve is in {result.plot()}.")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
