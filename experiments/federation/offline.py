"""Switches that keep Flower from calling home; for the programs' own processes.

Flower reads its switch when it is imported, so call this first. Nothing in `dpjax` sets
environment variables.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def stay_offline(environment: MutableMapping[str, str] = os.environ) -> MutableMapping[str, str]:
    """Sets the switches in an environment, this process's unless given; returns it."""
    environment.update(SWITCHES)
    return environment
