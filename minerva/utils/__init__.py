"""Small tools that are independent of reinforcement learning."""
