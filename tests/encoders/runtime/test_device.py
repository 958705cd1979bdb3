"""The device is looked for without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import sys
from encoders.runtime.device import has_cuda

print(has_cuda(), "torch" in sys.modules)
sys.modules["torch"] = None
print(has_cuda())
"""


@pytest.mark.slow
def test_a_driver_counts_only_where_torch_is_installed(tmp_path: Path):
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-o", driver, "-x", "c", os.devnull], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    answer = subprocess.check_output([sys.executable, "-c", LOOK], env=environment, text=True)
    assert answer.split() == ["True", "False", "False"]
