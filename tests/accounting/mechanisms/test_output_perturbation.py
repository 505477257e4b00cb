"""Output perturbation: the authors' numbers, and the Gaussian's curve."""

import json
import pathlib

import pytest

from dpjax.accounting import output_perturbation

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"
LOGREG = [
    row
    for row in json.loads((ORACLES / "dpareto_logreg.json").read_text())
    if row["eps"] is not None
]


@pytest.mark.parametrize("row", LOGREG)
def test_authors_values_reproduce(row):
    # Their sensitivity is 4 / (lambda n): twice the one needed for logistic loss.
    guarantee = output_perturbation(sensitivity=row["GS"], noise_std=row["sigma"])
    assert guarantee.epsilon(row["delta"]) == pytest.approx(row["eps"], abs=1e-6)


def test_relation_and_curve():
    guarantee = output_perturbation(sensitivity=0.0646, noise_std=1.0)
    assert guarantee.relation == "replace_one"
    assert guarantee.rdp(4.0) == pytest.approx(4 * 0.0646**2 / 2)
    # 0.0646 / 1.0: the same epsilon as any Gaussian of that ratio.
    assert guarantee.epsilon(1e-6) == output_perturbation(0.646, 10.0).epsilon(1e-6)
