"""An H100 to compile for where there is none: needs JAX's CUDA plugin, no device, no driver.

  pip install jax-cuda13-plugin jax-cuda13-pjrt     # of the version of jax, with --no-deps
  pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt

What tuning by measurement would choose is not known so: programs are compiled with `UNTUNED`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from unittest import mock

import jax
from jax.experimental import topologies

UNTUNED = {"xla_gpu_enable_triton_gemm": False}
"""Products by libraries: XLA's own need a tile, which is found by measuring."""

_DESCRIPTION = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def is_installed() -> bool:
    """Tells whether programs can be compiled for an H100 here."""
    return importlib.util.find_spec("jax_cuda13_plugin") is not None


def sharding() -> jax.sharding.SingleDeviceSharding:
    """Returns the place of arguments, as shapes, of what is compiled for an H100."""
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", target_config=_DESCRIPTION, topology="1x1x1"
    )
    return jax.sharding.SingleDeviceSharding(described.devices[0])


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Within this, rules that ask for the backend while they trace decide as on a GPU."""
    with mock.patch.object(jax, "default_backend", lambda: "gpu"):
        yield
