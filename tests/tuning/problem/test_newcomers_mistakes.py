"""What a newcomer passes by mistake is refused in one line that says what to pass instead."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

from dpjax import data, tuning

X, Y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 2
PARTS = data.from_arrays(X, Y, public_size=60, classes=2).parts(0.3, key=b"public")


class Net(nnx.Module):
    def __init__(self, rngs, width=5):
        self.layers = nnx.List([nnx.Linear(width, 2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[0](x)


def task(model, **settings):
    return tuning.classification(model, PARTS.train, PARTS.validation, **settings)


@pytest.mark.parametrize(
    "mistake,words",
    [
        (lambda: task(lambda rngs: Net(rngs, 4)), r"cannot be called on inputs \(batch, 5\)"),
        (lambda: task(Net(nnx.Rngs(0))), "a Net that is made already.*pass the class"),
        (lambda: task(nn.Dense(2), initial=Net(nnx.Rngs(0))), "not a tree of the model's param"),
        (
            lambda: data.from_arrays(X, Y, classes=2),
            "pass public_size=..., a number that is public",
        ),
        (
            lambda: data.from_arrays(X, Y, public_size=60),
            "pass classes=..., a number that is public",
        ),
        (lambda: tuning.Space(learning_rate=[0.1, 1.0]), r"such as tuning.Choice\(\[0.1, 1\]\)"),
        (
            lambda: tuning.tune(
                task(nn.Dense(2)), tuning.Space(lr=0.1), tuning.Untuned(), epsilon=2.0
            ),
            "hyperparameters learning_rate, momentum: pass learning_rate= in the space, which",
        ),
        (
            lambda: tuning.tune(task(nn.Dense(2)), None, tuning.Untuned, epsilon=2.0),
            "tuner must be a tuner, such as",
        ),
    ],
)
def test_it_is_refused_in_one_line(mistake, words):
    with pytest.raises(ValueError, match=words) as refusal:
        mistake()
    assert "\n" not in str(refusal.value)


def test_a_module_its_state_and_a_pure_dict_are_the_same_parameters():
    public = Net(nnx.Rngs(7))
    trees = [
        task(Net, initial=one).initial(None)
        for one in (public, nnx.state(public), nnx.to_pure_dict(nnx.state(public)))
    ]
    own = task(Net).initial(jax.random.key(0))
    for tree in trees:
        assert jax.tree.structure(tree) == jax.tree.structure(own)
        np.testing.assert_array_equal(tree["layers"]["0"]["kernel"], public.layers[0].kernel[...])
    # To go on from public parameters an instance may be the model, too.
    assert task(public, initial=public).initial(None)["layers"]["0"]["kernel"].shape == (5, 2)
