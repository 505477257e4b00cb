"""A sum of clients' integers with everyone's own noise, which the vote and averaging share.

Every client sends one vector of bounded integers plus its own share of integer noise through a
secure sum; a missing client's noise is missing too, so the cost is that of the fewest survivors the
rule allows. NumPy on the host; noise from the operating system's randomness.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from dpjax import accounting, checks
from dpjax.federated.federation_settings import MINIMUM_CLIENTS, MODULUS
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness


class SummedMechanism(abc.ABC):
    """Describes a calibrated sum. Subclasses are frozen dataclasses: a public rule, and its noise.

    Formal guarantees: none of its own, a subclass states the cost (`guarantee`) for vectors of its
    kind, as the noise of `minimum_survivors` clients hides them. `local_noise` has its law up to a
    total variation of 2^-300 per entry; no entry of `noisy` ever exceeds `clip`, and a plan that
    passed `check_modulus` never wraps in a sum of all clients.
    """

    settings: Any  # the rule; of it only `clients` and `missing_fraction` are read here
    local_variance: float  # variance parameter of one client's noise on one entry, in integers
    vector: ClassVar[str]
    """Error messages call a client's vector so, for example "ballot"."""

    @property
    @abc.abstractmethod
    def entries(self) -> int:
        """Returns the length of a vector."""

    @property
    @abc.abstractmethod
    def largest_entry(self) -> int:
        """Returns the absolute value that no entry exceeds before the noise."""

    @property
    @abc.abstractmethod
    def noise(self) -> str | None:
        """Names one of `integer_laws.NOISES`; None for a sum without noise, NOT private."""

    @property
    def minimum_survivors(self) -> int:
        """Returns the fewest vectors in the sum; with fewer, abort."""
        return accounting.minimum_survivors(self.settings.clients, self.settings.missing_fraction)

    @property
    def clip(self) -> int:
        """Returns a power of two that no entry of a noisy vector ever exceeds in size."""
        reach = 0 if self.noise is None else self._law.reach
        return 1 << (reach + self.largest_entry - 1).bit_length()

    @property
    def _law(self) -> integer_laws.IntegerLaw:
        return integer_laws.integer_law(self.noise, self.local_variance)

    def local_noise(self, source: HostRandomness, stream: int = 0) -> np.ndarray:
        """Draws one client's share of the noise of one sum, (entries,) int64.

        A seeded source is for simulation only; it needs a stream for each client and sum.
        """
        if self.noise is None:
            return np.zeros(self.entries, dtype=np.int64)
        checks.instance("source", source, HostRandomness, "HostRandomness()")
        return self._law.draw(self.entries, source, stream)

    def noisy(self, vector: np.ndarray, source: HostRandomness, stream: int = 0) -> np.ndarray:
        """Adds the client's share of the noise to a vector, (entries,) int64."""
        noisy = vector + self.local_noise(source, stream)
        assert np.abs(noisy).max() <= self.clip  # By construction; else the sum could wrap.
        return noisy

    def checked_total(
        self, total: np.ndarray, survivors: int, aborted: type[ValueError], advice: str = ""
    ) -> np.ndarray:
        """Returns `total` as an array, if it can be the sum of `survivors` noisy vectors.

        Else raises `aborted`, with `advice` if too few or too many are in the sum.
        """
        survivors = checks.whole("survivors", survivors, 0)
        clients = self.settings.clients
        if not self.minimum_survivors <= survivors <= clients:
            raise aborted(
                f"no output: {survivors} of {clients} {self.vector}s are in the sum, and the noise "
                f"needs {self.minimum_survivors}{advice}"
            )
        total = checks.plain_array("total", total)
        if (
            total.shape != (self.entries,)
            or total.dtype.kind not in "iu"
            or np.abs(total.astype(np.int64)).max() > survivors * self.clip
        ):
            raise aborted(
                f"no output: the total is not a sum of {survivors} {self.vector}s of "
                f"{self.entries} whole numbers within {self.clip}"
            )
        return total

    def check_modulus(self, advice: str) -> None:
        """Raises ValueError, with this advice, if a sum of all clients' vectors would wrap."""
        if 2 * self.clip * self.settings.clients >= MODULUS:
            raise ValueError(
                f"{self.settings.clients} noisy {self.vector}s within {self.clip} overflow a sum "
                f"modulo 2^32: pass {advice}"
            )


def check_settings(
    settings: Any,
    vector: str,
    *,
    whole: Mapping[str, int],
    numbers: Mapping[str, Callable[[str, object], float]],
) -> None:
    """Checks fields of a rule, a frozen dataclass, and sets them to what the checks return.

    `whole` maps fields that are whole numbers to their least value, `numbers` others to their
    check. Too few clients are refused: the sum would show one client's `vector` to another.
    """
    for name, least in {"clients": 0, **whole}.items():
        object.__setattr__(settings, name, checks.whole(name, getattr(settings, name), least))
    if settings.clients < MINIMUM_CLIENTS:
        raise ValueError(
            f"{settings.clients} client(s): pass at least {MINIMUM_CLIENTS}; the sum of fewer "
            f"shows one client's {vector} to another"
        )
    for name, check in numbers.items():
        value = getattr(settings, name)
        object.__setattr__(settings, name, checks.kept(value, check(name, value)))
    accounting.minimum_survivors(settings.clients, settings.missing_fraction)
    missing = checks.kept(settings.missing_fraction, float(settings.missing_fraction))
    object.__setattr__(settings, "missing_fraction", missing)
