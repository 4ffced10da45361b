"""What scripts import from ``stable_baselines.gail``."""

from minerva.compat.stable_baselines.gail.dataset.dataset import DataLoader, ExpertDataset
from minerva.compat.stable_baselines.gail.dataset.record_expert import generate_expert_traj
from minerva.compat.stable_baselines.other_algorithms import GAIL

__all__ = ["GAIL", "DataLoader", "ExpertDataset", "generate_expert_traj"]
