"""The odometer: valid under optional stopping, and never taken for a Guarantee."""

import numpy as np
import pytest

from dpjax.accounting.combine import compose
from dpjax.accounting.mechanisms.elementary import pure
from dpjax.accounting.odometer import Odometer, OdometerReading


@pytest.mark.parametrize(("epsilon", "failure"), [(0.01, 0.05), (0.1, 1e-2), (0.5, 1e-3)])
def test_realised_loss_exceeds_no_reading_but_rarely(epsilon, failure):
    """Randomised responses stopped at the first moment the loss exceeds the reading."""
    odometer = Odometer(epsilon, failure)
    high = 1 / (1 + np.exp(-epsilon))
    law, exceeded = np.array([1.0]), 0.0
    for count in range(1, 700):
        law = np.convolve(law, [1 - high, high])
        loss = epsilon * (2 * np.arange(count + 1) - count)
        outside = loss > odometer.read(count).privacy_loss_so_far * (1 + 1e-12)
        exceeded += law[outside].sum()
        law[outside] = 0.0
    assert exceeded <= failure


def test_readings_grow_and_are_below_basic_composition():
    odometer = Odometer(0.1, 1e-5, first_checkpoint=4)
    readings = [odometer.read(count).privacy_loss_so_far for count in range(1, 2000, 7)]
    assert all(later >= earlier for earlier, later in zip(readings, readings[1:]))
    assert odometer.read(7).privacy_loss_so_far <= 0.7 + 1e-12
    assert odometer.read(1024).privacy_loss_so_far < 0.4 * 102.4
    reading = odometer.read(5)
    assert (reading.iterations, reading.checkpoint, reading.failure_probability) == (5, 8, 1e-5)


@pytest.mark.parametrize(
    "name", ["epsilon", "delta", "rdp", "to_pld", "pair", "relation", "provenance"]
)
def test_cannot_be_used_as_a_guarantee(name):
    for thing in (Odometer(0.1, 1e-5), Odometer(0.1, 1e-5).read(7)):
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError, match="no differential privacy guarantee"):
            getattr(thing, name)
        with pytest.raises(ValueError, match="doubling_loop"):
            float(thing)
        with pytest.raises(ValueError, match="doubling_loop"):
            compose(thing, pure(0.1))
        assert "NOT a differential privacy guarantee" in repr(thing)


def test_reading_is_frozen_and_inputs_checked():
    reading = Odometer(0.1, 1e-5).read(3)
    assert isinstance(reading, OdometerReading)
    with pytest.raises(AttributeError):
        reading.privacy_loss_so_far = 0.0
    for arguments, message in (
        ((0.0, 1e-5), "epsilon_per_iteration"),
        ((0.1, 0.0), "failure_probability"),
        ((0.1, 1.0), "failure_probability"),
    ):
        with pytest.raises(ValueError, match=message):
            Odometer(*arguments)
    with pytest.raises(ValueError, match="first_checkpoint"):
        Odometer(0.1, 1e-5, first_checkpoint=0)
    with pytest.raises(ValueError, match="iterations"):
        Odometer(0.1, 1e-5).read(0)
