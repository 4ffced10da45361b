"""What a machine needs for a test."""

from __future__ import annotations

import os

import pytest
import torch

from minerva.acceleration.compiled import compiler_available

needs_compiler = pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
