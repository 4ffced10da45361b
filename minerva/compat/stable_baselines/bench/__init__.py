"""What scripts import from ``stable_baselines.bench``."""

from minerva.compat.stable_baselines.bench.monitor import Monitor, get_monitor_files, load_results

__all__ = ["Monitor", "get_monitor_files", "load_results"]
