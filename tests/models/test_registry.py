"""Names of built-in models; what each model keeps is in conformance/test_models.py."""

import pytest

from dpjax import models


def test_losses_by_name():
    assert models.default_loss("linear_svm") is models.hinge
    assert models.default_loss("mlp") is models.cross_entropy


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: models.build("resnet", (8,), 2),
            "linear_svm, mlp, conv_pool",
        ),
        (lambda: models.default_loss("resnet"), "linear_svm, mlp, conv_pool"),
        (lambda: models.build("mlp", (8,), 1), "at least 2"),
        (lambda: models.build("mlp", (8,), 2, widths=(4, 0)), "positive hidden widths"),
        (lambda: models.build("conv_pool", (8,), 2), "conv_pool takes images"),
        (lambda: models.build("conv_blocks", (8, 8), 2), "pass \\(height, width, channels\\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
