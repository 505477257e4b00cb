"""Releases of each kind are proved, in seconds; no number of theirs can be edited."""

import copy
import functools
import json
import pathlib
import re

import mpmath
import numpy as np
import pytest

from dpjax import accounting, bridges, certificate, tuning
from dpjax.bridges import runs
from dpjax.federated import voting
from dpjax.releases import certificates, release
from experiments.figures.leaderboard import extrapolation, subset_tuning

WRITES_CERTIFICATES = True
LAW = accounting.Geometric(4)
RUN = accounting.dp_sgd(0.05, 1.5, 60)


def _bridge(base=RUN, records="disjoint", law=LAW, delta=1e-5):
    """What `bridges.tune` states."""
    noise = 9.0 if records == "training" else None  # Else the least that adds nothing.
    procedure = runs.planned(
        bridges.Candidates.of(tuning.Space(rate=tuning.Uniform(0.0, 1.0))),
        base=base,
        score=bridges.CountedScore(records, 100, noise=noise),
        repetitions=law,
        delta=delta,
        model="the caller's own",
    )
    return json.loads(json.dumps(runs.statement(procedure, secret=True)))


RECORDS = {"public_size": 400, "size_bound": 420, "number": None}
CAPACITY = accounting.lot_capacity(420, 0.05, 40, 1e-9)


def _row(noise=2.0, share=1.0):
    """A run's words, and its cost."""
    failed = accounting.truncation_probability(420, 0.05, CAPACITY, 40)
    run = accounting.dp_sgd(0.05, noise, 40, failure_probability=failed)
    shape = {"lot_size": 20 * share, "steps": 40, "noise_multiplier": noise}
    return shape | {"probability": 1.0, "sampling": "poisson", "capacity": CAPACITY}, run


def _stated(guarantee, selection, rows, score, delta=1e-5):
    """The words that the program reads of a tuner's release."""
    return {
        "private": True,
        "selection": selection,
        "score": {"validation_is_public": False} | score,
        "training": rows,
        "training_records": dict(RECORDS),
        "neighbouring_relation": guarantee.relation,
        "mechanism": guarantee.provenance,
        "epsilon": guarantee.epsilon(delta),
        "delta": delta,
    }


def _subset_tuning(final_on="rest"):
    (row, run), (final, _) = _row(share=0.25), _row(share=0.75 if final_on == "rest" else 1.0)
    total = accounting.parallel(
        accounting.split(accounting.best_of(run, LAW), run, probability=0.25, final_on=final_on),
        accounting.best_of(accounting.discrete_gaussian(27.0, sensitivity=3), LAW),
    )
    selection = {"part": {"probability_of_a_training_record": 0.25}, "law_of_K": LAW.to_dict()}
    selection["rule"] = {"rest": subset_tuning.RULE, "all": subset_tuning.RULE_ON_ALL}[final_on]
    score = {"noise_standard_deviation_in_records": 9.0, "units_of_a_score_of_1": 3}
    return _stated(total, selection, [row, final], score)


def _extrapolation():
    """Two stages, whose scores are on other records, and the final training."""
    (row, run), (small, stage), (smaller, least) = _row(), _row(noise=6.0), _row(noise=9.0)
    law = accounting.Geometric(3)
    stages = [
        accounting.best_of(accounting.parallel(one, accounting.discrete_gaussian(noise)), law)
        for one, noise in ((least, 30.0), (stage, 20.0))
    ]
    total = accounting.compose(accounting.compose(*stages), run)
    selection = {"rule": extrapolation.RULE, "law_of_K": law.to_dict()}
    score = {"noise_standard_deviations_in_records": [30.0, 20.0]}
    return _stated(total, selection, [smaller, small, row], score)


def _vote(**rules):
    """A federation's words, of a vote alone."""
    settings = dict(clients=10, candidates=7, votes=2, epsilon=2.0, missing_fraction=0.0)
    return json.loads(json.dumps(voting.VoteSettings(**settings | rules).plan().statement()))


def _correlated():
    """One run with noise of 4 bands: 10 turns of a part of 105 places at most."""
    capacity = accounting.lot_capacity(105, 0.2, 40, 1e-9)
    failed = accounting.truncation_probability(105, 0.2, capacity, 40)
    run = accounting.dp_sgd(0.2, 2.0, 10, failure_probability=failed)
    row = _row()[0] | {"capacity": capacity, "bands": 4}
    return _stated(run, {"rule": certificate.PUBLIC}, [row], {})


def _staged():
    """One run in two stages, the last of larger lots and less noise."""
    capacity = accounting.lot_capacity(420, 0.1, 40, 1e-9)
    parts = [
        accounting.dp_sgd(
            chance, noise, steps,
            failure_probability=accounting.truncation_probability(420, chance, capacity, steps),
        )
        for chance, noise, steps in ((0.05, 2.2, 30), (0.1, 1.6, 10))
    ]  # fmt: skip
    row = _row()[0] | {"capacity": capacity}
    row["stages"] = [
        {"steps": 30, "noise_multiplier": 2.2, "lot_size": 20.0},
        {"steps": 10, "noise_multiplier": 1.6, "lot_size": 40.0},
    ]
    return _stated(accounting.compose(*parts), {"rule": certificate.PUBLIC}, [row], {})


STATED = {
    "a declared run": _bridge,
    "a declared run, scored on training records": lambda: _bridge(records="training"),
    "a declared run, public scores": lambda: _bridge(records="public"),
    "declared Gaussian steps": lambda: _bridge(accounting.gaussian(12.0, steps=20)),
    "a declared composition": lambda: _bridge(
        accounting.compose(accounting.gaussian(4.0), accounting.repeat(accounting.pure(0.02), 3))
    ),
    "a declared run on parts of the data": lambda: _bridge(
        accounting.compose(
            accounting.parallel(accounting.gaussian(9.0), RUN, accounting.pure(0.1)),
            accounting.discrete_gaussian(20.0),
        )
    ),
    "a declared run under replace one": lambda: _bridge(
        accounting.dp_sgd_fixed_lots(1000, 50, 2.0, 50)
    ),
    "subset tuning": _subset_tuning,
    "extrapolation": _extrapolation,
    "correlated noise": _correlated,
    "a run in stages": _staged,
    "a vote under Skellam noise": _vote,
    "a vote, scaled": lambda: _vote(scale=16, votes=1, epsilon=0.5),
    "a vote under discrete Gaussian noise": lambda: _vote(
        noise="discrete_gaussian", clients=12, missing_fraction=0.25, epsilon=8.0, scale=6
    ),
    "a vote under wide discrete Gaussian noise": lambda: _vote(
        noise="discrete_gaussian", scale=9, clients=4, delta=1e-7
    ),
}

FREE = (
    # Of the claim itself a larger one is as true; a smaller one is tried below.
    r"epsilon|delta"
    # They inform only, and `--verify` computes them anew.
    r"|settings\.(epsilon|delta|clip)|one_run\.epsilon|epsilon_of_parts\..*|score\.public_size|candidates_drawn_from\..*"
)
"""Numbers that the program does not read."""


@pytest.fixture(scope="module", params=STATED)
def proved(request):
    """Words, and the hints of a certificate as they are read back."""
    words = copy.deepcopy(STATED[request.param]())
    return words, json.loads(json.dumps(certificates.certified(words)))["cases"]


def test_it_is_proved_in_seconds_and_hardly_more(proved):
    """The claim at 1% less epsilon is beyond the same lines and grids."""
    words, cases = proved
    assert len(cases) == certificate.cases_of(words["mechanism"])
    assert len(json.dumps(cases)) < 600_000
    for case, hints in enumerate(cases):
        assert max(certificate.prove(words, case, hints)) <= words["delta"]
    # In seconds: beyond a budget of work `prove` refuses.
    less = words | {"epsilon": 0.99 * words["epsilon"]}
    found = [certificate.prove(less, case, hints) for case, hints in enumerate(cases)]
    assert max(map(max, found)) > words["delta"]


def test_subset_tuning_that_trains_on_all_is_proved_as_well():
    words = _subset_tuning("all")
    cases = json.loads(json.dumps(certificates.certified(words)))["cases"]
    test_it_is_proved_in_seconds_and_hardly_more((words, cases))


def _numbers(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from _numbers(item, (*path, key))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield (*path, key), item


def test_no_number_can_be_edited(proved):
    """Alone, in the words or in the mechanism, up or down, the certificate's hash made anew."""
    words, cases = proved
    tried = 0
    # Noise of scores on public records, 0, is none that anything is charged for.
    public = words.get("score", {}).get("records") == "public"
    free = FREE + r"|score\.noise_standard_deviation_in_records" * public
    # Several bounds have parts of the same size.
    correlated = any("bands" in row for row in words.get("training", ()))
    free += r"|training_records\.size_bound" * correlated
    # Those of factor 1, which no stage need have.
    in_stages = any("stages" in row for row in words.get("training", ()))
    free += r"|training\.0\.(noise_multiplier|lot_size)" * in_stages
    # Below what is left to rounding: the lots of the first stage are much smaller than their room.
    free += r"|mechanism\.parts\.0\.parameters\.failure_probability" * in_stages
    for path, value in _numbers(words):
        if re.fullmatch(free, ".".join(map(str, path))):
            continue
        for changed in (value + 1, value - 1, value * 1.01, value * 0.99, -value, 0, 1e999):
            if changed == value:
                continue
            edited = copy.deepcopy(words)
            inner = edited
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = changed
            tried += 1
            try:
                certificate.prove(edited, 0, cases[0])
            except (ValueError, ArithmeticError, LookupError, TypeError):
                continue
            pytest.fail(f"{'.'.join(map(str, path))} may be {changed}")
    assert tried > 20


def _everywhere(tree, name, change):
    if isinstance(tree, dict):
        return {
            key: change(one) if key == name else _everywhere(one, name, change)
            for key, one in tree.items()
        }
    return [_everywhere(one, name, change) for one in tree] if isinstance(tree, list) else tree


CHEAPER = {
    "noise_multiplier": lambda one: one * 0.98,
    "noise_standard_deviation_in_records": lambda one: one * 0.3,
    "steps": lambda one: one + 3,
    "mean": lambda one: one + 0.5,
    "sampling_probability": lambda one: one * 1.02,
    "lot_size": lambda one: one + 1,
    "local_variance": lambda one: one * 0.99,
    "votes": lambda one: one + 1,
}
"""What costs more: whoever states less of it states too small an epsilon."""


def test_what_costs_more_is_not_proved_at_the_stated_epsilon(proved):
    """Edited wherever it stands, so that the words mean it; new lines and sums."""
    words, cases = proved
    own = [(path, one) for path, one in _numbers(words) if path[0] != "mechanism"]
    held = {name for path, one in own if one for name in path if name in CHEAPER}
    assert held
    # Minutes for each.
    if words.get("selection", {}).get("rule") in (subset_tuning.RULE, extrapolation.RULE):
        held &= {"noise_multiplier", "sampling_probability"}
    for name in held:
        edited = {
            key: value if key == "epsilon" else _everywhere(value, name, CHEAPER[name])
            for key, value in words.items()
        }
        for row in edited.get("training", ()):
            row["steps"] = sum(one["steps"] for one in row.get("stages", [row]))
        edited["mechanism"] = certificate.tree_of(edited)
        found = [certificate.prove(edited, case, hints) for case, hints in enumerate(cases)]
        assert max(map(max, found)) > words["delta"], name


def test_the_line_says_what_is_declared(tmp_path, capsys):
    for name, words in (("bridge", _bridge()),):
        release.Release({"w": np.zeros(2)}, {"rate": 0.5}, words).save(tmp_path / name)
        assert certificate.main([str(tmp_path / name)]) == 0
        line = capsys.readouterr().out
        assert "what one run costs is declared, and not proved; delta is at most" in line


@pytest.mark.parametrize(
    "base, changes, why",
    [
        (accounting.zcdp(0.1), {}, "'zcdp' is beyond this program"),
        (
            accounting.compose(*[accounting.parallel(RUN, accounting.pure(0.1)) for _ in "ab"]),
            {},
            "several mechanisms on disjoint records",
        ),
        (RUN, {"failure_probability": -0.5}, "'dp_sgd' is beyond|own words mean"),
        (RUN, {"failure_probability": -1e-9}, "'dp_sgd' is beyond|own words mean"),
        (RUN, {"steps": 0.5}, "'dp_sgd' is beyond|own words mean"),
        (RUN, {"sampling_probability": -0.1}, "'dp_sgd' is beyond|own words mean"),
        (RUN, {"other": 1}, "'dp_sgd' is beyond|own words mean"),
        (accounting.gaussian(3.0), {"steps": 0.25}, "'gaussian' is beyond"),
        (accounting.gaussian(3.0), {"relation": "replace_one"}, "neighbouring relation"),
        (accounting.doubling_loop(0.1, 9), {"iterations": None}, "'doubling_loop' is beyond"),
        (accounting.compose(RUN, accounting.pure(0.1)), {"counts": [1]}, "'compose' is beyond"),
        (accounting.compose(RUN, accounting.pure(0.1)), {"counts": [1, 0]}, "'compose' is bey"),
        (accounting.mixture([RUN, accounting.pure(0.1)]), {"weights": [0.5, 0.1]}, "'mixture' is"),
        (accounting.mixture([RUN, accounting.pure(0.1)]), {"weights": [1.5, -0.5]}, "'mixture' is"),
    ],
)
def test_a_declared_run_that_is_none_or_beyond_the_program_is_refused(base, changes, why):
    words = _bridge(base, records="public", law=accounting.Fixed(1))
    hints = {"step": 12, "fine": 10, "exact": 1}
    for tree in (words["one_run"]["mechanism"], words["mechanism"]["parts"][0]):
        tree["parameters"] |= changes
        for name, value in changes.items():
            if value is None:
                del tree["parameters"][name]
    with pytest.raises((certificate.Unproved, KeyError), match=why):
        certificate.prove(words, 0, hints)


def _written_at(step, fine, **more):
    return {"step": step, "fine": fine, "exact": 0} | more


@pytest.mark.parametrize("order", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("final_on", ["rest", "all"])
@pytest.mark.parametrize("q", [0.1, 0.6])
def test_a_secret_part_of_the_records_by_an_explicit_sum(q, final_on, order):
    """Randomised responses on either part: four outcomes, whose divergence is a sum of four."""
    one, two = 0.7, 0.3
    tuned = certificate.pure_measure("pure", {"epsilon": one}, 2.0**-16)
    final = certificate.pure_measure("pure", {"epsilon": two}, 2.0**-16)
    on_all = final_on == "all"
    found = certificate.split([tuned, tuned], [final, final], q, on_all, order)
    t, true = np.exp(order), [0.0, 0.0]
    for a in (one, -one):
        for b in (two, -two):
            mass = 1.0 / ((1.0 + np.exp(a)) * (1.0 + np.exp(b)))
            ratio = q * np.exp(a) + (1.0 - q) * np.exp(b)
            if on_all:
                ratio = (1.0 - q + q * np.exp(a)) * np.exp(b)
            true[0] += mass * max(ratio - t, 0.0)
            true[1] += mass * max(1.0 - t * ratio, 0.0)
    for bound, exactly in zip(found, true):
        assert exactly <= bound <= exactly + 3e-5


def test_a_selection_as_a_pair_of_measures_is_close_to_the_accountings():
    """At orders of either sign; by lines alone that of its envelope, else of its exact bound."""
    base = accounting.gaussian(20.0)
    selected = accounting.best_of(base, LAW)
    loose = accounting.best_of(base, LAW, "envelope")
    pair = certificate.pair_of(selected.provenance, 0, 1e-14, _written_at(13, 11))
    closer = certificate.pair_of(selected.provenance, 0, 1e-14, _written_at(13, 11, exact=6))
    # The accounting's own numbers are bounds from above, so some may be undercut a little.
    for epsilon in (0.0, 0.02, 0.05, 0.1, 0.2):
        for way, near in zip(pair, closer):
            assert near.divergence(epsilon) <= way.divergence(epsilon)
            assert 0.97 * selected.delta(epsilon) < near.divergence(epsilon)
            assert way.divergence(epsilon) < 1.01 * loose.delta(epsilon)
            for measure, ahead in ((way, pair), (near, closer)):
                back = ahead[1].divergence(epsilon)
                t = np.exp(-epsilon)
                assert measure.divergence(-epsilon) >= (1.0 - t + t * back) * (1.0 - 1e-3)
    assert closer[0].divergence(0.05) < 0.6 * pair[0].divergence(0.05)


def test_bounds_on_divergences_become_a_measure_that_has_them():
    """Any bounds, convex or not: the measure's divergences are above a true profile below them."""
    generator = np.random.default_rng(3)
    true = accounting.gaussian(1.0)
    step, orders = 2.0**-6, np.arange(700)
    profile = np.array([true.delta(one * step) for one in orders])
    raised = profile * (1.0 + generator.uniform(0.0, 0.5, profile.size))
    for bounds in (profile, raised, np.minimum(10.0 * profile, 1.0)):
        found = certificate.measured(bounds, bounds, step)
        for order in (-3.0, -0.5, -0.013, 0.0, 0.3, 1.007, 4.0):
            below = true.delta(abs(order))
            if order < 0.0:
                below = 1.0 - np.exp(order) * (1.0 - below)
            assert found.divergence(order) >= below * (1.0 - 1e-9)


def test_a_part_that_is_secret_has_no_price_under_replace_one():
    run = accounting.dp_sgd_fixed_lots(400, 20, 2.0, 40).provenance
    tree = certificate.node("split", [run, run], probability=0.3, final_on="rest")
    with pytest.raises(certificate.Unproved, match="'split' is beyond"):
        certificate.relations_of(tree)


@pytest.mark.parametrize("final_on", ["rest", "all"])
def test_what_follows_may_reveal_all_with_a_small_probability(final_on):
    """At orders no loss reaches: only what reveals all is left, of either, under either law."""
    tuned = certificate.pure_measure("pure", {"epsilon": 0.5}, 2.0**-12)
    tuned, final = tuned._replace(infinity=1e-4), tuned._replace(infinity=1e-3)
    on_all = final_on == "all"
    forward, backward = certificate.split([tuned] * 2, [final] * 2, 0.25, on_all, 30.0)
    revealed = 1e-3 + 0.25 * 1e-4 if on_all else 0.75 * 1e-3 + 0.25 * 1e-4
    assert revealed * 0.999 < forward < 1.01 * revealed
    # Backwards both ratios must be 0, or that of all records; then the first one's never is.
    never = 1e-3 if on_all else 1e-3 * 1e-4
    assert never * 0.999 < backward < 1.1 * never


@pytest.mark.parametrize("variance", [0.02, 1.3, 250.0])
def test_skellam_noise_against_bessel_functions(variance):
    logs, error, beyond = certificate.skellam(variance, 3)
    with mpmath.workdps(60):
        for place in (1, 2, logs.size // 2, logs.size - 1):
            true = mpmath.log(mpmath.besseli(place, variance) / mpmath.besseli(0, variance))
            assert abs(logs[place] - true) < error < 1e-9
        true = mpmath.exp(-variance) * mpmath.nsum(
            lambda k: mpmath.besseli(int(k), variance), [logs.size - 3, logs.size + 60]
        )
        assert true < beyond < 1e-35


@pytest.mark.parametrize("variance, count", [(4.0, 2), (4.0, 3), (0.6, 1), (15.0, 2), (4.4, 30)])
def test_sums_of_discrete_gaussians_by_convolution(variance, count):
    """Of numbers that are positive, which lose nothing; where one flat formula serves as well."""
    logs, error, beyond = certificate.discrete_gaussian_sum(variance, count, 2)
    y = np.arange(-60, 61)
    one = np.exp(-0.5 * y**2 / variance)
    total = functools.reduce(np.convolve, [one] * count)
    total = np.log(np.maximum(total[total.size // 2 :], 1e-300))[: logs.size]
    held = total > -600
    assert held.sum() >= 3
    np.testing.assert_allclose((logs - logs[0])[held], (total - total[0])[held], atol=1e-9 + error)
    assert error < 3e-9 and beyond < 1e-35


def test_a_sum_of_discrete_gaussians_is_none_itself():
    """Two of variance 1/8 are farther from their shift than one of variance 1/4."""
    logs, *_ = certificate.discrete_gaussian_sum(0.25, 1, 1)
    assert logs[0] - logs[1] < 2.02
    for variance, count in ((0.125, 2), (1.5, 2), (1.0, 5), (0.01, 1000)):
        with pytest.raises(certificate.Unproved, match="narrow"):
            certificate.discrete_gaussian_sum(variance, count, 1)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"noise": "laplace"}, "of an unknown kind"),
        ({"clients": 9.5}, "is malformed"),
        ({"missing_fraction": 1.0}, "is malformed"),
        ({"missing_fraction": -0.2}, "is malformed"),
        ({"votes": 7}, "'skellam_vote' is beyond"),
        ({"votes": 0}, "'skellam_vote' is beyond"),
        ({"scale": 0}, "'skellam_vote' is beyond"),
        ({"scale": 1.5}, "'skellam_vote' is beyond"),
        ({"local_variance": -1.0}, "'skellam_vote' is beyond"),
        ({"local_variance": 1e12}, "'skellam_vote' is beyond"),
    ],
)
def test_votes_that_are_none_are_refused(changes, why):
    words = _vote()
    words["settings"] |= changes
    hints = {"step": 12, "fine": 10, "exact": 1}
    with pytest.raises(certificate.Unproved, match=why):
        tree = certificate.tree_of(words)
        certificate.prove(words | {"mechanism": tree}, 0, hints)


def test_one_client_moves_as_many_votes_as_it_has_others():
    """k of p, or the p - k that it leaves out, up and as many down: pairs as by hand."""
    one = certificate.integer_measure("skellam_vote", {"variance": 40.0, "scale": 1}, 2.0**-12)
    for votes, candidates, moved in ((1, 9, 2), (4, 9, 8), (8, 9, 2)):
        tree = accounting.skellam_vote(40.0, votes, candidates).provenance
        (found, _) = certificate.bounds(tree, 0, 0.3, 1e-14, {"step": 12, "fine": 10, "exact": 1})
        assert found == certificate.composed([(one, moved)], 1e-14).divergence(0.3)


@pytest.mark.parametrize("rounds, verdict", [(0, "PROVED: epsilon"), (2, "federated averaging is")])
def test_what_a_federation_releases(tmp_path, capsys, monkeypatch, rounds, verdict):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent / "releases"))
    import test_verification

    folder = test_verification._federation(tmp_path, rounds)
    assert (folder / "certificate.json").exists() == (rounds == 0)
    assert certificate.main([str(folder)]) == (0 if rounds == 0 else 2)
    assert verdict in capsys.readouterr().out
    assert test_verification._verify(folder).epsilon > 0
