"""The search: what it finds, what it saves, how it goes on, and oracles that fail."""

import json
import os
import shutil
import stat
import sys

import numpy as np
import pytest

from dpjax import pareto
from dpjax.pareto import acquisition, fronts, gaussian_process
from dpjax.releases.curator import WARNING

# The module, whose name in the package is that of its function.
searching = sys.modules["dpjax.pareto.search"]
DEFAULT = searching._ACQUISITIONS["ehvi"]
DOMAIN = pareto.Domain(noise=pareto.Log(0.1, 16.0), rate=pareto.Log(1e-3, 1.0))


def privacy(settings):
    return 2.0 / settings["noise"]


def expected_utility(settings):
    """Best at rate 0.03; noise hurts."""
    return 1 / (1 + np.exp(0.1 * settings["noise"] + np.log10(settings["rate"] / 0.03) ** 2 - 1.5))


def utility(settings, seeds):
    generators = [np.random.default_rng(int(seed)) for seed in seeds]
    noise = np.stack([generator.normal(size=4) for generator in generators])
    return np.clip(expected_utility(settings)[:, None] + 0.01 * noise, 0, 1)


class _Narrow:
    """A law of one's own: noise from 1 to 2, at a rate beyond the domain."""

    def sample(self, number, generator):
        return {"noise": generator.uniform(1.0, 2.0, number), "rate": np.full(number, 2.0)}


SMALL = {"evaluations": 20, "initial": 8, "batch_size": 4, "seed": 3}


@pytest.fixture(scope="module")
def searched():
    return pareto.search(DOMAIN, privacy, utility, **SMALL)


def _facts(record):
    return [
        (one.batch, dict(one.setting), one.unit, one.epsilon, one.utilities)
        for one in record.evaluations
    ]


def test_proposals_beat_random_settings(searched):
    best = expected_utility({"noise": np.array([0.2]), "rate": np.array([0.03])})[0]
    randomly = [
        pareto.search(DOMAIN, privacy, utility, **(SMALL | {"method": "random", "seed": seed}))
        for seed in range(5)
    ]
    # True values: luck does not count.
    true = [
        pareto.hypervolume(
            np.stack([one.epsilon, 1 - expected_utility(one.settings)], axis=1), (10, 1)
        )
        for one in (searched, *randomly)
    ]
    assert true[0] > max(true[1:])
    assert true[0] < 10 * best


def test_batches_and_progress(searched):
    seen = []
    record = pareto.search(
        DOMAIN, privacy, utility, **SMALL, progress=lambda *now: seen.append(now)
    )
    assert [now[:2] for now in seen] == [(0, 20), (8, 20), (12, 20), (16, 20), (20, 20)]
    volumes = [now[2] for now in seen]
    assert volumes == sorted(volumes) and volumes[-1] == record.hypervolume()
    assert [one.batch for one in record.evaluations] == [0] * 8 + [1] * 4 + [2] * 4 + [3] * 4
    assert _facts(record) == _facts(searched)


def test_processes_see_settings_as_evaluated_and_gains_as_reported(monkeypatch):
    domain = pareto.Domain(noise=pareto.LogInteger(1, 9), rate=pareto.Log(1e-3, 1.0))
    grid = domain.parameters["noise"].to_unit(np.arange(1, 10))
    asked, units = [], []
    predict = gaussian_process.GaussianProcess.predict

    def noted(self, inputs):
        asked.append(np.concatenate([self.inputs, inputs])[:, 0])
        return predict(self, inputs)

    def gain(mean, variance, front, anti_ideal):
        units.append(anti_ideal)
        return acquisition.expected_hypervolume_improvement_in_original_units(
            mean, variance, front, anti_ideal
        )

    monkeypatch.setattr(gaussian_process.GaussianProcess, "predict", noted)
    monkeypatch.setitem(searching._ACQUISITIONS, "ehvi", gain)
    record = pareto.search(
        domain, privacy, utility, evaluations=12, initial=8, batch_size=4, seed=0
    )
    searching._front_by_means(record)
    pareto.suggest(record, privacy, 1.0)
    off_grid = np.abs(np.concatenate(asked)[:, None] - grid).min(axis=1)
    assert len(asked) > 10 and off_grid.max() < 1e-9
    assert units and np.abs(record.unit[:, :1] - grid).min(axis=1).max() > 1e-3
    # With no uncertainty the default criterion is the gain in area of (epsilon, error).
    point, none = np.array([[0.5, 0.3]]), np.zeros((1, 2))
    (value,) = DEFAULT(fronts.to_model_units(point), none, np.zeros((0, 2)), np.log([10.0, 999.0]))
    assert value == pytest.approx(9.5 * (0.999 - 0.3), rel=1e-9)


@pytest.mark.parametrize("kept", [8, 12])
def test_a_search_goes_on_as_if_it_had_never_stopped(searched, tmp_path, kept):
    path = tmp_path / "evaluations.jsonl"
    saves = []

    def stop_after(done, total, volume):
        if done == kept:
            saves.append(shutil.copy(path, tmp_path / "copy.jsonl"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pareto.search(DOMAIN, privacy, utility, **SMALL, path=path, progress=stop_after)
    assert len(pareto.SearchRecord.load(path, DOMAIN)) == kept
    again = pareto.search(DOMAIN, privacy, utility, **SMALL, path=path)
    assert _facts(again) == _facts(searched)
    # Without a seed, that of the record counts.
    unseeded = SMALL | {"seed": None}
    other = pareto.search(DOMAIN, privacy, utility, **unseeded, path=saves[0])
    assert _facts(other) == _facts(searched)


def test_the_record_says_that_it_is_not_private(searched, tmp_path):
    path = tmp_path / "evaluations.jsonl"
    searched.save(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert json.loads(path.read_text().splitlines()[0])["warning"] == WARNING
    assert "NOT PRIVATE" in WARNING
    loaded = pareto.SearchRecord.load(path, DOMAIN)
    assert _facts(loaded) == _facts(searched)
    assert loaded.rows() == searched.rows()
    assert os.listdir(tmp_path) == ["evaluations.jsonl"]
    # Nor does it write over what another search is writing.
    theirs = tmp_path / "evaluations.jsonl.partial"
    theirs.write_text("of another")
    searched.save(path)
    assert theirs.read_text() == "of another"


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 4},
        {"batch_size": 5},
        {"method": "hvpoi"},
        {"anti_ideal": (9, 1)},
        {"label": "other data"},
        {"law": _Narrow()},
    ],
    ids=",".join,
)
def test_a_record_of_other_flags_is_refused(searched, tmp_path, changed):
    path = tmp_path / "evaluations.jsonl"
    searched.save(path)
    with pytest.raises(ValueError, match="other flags"):
        pareto.search(DOMAIN, privacy, utility, **(SMALL | changed), path=path)
    elsewhere = pareto.Domain(noise=pareto.Log(0.1, 8.0), rate=pareto.Log(1e-3, 1.0))
    with pytest.raises(ValueError, match="another domain"):
        pareto.search(elsewhere, privacy, utility, **SMALL, path=path)
    path.write_text("evaluation,epsilon\n")
    with pytest.raises(ValueError, match="not the record of a search"):
        pareto.search(DOMAIN, privacy, utility, **SMALL, path=path)


def failing_privacy(settings):
    if (settings["noise"] < 0.2).any():
        raise OverflowError("noise too small\nto account")
    return np.where(settings["noise"] > 8, np.inf, privacy(settings))


def failing_utility(settings, seeds):
    if (settings["rate"] > 0.3).any():
        raise RuntimeError("diverged")
    values = utility(settings, seeds)
    values[settings["rate"] < 0.003, 0] = np.nan
    values[(settings["noise"] > 4) & (settings["noise"] <= 8)] = 1.5
    return values


def test_failed_points_are_recorded_and_stop_nothing(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    options = SMALL | {"initial": 16, "evaluations": 28}
    record = pareto.search(DOMAIN, failing_privacy, failing_utility, **options, path=path)
    assert len(record) == 28
    noise, rate = record.settings["noise"], record.settings["rate"]
    wrong = (noise < 0.2) | (noise > 4) | (rate > 0.3) | (rate < 0.003)
    np.testing.assert_array_equal(record.failed, wrong)
    assert 0 < wrong.sum() < 28
    np.testing.assert_array_equal(np.isnan(record.epsilon), (noise < 0.2) | (noise > 8))
    reasons = {one.failure for one in record.evaluations}
    assert "OverflowError: noise too small to account" in reasons
    assert "the privacy oracle gave epsilon inf" in reasons
    assert "RuntimeError: diverged" in reasons
    assert "1 of 4 repetitions failed" in reasons
    assert any("not in [0, 1]" in reason for reason in reasons)
    # Never (-1, -1), which would be the best point of all.
    assert (record.points >= 0).all() and np.isfinite(record.points).all()
    assert not set(record.front()) & set(np.flatnonzero(wrong))
    # A proposal never repeats a failed setting.
    pairs = set(zip(noise, rate))
    assert len(pairs) == 28
    assert pareto.SearchRecord.load(path, DOMAIN).rows() == record.rows()


def test_failed_repetitions_may_count_as_a_utility():
    class Diverging:
        failed_as = 0.25

        def __call__(self, settings, seeds):
            values = utility(settings, seeds)
            values[:, 0] = np.nan
            return values

    record = pareto.search(DOMAIN, privacy, Diverging(), **(SMALL | {"evaluations": 8}))
    assert not record.failed.any()
    first = record.evaluations[0]
    assert np.isnan(first.utilities[0])
    assert record.utility[0] == pytest.approx((0.25 + sum(first.utilities[1:])) / 4)
    assert record.rows()[0]["failed_repetitions"] == 1


def test_all_points_failing_is_said_at_once():
    def broken(settings):
        raise ValueError("no such table")

    with pytest.raises(ValueError, match="the last 8 of 8 evaluations failed.*no such"):
        pareto.search(DOMAIN, broken, utility, **SMALL)
    with pytest.raises(ValueError, match="shape \\(n, R\\)"):
        pareto.search(DOMAIN, privacy, expected_utility, **SMALL)
    with pytest.raises(ValueError, match="shape \\(n,\\)"):
        pareto.search(DOMAIN, lambda s: np.ones((len(s["rate"]), 2)), utility, **SMALL)


class Failing:
    """A utility oracle that fails from one call on, for a while."""

    def __init__(self, first, calls):
        self.first, self.calls, self.asked = first, calls, 0

    def __call__(self, settings, seeds):
        # A failing batch is asked once whole and then point by point.
        number = self.asked
        if self.first <= number < self.first + self.calls:
            self.asked += len(settings["rate"]) == 1 or self.calls == 1
            raise ConnectionError("no workers")
        self.asked += 1
        return utility(settings, seeds)


def test_a_first_batch_that_fails_does_not_end_a_search_for_good(searched, tmp_path):
    path = tmp_path / "evaluations.jsonl"
    oracle = Failing(0, 8)
    with pytest.raises(ValueError, match="the last 8 of 8 evaluations failed.*no workers"):
        pareto.search(DOMAIN, privacy, oracle, **SMALL, path=path)
    assert not path.exists()
    again = pareto.search(DOMAIN, privacy, oracle, **SMALL, path=path)
    assert _facts(again) == _facts(searched)


def test_failures_without_an_end_do_not_burn_the_budget(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    options = {"method": "random", "initial": 8, "batch_size": 8, "evaluations": 400, "seed": 3}
    whole = pareto.search(DOMAIN, privacy, utility, **(options | {"evaluations": 64}))
    oracle = Failing(2, 32)
    with pytest.raises(ValueError, match="the last 32 of 48 evaluations failed.*no workers"):
        pareto.search(DOMAIN, privacy, oracle, **options, path=path)
    assert len(pareto.SearchRecord.load(path, DOMAIN)) == 16
    again = pareto.search(DOMAIN, privacy, oracle, **(options | {"evaluations": 64}), path=path)
    assert _facts(again) == _facts(whole)


def test_a_record_of_other_oracles_is_refused(searched, tmp_path):
    path = tmp_path / "evaluations.jsonl"
    pareto.search(DOMAIN, privacy, utility, **SMALL, path=path)

    def other(settings, seeds):
        return utility(settings, seeds)

    with pytest.raises(ValueError, match="other flags"):
        pareto.search(DOMAIN, privacy, other, **SMALL, path=path)

    # The same words, other numbers: a closure over another constant.
    def same(settings):
        return 1.0001 * privacy(settings)

    same.__qualname__ = privacy.__qualname__
    with pytest.raises(ValueError, match="another privacy oracle"):
        pareto.search(DOMAIN, same, utility, **SMALL, path=path)


def test_an_anti_ideal_point_that_nothing_dominates():
    record = pareto.search(
        DOMAIN, privacy, utility, **(SMALL | {"anti_ideal": (0.01, 1), "evaluations": 12})
    )
    assert record.hypervolume() == 0.0
    with pytest.raises(ValueError, match=r"\(0.01, 1\) is dominated by none of the 12 points"):
        record.front()
    for wrong in ((0, 1), (10, 2), (10,), ("a", "b")):
        with pytest.raises(ValueError, match="anti_ideal"):
            pareto.search(DOMAIN, privacy, utility, **(SMALL | {"anti_ideal": wrong}))


def test_integers_do_not_truncate_the_points(searched):
    record = pareto.search(DOMAIN, privacy, utility, **(SMALL | {"anti_ideal": (10, 1)}))
    assert record.anti_ideal.dtype == np.float64
    assert record.hypervolume() == searched.hypervolume() != round(searched.hypervolume())


def test_a_small_domain_ends_without_duplicates():
    domain = pareto.Domain(noise=pareto.Integer(1, 4), rate=pareto.LogInteger(1, 3))
    asked = []

    def noted(settings, seeds):
        asked.extend(zip(settings["noise"], settings["rate"]))
        return np.full((len(seeds), 2), 0.5)

    record = pareto.search(domain, privacy, noted, evaluations=40, initial=2, batch_size=6, seed=0)
    # The two random settings may coincide; the proposals are the ten others.
    proposed = asked[2:]
    assert len(proposed) == len(set(proposed)) == 12 - len(set(asked[:2]))
    assert len(record) == len(asked)


@pytest.mark.parametrize("method", ["ehvi_log_epsilon", "hvpoi", "random", "grid"])
def test_the_other_methods(method):
    options = dict(SMALL, method=method, evaluations=12)
    if method == "grid":
        options["grid"] = pareto.grid(DOMAIN, {"noise": 4, "rate": 3})
    record = pareto.search(DOMAIN, privacy, utility, **options)
    assert len(record) == 12 and record.hypervolume() > 0
    if method == "grid":
        np.testing.assert_array_equal(record.settings["noise"], options["grid"]["noise"])


def test_first_settings_from_a_law_of_one_s_own():
    own = {"law": _Narrow(), "evaluations": 12}
    record = pareto.search(DOMAIN, privacy, utility, **(SMALL | own))
    noise, rate = record.settings["noise"], record.settings["rate"]
    assert noise[:8].min() >= 1 and noise[:8].max() <= 2 and (rate[:8] == 2.0).all()
    assert (rate[8:] <= 1.0).all()  # proposals stay in the domain
    assert ((record.unit >= 0) & (record.unit <= 1)).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "annealing"}, "ehvi"),
        ({"evaluations": 0}, "a whole number >= 1"),
        ({"initial": 0}, "a whole number >= 1"),
        ({"batch_size": 0}, "a whole number >= 1"),
        ({"method": "grid"}, "go together"),
        ({"grid": {}}, "go together"),
    ],
    ids=str,
)
def test_what_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        pareto.search(DOMAIN, privacy, utility, **(SMALL | wrong))


def _of(kind, rate):
    """Utilities of a problem whose second category is the good one, its middle rate the best."""
    return np.where(kind == 2, 0.8, 0.3) - 0.1 * np.log(rate / 0.3) ** 2 / 10


def _asked(record, rounds, **how):
    for _ in range(rounds):
        settings = pareto.ask(record, **how)
        record.tell(settings, settings["rate"], _of(settings["kind"], settings["rate"]))
    return record


def test_asking_and_telling_finds_the_front_of_a_category(tmp_path):
    domain = pareto.Domain(rate=pareto.Log(0.01, 1.0), kind=pareto.Category([1, 2, 3, 4]))
    record = _asked(pareto.SearchRecord(domain, (2.0, 1.0)), 24, initial=8)
    assert len(record) == 24 and len({one.batch for one in record.evaluations}) == 24
    proposed = record.settings["kind"][8:]
    assert np.mean(proposed == 2) > 0.7  # Of random ones a quarter.
    random = _asked(pareto.SearchRecord(domain, (2.0, 1.0)), 24, method="random")
    assert record.hypervolume() > random.hypervolume()
    # The next question follows from the record alone, wherever it was kept.
    record.save(tmp_path / "record.jsonl")
    again = pareto.SearchRecord.load(tmp_path / "record.jsonl")
    assert again.domain.parameters == domain.parameters
    for name, values in pareto.ask(again, 3).items():
        np.testing.assert_array_equal(values, pareto.ask(record, 3)[name])


def test_known_evaluations_take_the_place_of_random_ones():
    domain = pareto.Domain(rate=pareto.Log(0.01, 1.0), kind=pareto.Category([1, 2]))
    record = pareto.SearchRecord(domain, (2.0, 1.0))
    rate = np.geomspace(0.01, 1.0, 6)
    kind = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    record.tell({"rate": rate, "kind": kind}, rate, np.stack([_of(kind, rate)] * 2, axis=1))
    assert pareto.ask(record, 5, initial=8)["rate"].shape == (2,)
    proposed = pareto.ask(record, 5, initial=6)
    assert np.mean(proposed["kind"] == 2) > 0.5


def test_what_is_told_is_checked_and_failures_are_kept():
    domain = pareto.Domain(rate=pareto.Log(0.01, 1.0), steps=10)
    record = pareto.SearchRecord(domain, (2.0, 1.0))
    good = {"rate": [0.1, 0.2], "steps": [10, 10]}
    # Of numbers out of range any one is refused: tests/conformance/test_one_of_several.py.
    for wrong, line in (
        (({"rate": [0.1, 0.2]}, [1, 1], [0.5, 0.5]), "a number for each of rate, steps"),
        ((good, [1.0, -1.0], [0.5, 0.5]), "epsilon >= 0"),
    ):
        with pytest.raises(ValueError, match=line):
            record.tell(*wrong)
        assert len(record) == 0
    record.tell(good, [1.0, np.nan], [0.5, 0.5])
    record.tell(good, [1.0, 1.0], [[0.5, np.nan], [0.5, 0.7]])
    assert record.failed.tolist() == [False, True, True, False]
    assert record.utility[3] == pytest.approx(0.6)
    with pytest.raises(ValueError, match="unknown method .*pass one of .*ehvi"):
        pareto.ask(record, method="grid")


def test_fresh_repetitions_undo_the_winner_s_curse():
    def luck(settings, seeds):
        generators = [np.random.default_rng(int(seed)) for seed in seeds]
        return np.stack([0.5 + generator.uniform(-0.2, 0.2, 3) for generator in generators])

    record = pareto.search(
        DOMAIN, privacy, luck, method="random", evaluations=200, initial=200, seed=0
    )
    fresh = pareto.reevaluate(record, luck, rounds=4)
    # The first measurements of a front picked from 200 are far above the truth, 0.5.
    assert fresh.first_seen[-1] > 0.6
    deviation = 0.4 / np.sqrt(12) / np.sqrt(fresh.utilities.size)
    assert abs(fresh.utilities.mean() - 0.5) < 4 * deviation  # 6e-5, fixed seed
    assert fresh.hypervolume < fresh.hypervolume_as_first_seen
    assert fresh.utilities.shape == (len(record.front()), 12)
    assert len(np.unique(fresh.utilities)) == fresh.utilities.size
    rows = fresh.rows()
    assert [row["epsilon"] for row in rows] == sorted(row["epsilon"] for row in rows)
    assert all(row["worst"] <= row["utility"] <= row["best"] for row in rows)
    with pytest.raises(ValueError, match="rounds"):
        pareto.reevaluate(record, luck, rounds=0)
    # The processes see that there is nothing but luck: by their means few settings differ, and the
    # most private one is on their front.
    smoothed = searching._front_by_means(record)
    assert int(np.argmin(record.epsilon)) in smoothed
    both = pareto.reevaluate(record, luck, by_means=True)
    assert len(both.epsilon) == len(set(smoothed) | set(record.front()))
    assert (np.diff(both.epsilon) >= 0).all()


def test_oracles_without_seeds_are_asked_without():
    record = pareto.search(
        DOMAIN,
        privacy,
        lambda settings: expected_utility(settings)[:, None],
        **(SMALL | {"evaluations": 8}),
    )
    np.testing.assert_allclose(record.utility, expected_utility(record.settings))
