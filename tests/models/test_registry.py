"""Names of built-in models; what each model keeps is in conformance/test_models.py."""

from dpjax import models


def test_losses_by_name():
    assert models.default_loss("linear_svm") is models.hinge
    assert models.default_loss("mlp") is models.cross_entropy
