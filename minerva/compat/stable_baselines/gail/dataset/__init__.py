"""Demonstrations: record them, and read them for `PPO2.pretrain`."""
