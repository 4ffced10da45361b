from __future__ import annotations

import subprocess
import sys

import pytest

import minerva.compat.stable_baselines as face

SPECIFIED = [
    "PPO2",
    "MlpPolicy",
    "CnnPolicy",
    "MlpLstmPolicy",
    "CnnLstmPolicy",
    "MlpLnLstmPolicy",
    "CnnLnLstmPolicy",
    "make_vec_env",
    "DummyVecEnv",
    "SubprocVecEnv",
    "VecNormalize",
    "VecFrameStack",
    "BaseCallback",
    "EvalCallback",
    "CheckpointCallback",
    "StopTrainingOnRewardThreshold",
    "CallbackList",
    "evaluate_policy",
]


@pytest.mark.parametrize("name", sorted({*SPECIFIED, *face.__all__}))
def test_every_name_can_be_imported(name: str) -> None:
    assert name in face.__all__
    assert getattr(face, name).__name__.rpartition(".")[2] == name


@pytest.mark.parametrize(
    "imported", ["common.vec_env.subproc_vec_env", "common.vec_env.vec_normalize", "common.cmd_util"]
)
def test_worker_processes_start_without_torch(imported: str) -> None:
    code = f"import sys, minerva.compat.auto_reset, minerva.compat.stable_baselines.{imported}; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
