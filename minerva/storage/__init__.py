"""Storage of experience for updates: the rollout buffer and the replay buffer."""
