"""A clip rule of one's own, DP-PSAC, in one file: trained, priced, released, verified."""

import importlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training, tuning

FILE = '''
import dataclasses

from dpjax import training


@training.register_clip_rule("own_adaptive")
@dataclasses.dataclass(frozen=True)
class Own(training.ClipRule):
    """Xia et al. 2023, https://arxiv.org/abs/2212.00328: g C / (|g| + r / (|g| + r))."""

    radius: float = 0.1

    def divisor(self, norm):
        return norm + self.radius / (norm + self.radius)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The class, out of a package that is not there before or afterwards."""
    package = tmp_path / "a_package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rule.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("a_package_of_mine.rule").Own
    training.CLIP_RULES.pop("own_adaptive")
    for name in ("a_package_of_mine.rule", "a_package_of_mine"):
        sys.modules.pop(name)


def test_it_is_trained_priced_released_and_verified(own, task, tuned, released_and_verified):
    options = tuning.RunOptions(lot_size=16, steps=2, noise_multiplier=2.0, clipping=own(0.5))
    result = tuned(task, run=options)
    stated = result.release.statement
    assert stated["run_options"]["clipping"] == {"rule": "own_adaptive", "radius": 0.5}
    verified = released_and_verified(result)
    assert verified.epsilon == verified.recomputed == result.guarantee.stated_epsilon(1e-6)
    # No rule changes what a run costs; this one changes what it learns.
    usual = tuned(task)
    assert usual.guarantee.epsilon(1e-6) == result.guarantee.epsilon(1e-6)
    assert not jax.tree.all(
        jax.tree.map(np.array_equal, usual.release.params, result.release.params)
    )


def test_contributions_are_what_the_paper_says_and_shorter_than_the_clip_norm(own):
    grad_fn = training.clipped_grad(lambda params, row: jnp.vdot(params, row), clipping=own(0.5))
    for length in (1e-6, 0.1, 0.5, 3.0, 1e6):
        row = jnp.asarray([[0.6 * length, 0.8 * length]], jnp.float32)
        found = np.linalg.norm(np.asarray(grad_fn(jnp.zeros(2), row, 2.0)[0], np.float64))
        assert found == pytest.approx(2.0 * length / (length + 0.5 / (length + 0.5)), rel=1e-3)
        assert found < 2.0
    assert json.loads(json.dumps(own(0.5).describe()))["radius"] == 0.5
