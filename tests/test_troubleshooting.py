"""docs/troubleshooting.md: each cure helps as its row says, each message is one that is met."""

import dataclasses
import functools
import pathlib
import re

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, bridges, data, models, training, tuning

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text()
INPUTS = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
ADAM = dict(optimizer=training.adam())


@functools.cache
def _digits():
    return data.load("digits").without_validation()


def _accuracy(divisor=1, epsilon=2.0, space=None, optimizer=None, **run):
    """Returns the test accuracy of one untuned run on digits, inputs divided by `divisor`."""
    parts = _digits()
    train = dataclasses.replace(parts.train, inputs=parts.train.inputs / np.float32(divisor))
    task = tuning.classification(models.LogisticRegression(10), train, parts.validation)
    result = tuning.tune(
        task,
        space and tuning.Space(**space),
        tuning.Untuned(),
        epsilon=epsilon,
        delta=1e-5,
        optimizer=optimizer,
        run=tuning.RunOptions(**run),
        seed=1,
    )
    inputs = parts.test.inputs / np.float32(divisor)
    guesses = task.classifier.predict(result.release.params, inputs)
    return float((guesses == parts.test.labels).mean())


LARGE_CLIP = dict(space=dict(learning_rate=0.5, momentum=0.9, clip_norm=100.0))
CURES = {
    "Your inputs are far": (dict(divisor=100), {}),
    "The clip norm is far": (LARGE_CLIP, LARGE_CLIP | dict(clipping=training.AutomaticClipping())),
    "The learning rate comes": (
        ADAM | dict(space=dict(learning_rate=0.001, clip_norm=1.0)),
        ADAM | dict(space=dict(learning_rate=tuning.adam_rate(65, steps=320), clip_norm=1.0)),
    ),
    "Lots are small": (dict(lot_size=8), {}),
    "There are few steps": (dict(steps=10), {}),
    "Epsilon is small": (dict(epsilon=0.1), {}),
}


@functools.cache
def _good():
    return _accuracy()


@pytest.mark.parametrize("begin", CURES)
def test_a_cure_helps_as_its_row_says(begin):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {begin}")]
    before, after = map(float, row.strip(" |").split(" | ")[-2:])
    spoilt, cured = CURES[begin]
    # Last bits differ between machines, and a run takes 320 steps from them.
    assert _accuracy(**spoilt) == pytest.approx(before, abs=0.03)
    assert (_accuracy(**cured) if cured else _good()) == pytest.approx(after, abs=0.03)
    assert after - before >= 0.09 - 1e-9


def test_an_epsilon_that_protects_nobody_tells_noise_from_a_bad_setting():
    rows = re.findall(r"\| (?:the public default|the same.*?100) \|(.*)\|\n", PAGE)
    (*_, good), (*_, scaled) = ([cell.strip() for cell in row.split("|")] for row in rows)
    assert _accuracy(epsilon=1000.0) == pytest.approx(float(good), abs=0.03)
    assert _accuracy(100, epsilon=1000.0) == pytest.approx(float(scaled), abs=0.06)


def test_inputs_that_are_too_large_cost_less():
    (shown,) = re.findall(r"times too large do less harm.*? (0\.\d+)", " ".join(PAGE.split()))
    assert _accuracy(divisor=0.01) == pytest.approx(float(shown), abs=0.03)


def test_the_digits_are_as_many_as_the_page_says():
    assert f"{_digits().train.public_size:,}" == "1,438" and "with 1,438 records" in PAGE


def _parts(labels=LABELS, **sizes):
    sizes = {"public_size": 120} | sizes
    return data.from_arrays(INPUTS, labels, classes=2, **sizes).parts(0.3, key=b"public")


def _tuned(labels=LABELS, tuner=None, **more):
    parts = _parts(labels)
    return tuning.tune(
        tuning.classification(nn.Dense(2), parts.train, parts.validation),
        tuning.Space(learning_rate=0.5, clip_norm=1.0),
        tuner or tuning.RandomRepetitions(accounting.Fixed(1), score_noise=3.0),
        run=tuning.RunOptions(
            lot_size=20, steps=more.pop("steps", 3), noise_multiplier=more.pop("noise", 2.0)
        ),
        optimizer=training.sgd(),
        seed=1,
        **more,
    )


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, inputs, train: bool = False):
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(inputs))


def _classification(model, **more):
    parts = _parts()
    return tuning.classification(model, parts.train, parts.validation, **more)


def _saved_twice():
    release = _tuned().release
    release.save("release")
    release.save("release")


def _two_runs():
    for name in ("one", "two"):
        bridges.Ledger(f"runs/{name}", "mine.csv", (INPUTS, LABELS)).note(1.0, 1e-5)


MET = {
    "The model predicts class 0 for every record": lambda: _tuned(
        np.zeros(120, np.int32), noise=0.5, steps=60
    ),
    "The loss is not finite": lambda: _classification(
        nn.Dense(2), loss=lambda scores, labels: jnp.log(scores[..., 0] * 0 - 1)
    ),
    "Delta is too large": lambda: _tuned(delta=0.05),
    "An earlier run on the same records": _two_runs,
    "The model is an untrained default": lambda: _tuned(
        tuner=tuning.ThresholdStopping(threshold=1.0, halting_probability=1.0)
    ),
    "public_size is missing": lambda: data.from_arrays(INPUTS, LABELS, classes=2),
    "There are more records than size_bound": lambda: _parts(public_size=100),
    "BatchNorm": lambda: _classification(Normalised()),
    "Epsilon or noise": lambda: _tuned(noise=None),
    "The folder exists": _saved_twice,
}


def test_every_message_of_the_page_is_met_here():
    after, _ = PAGE.split("\n## Warnings\n")[1].split("\n## Questions\n")
    assert re.findall(r"\n### (.*)\n", after) == list(MET)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("heading", MET)
def test_a_message_is_as_the_page_shows_it(heading, tmp_path, monkeypatch, recwarn):
    (block,) = re.findall(rf"\n### {re.escape(heading)}\n\n```text\n([^`]*)\n```", PAGE)
    shown = " ".join(block.split())
    monkeypatch.chdir(tmp_path)
    _, errors = PAGE.split("\n## Errors\n")
    if f"\n### {heading}\n" in errors:
        with pytest.raises(ValueError, match=re.escape(shown)) as caught:
            MET[heading]()
        assert str(caught.value).removeprefix(f"{tmp_path}/") == shown
    else:
        MET[heading]()
        assert shown in [str(one.message) for one in recwarn]
