"""Lower bounds: below the truth as often as they say, near it, above a claim that is too small."""

import inspect

import numpy as np
import pytest

from dpjax import accounting, auditing
from dpjax.auditing.lower_bounds import tradeoff_of

NUMBER = 40_000


def _gaussian(seed, *, shift=1.0, number=NUMBER):
    """What a Gaussian release of noise 1 / shift shows, with the record and without it."""
    generator = np.random.default_rng(seed)
    return generator.normal(shift, 1.0, number), generator.normal(0.0, 1.0, number)


def _randomised_response(seed, epsilon, number=NUMBER):
    generator = np.random.default_rng(seed)
    truth = 1.0 / (1.0 + np.exp(-epsilon))
    one = generator.random(number) < truth
    return one.astype(float), (generator.random(number) > truth).astype(float)


@pytest.mark.parametrize("delta,part", [(1e-3, 0.6), (0.02, 0.75), (0.1, 0.8)])
def test_a_gaussian_release_is_bounded_from_below_and_nearly_reached(delta, part):
    truth = accounting.gaussian(1.0).epsilon(delta)
    found = auditing.epsilon_lower_bound(*_gaussian(1), delta, failure_probability=1e-6).value
    assert part * truth <= found <= truth


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_reached(epsilon):
    found = auditing.epsilon_lower_bound(*_randomised_response(3, epsilon), 0.0)
    assert 0.9 * epsilon <= found.value <= epsilon


def test_guesses_are_numbers():
    one, other = _gaussian(6)
    guessed = auditing.epsilon_lower_bound(one > 0.5, other > 0.5, 0.0).value
    assert guessed == auditing.epsilon_lower_bound((one > 0.5) * 1.0, (other > 0.5) * 1.0, 0).value
    assert guessed > 0.5


def test_it_does_not_matter_which_side_is_larger_or_which_is_named_first():
    one, other = _gaussian(5)
    found = [
        auditing.epsilon_lower_bound(*pair, 0.02).value
        for pair in ((one, other), (other, one), (-one, -other), (-other, -one))
    ]
    assert min(found) > 0.8 * accounting.gaussian(1.0).epsilon(0.02)


def test_the_value_is_what_the_counts_show_by_clopper_and_pearson():
    from scipy import stats

    found = auditing.epsilon_lower_bound(*_gaussian(7), 0.02, failure_probability=0.1)
    seen = found.seen
    low = stats.beta.ppf(0.05, seen.hits[0], seen.executions[0] - seen.hits[0] + 1)
    high = stats.beta.ppf(0.95, seen.hits[1] + 1, seen.executions[1] - seen.hits[1])
    assert seen.low == pytest.approx(low) and seen.high == pytest.approx(high)
    assert found.value == pytest.approx(np.log((low - 0.02) / high))
    assert seen.executions == (NUMBER // 2, NUMBER // 2)


OTHER_ARGUMENTS = {
    "delta": 1e-3,
    "claim": accounting.gaussian(4.0),
}
BOUNDS = {
    name: set(OTHER_ARGUMENTS) & set(inspect.signature(function).parameters)
    for name, function in vars(auditing).items()
    if inspect.isfunction(function)
    and inspect.signature(function).return_annotation == "LowerBound"
    and "with_record" in inspect.signature(function).parameters
}
"""Every bound on what is seen of two inputs, and what else it needs."""


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("shown_first", [True, False])
def test_events_are_counted_on_executions_that_did_not_choose_them(name, shown_first):
    """One half differs and the other does not, either first: an event and its count need both."""
    generator = np.random.default_rng(11)
    half = NUMBER // 2
    halves = [generator.normal(3, 1, half), generator.normal(0, 1, half)]
    one = np.concatenate(halves if shown_first else halves[::-1])
    other = generator.normal(0, 1, NUMBER)
    given = {argument: OTHER_ARGUMENTS[argument] for argument in BOUNDS[name]}
    bound = getattr(auditing, name)
    found = bound(with_record=one, without_record=other, **given)
    if shown_first:
        # Chosen where it shows most, it shows nothing in the half that counts.
        assert found.value <= 0.1
    # Where both halves differ the bound is far from that, and it says what was counted.
    both = bound(with_record=np.concatenate([halves[0]] * 2), without_record=other, **given)
    assert both.value > 0.3
    for seen in (found.seen, both.seen):
        assert seen.executions == (NUMBER - half, NUMBER - half)


def test_it_is_wrong_no_more_often_than_it_says():
    """1,000 small audits of randomised response, whose event is always the same: exact bounds."""
    epsilon, wrong = 1.0, 0
    for seed in range(1_000):
        pair = _randomised_response(100 + seed, epsilon, number=400)
        wrong += auditing.epsilon_lower_bound(*pair, 0.0, failure_probability=0.2).value > epsilon
    # Binomial(1000, 0.2) is above 250 with probability 1e-4; bounds of twice the failure are wrong
    # more often.
    assert wrong <= 250
    assert wrong >= 5


def test_nothing_is_seen_where_nothing_differs():
    one, other = np.zeros(100), np.zeros(100)
    assert auditing.epsilon_lower_bound(one, other, 0.0).value == 0.0
    assert auditing.refuted(accounting.gaussian(4.0), one, other).value == 0.0


def test_a_true_claim_stands_and_a_slightly_smaller_one_does_not():
    pair = _gaussian(17, number=100_000)
    assert auditing.refuted(accounting.gaussian(1.0), *pair).value == 0.0
    assert auditing.refuted(accounting.gaussian(1.1), *pair).value > 0.0


def test_a_claims_profile_allows_what_its_mechanism_does():
    allowed = tradeoff_of(accounting.gaussian(1.0))
    from scipy import stats

    q = np.array([1e-6, 1e-3, 0.1, 0.5, 0.9])
    exact = stats.norm.cdf(stats.norm.ppf(q) + 1.0)
    assert np.all(allowed(q) >= exact - 1e-12)
    np.testing.assert_allclose(allowed(q), exact, rtol=0.02)
    assert allowed(np.array(1.0)) == 1.0


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: auditing.epsilon_lower_bound([1.0], np.zeros(9), 0.1), "with_record has 1"),
        (lambda: auditing.epsilon_lower_bound(np.zeros(9), "no", 0.1), "without_record"),
        (lambda: auditing.epsilon_lower_bound(np.zeros(9), [np.nan] * 9, 0.1), "without_record"),
        (lambda: auditing.epsilon_lower_bound(np.zeros(9), np.zeros(9), 1.0), "delta"),
        (
            lambda: auditing.epsilon_lower_bound(
                np.zeros(9), np.zeros(9), 0.1, failure_probability=0.0
            ),
            "failure_probability",
        ),
        (lambda: auditing.refuted(1.0, np.zeros(9), np.zeros(9)), "claim"),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(ValueError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
