"""Small tools that know nothing of reinforcement learning."""
