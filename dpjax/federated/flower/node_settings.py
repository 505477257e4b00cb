"""What a node's owner decides, and nobody else can: ledger, limits, consent to go without noise.

Read from the node's own configuration alone, never from a run's. A setting that is not understood
stops the node: read as absent, a misspelt limit would be no limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

LEDGER = "ledger"
MAX_EPSILON = "max-epsilon"
MAX_DELTA = "max-delta"
ALLOW_WITHOUT_NOISE = "allow-training-without-noise"
"""A node's own word that its updates may be summed without noise."""

_OWN = (LEDGER, MAX_EPSILON, MAX_DELTA, ALLOW_WITHOUT_NOISE)
PLACE = ("data", "partition-id", "num-partitions", "chunk-size")
"""Where a node's records are, and how many candidates it trains at once."""


@dataclasses.dataclass(frozen=True)
class NodeSettings:
    """Holds a node owner's own settings."""

    ledger: str  # path of the file with what this node has spent and answered; always needed
    # Limits of the sums over that file; None, both or neither, for none.
    max_epsilon: float | None = None
    max_delta: float | None = None
    allow_training_without_noise: bool = False  # whether updates may be summed so

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, str) or not self.ledger:
            raise ValueError(
                f"{LEDGER}={self.ledger!r}: start the node with --node-config "
                f"'{LEDGER}=\"/path/to/a/file\"', where it notes what it spent and answered"
            )
        if (self.max_epsilon is None) != (self.max_delta is None):
            given, missing = (
                (MAX_DELTA, MAX_EPSILON) if self.max_epsilon is None else (MAX_EPSILON, MAX_DELTA)
            )
            raise ValueError(
                f"{given} without {missing}: an epsilon means nothing without its delta; pass "
                f"both, as in {MAX_EPSILON}=4.0 {MAX_DELTA}=1e-4"
            )
        for name, value, largest in (
            (MAX_EPSILON, self.max_epsilon, math.inf),
            (MAX_DELTA, self.max_delta, 1.0),
        ):
            if value is not None and not (_is_number(value) and 0.0 <= value < largest):
                raise ValueError(
                    f"{name}={value!r}: pass a number of at least 0 and below {largest:g}"
                )
        if not isinstance(self.allow_training_without_noise, bool):
            raise ValueError(
                f"{ALLOW_WITHOUT_NOISE}={self.allow_training_without_noise!r}: pass true or false, "
                "without quotation marks"
            )

    @classmethod
    def from_config(
        cls, node_config: Mapping[str, Any], further: Collection[str] | None = None
    ) -> NodeSettings:
        """Reads a node's configuration; its ValueErrors are for the owner's own log.

        `further` names all else that something reads; a name that nothing reads is refused. None:
        what does not look like a setting of this class is somebody else's.
        """
        for name in node_config:
            plain = _plain(name)
            if plain in _OWN and name not in _OWN:
                raise ValueError(f"{name}: nothing reads this setting of a node; pass {plain}")
            if further is not None and name not in {*_OWN, *PLACE, *further}:
                raise ValueError(
                    f"{name}: nothing reads this setting of a node; drop it, or pass one of "
                    f"{', '.join(sorted({*_OWN, *PLACE, *further}))}"
                )
        return cls(
            ledger=node_config.get(LEDGER, ""),
            max_epsilon=node_config.get(MAX_EPSILON),
            max_delta=node_config.get(MAX_DELTA),
            allow_training_without_noise=node_config.get(ALLOW_WITHOUT_NOISE, False),
        )


def refuse_owners_settings(defaults: Mapping[str, Any]) -> None:
    """Refuses what only a node's owner may set among an app's defaults, where nothing reads it."""
    for name in defaults:
        plain = _plain(name)
        if plain in _OWN:
            raise ValueError(
                f"{name}: an app's defaults are no place for a node's own setting, and would be "
                f"no limit; start the node with --node-config '{plain}=...'"
            )


def _plain(name: str) -> str:
    """Returns a setting's name without what a slip of the pen changes."""
    return name.strip().casefold().replace("_", "-")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
