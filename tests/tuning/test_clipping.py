"""Clip rules of tuned candidates: trained by, stated, verified, and part of what a job is."""

import dataclasses
import json

import flat_call
import jax
import numpy as np
import pytest
import small_tasks
from noted_steps import Stopped, noting

from dpjax import accounting, training, tuning
from dpjax.tuning import NotVerified, verify_release
from experiments.figures.leaderboard.extrapolation import Extrapolation  # noqa: F401 (registers it)

RULES = {
    "per_leaf": training.PerLeafClipping(),
    "shares": training.PerLeafClipping({"kernel": 3.0, "bias": 1.0}),
    "grouped": training.GroupedClipping(["kernel", ""]),
    "automatic": training.AutomaticClipping(stability=0.1),
}
SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.05, 0.5), clip_norm=0.05, momentum=0.5)
# The noise is given, and scores are public: pricing takes longer than training.
OPTIONS = dict(
    noise_multiplier=2.0, validation_is_public=True, delta=1e-6, lot_size=20, steps=4, seed=3
)


TRACED = []


@dataclasses.dataclass(frozen=True)
class NotedRule(training.AutomaticClipping):
    """Notes that a program clips by it."""

    def divisor(self, norm):
        TRACED.append(norm)
        return super().divisor(norm)


@pytest.fixture(autouse=True)
def _quiet(recwarn):
    """A seed and a large delta are meant."""
    yield
    recwarn.clear()


def tuned(clipping="global", **changes):
    options = OPTIONS | {"repetitions": accounting.Fixed(2)} | changes
    return flat_call.tune(
        tuning.RandomRepetitions, small_tasks.linear(), SPACE, clipping=clipping, **options
    )


def leaves(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.release.params)]


@pytest.fixture(scope="module")
def usual():
    return tuned()


@pytest.mark.parametrize("name", RULES)
def test_a_release_is_of_its_rule_says_so_and_verifies(name, usual, tmp_path):
    """The same price, another model."""
    result = tuned(RULES[name])
    assert result.guarantee.epsilon(1e-3) == usual.guarantee.epsilon(1e-3)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(leaves(result), leaves(usual)))
    folder = tmp_path / "release"
    result.release.save(str(folder))
    stated = json.loads((folder / "guarantee.json").read_text())
    assert stated["run_options"]["clipping"] == RULES[name].describe()
    assert stated["run_options"]["clipping"]["rule"] == RULES[name].name
    assert verify_release(str(folder / "guarantee.json")).epsilon == stated["epsilon"]
    rest = {key: value for key, value in stated["run_options"].items() if key != "clipping"}
    assert rest == usual.release.statement["run_options"]


def test_the_usual_rule_is_not_named(usual):
    assert "clipping" not in usual.release.statement["run_options"]
    again = tuned(training.GlobalClipping())
    assert again.release.statement == usual.release.statement


def test_a_statement_of_the_usual_rule_of_none_or_of_a_removed_one_is_not_verified(tmp_path, usual):
    """It would be another than what is written."""
    removed = {"rule": "quantile", "quantile": 0.5, "rate": 0.2, "count_noise_ratio": 10.0}
    words = ("rebuilt|its own rules", "rebuilt", "dpjax 0.2.0 was the last .* 'quantile'")
    for number, clipping in enumerate(({"rule": "global"}, {"rule": "none"}, removed)):
        statement = dict(usual.release.statement)
        statement["run_options"] = statement["run_options"] | {"clipping": clipping}
        release = tuning.Release(
            usual.release.params, usual.release.hyperparameters, statement
        )  # Sealed anew.
        release.save(str(tmp_path / str(number)))
        with pytest.raises(NotVerified, match=words[number]) as error:
            verify_release(str(tmp_path / str(number) / "guarantee.json"))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "tuner",
    ["threshold_stopping", "exponential", "permute_and_flip", "doubling"],
)
def test_every_tuner_trains_by_the_rule(tuner, tmp_path):
    """The models of partitions, which clip as the final training does, too."""
    few = dict(candidates=2, partitions=2)
    cls, own = {
        "threshold_stopping": (
            tuning.ThresholdStopping,
            dict(threshold=0.1, halting_probability=0.2),
        ),
        "exponential": (tuning.Exponential, few),
        "permute_and_flip": (tuning.Exponential, few | dict(mechanism="permute_and_flip")),
        "doubling": (tuning.Doubling, few | dict(granularity=0.5)),
    }[tuner]
    given = dict(clipping=NotedRule(0.1)) | OPTIONS | own
    before = len(TRACED)
    if tuner != "threshold_stopping":
        with pytest.raises(Stopped):
            flat_call.tune(noting(cls, [], "final"), small_tasks.linear(), SPACE, **given)
        assert len(TRACED) > before
    of_partitions, before = len(TRACED) - before, len(TRACED)
    result = flat_call.tune(cls, small_tasks.linear(), SPACE, **given)
    assert len(TRACED) - before > of_partitions
    folder = tmp_path / "release"
    result.release.save(str(folder))
    verify_release(str(folder / "guarantee.json"))


def test_candidates_of_several_settings_train_by_the_rule():
    space = tuning.Space(SPACE.parameters, lot_size=tuning.Choice([10, 20]))
    before = len(TRACED)
    options = OPTIONS | dict(lot_size=None, repetitions=accounting.Fixed(2))
    flat_call.tune(
        tuning.RandomRepetitions, small_tasks.linear(), space, clipping=NotedRule(0.1), **options
    )
    assert len(TRACED) > before


def test_models_of_partitions_that_do_not_clip_have_no_rule():
    given = dict(candidates=2, partitions=2, partition_training="non_private") | OPTIONS
    before = len(TRACED)
    with pytest.raises(Stopped):
        flat_call.tune(
            noting(tuning.Exponential, [], "final"),
            small_tasks.linear(),
            SPACE,
            clipping=NotedRule(0.1),
            **given,
        )
    assert len(TRACED) == before + 1  # A rule is looked at once, when it is given.


def test_a_folder_that_was_begun_with_another_rule_is_refused(tmp_path):
    job = tuning.Job(folder=str(tmp_path / "work"), shard=(0, 2))
    assert tuned("automatic", job=job) is None
    for other in ("global", training.AutomaticClipping(stability=0.02)):
        with pytest.raises(ValueError, match=r"other data or settings \(clipping\)"):
            tuned(other, job=job)


def test_what_no_release_can_state_or_the_model_lacks_is_refused_before_training():
    with pytest.raises(ValueError, match="groups_of is a function, which a release cannot state"):
        tuned(training.GroupedClipping(lambda name: "one"))
    with pytest.raises(ValueError, match="'head', which holds no trained parameter: pass prefixes"):
        tuned(training.GroupedClipping(["head", ""]))
    with pytest.raises(ValueError, match="unknown clipping 'none': pass one of global, per_leaf"):
        tuning.RunOptions(clipping="none")
