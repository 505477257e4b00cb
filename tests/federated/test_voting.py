"""DP-HYPE's mechanism: ballots, calibrated exact noise, and a tally that aborts."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.federated import voting
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness

SEEDED = HostRandomness(seed=5)
RULE = voting.VoteSettings(clients=50, candidates=100)


# ---- ballots


_SCORES = st.sampled_from([0.0, 0.5, 0.5, 0.9, math.nan])
_LOSSES = st.sampled_from([0.1, 0.1, 2.0, math.inf, math.nan])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_LOSSES, _SCORES), min_size=2, max_size=8), st.data())
def test_ballots_by_brute_force(pairs, data):
    votes = data.draw(st.integers(1, len(pairs) - 1))

    def rank(index):
        loss, accuracy = pairs[index]
        failed = math.isnan(loss) or math.isnan(accuracy)
        return (1, 0.0, 0.0, index) if failed else (0, -accuracy, loss, index)

    expected = sorted(range(len(pairs)), key=rank)[:votes]
    losses, accuracies = np.array(pairs).T
    ballot = voting.ballots(losses, accuracies, votes)
    assert ballot.dtype == np.int64
    assert np.flatnonzero(ballot).tolist() == sorted(expected)


def test_many_clients_vote_row_by_row():
    losses, accuracies = np.random.default_rng(0).normal(size=(2, 7, 20))
    together = voting.ballots(losses, accuracies, 5)
    for row in range(7):
        assert np.array_equal(together[row], voting.ballots(losses[row], accuracies[row], 5))
    assert (together.sum(axis=1) == 5).all()


def test_diverged_candidates_never_win_a_vote_from_finite_ones():
    """A net full of NaN predicts class 0, which a client of that class alone would score 1."""
    losses = np.array([math.nan, 3.0, math.nan, 2.0])
    ballot = voting.ballots(losses, np.array([1.0, 0.0, 1.0, 0.0]), 2)
    assert ballot.tolist() == [0, 1, 0, 1]


def test_ballots_by_lot_favour_nobody():
    """Clients that cannot judge: every pair of candidates is as likely as any other."""
    drawn = [tuple(voting.random_ballot(4, 2, SEEDED, stream)) for stream in range(3000)]
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert pairs.shape == (6, 4) and (pairs.sum(axis=1) == 2).all()
    # Five standard errors of a binomial(3000, 1/6): fails by chance once in 3e5 times or less.
    assert np.abs(counts - 500).max() < 5 * math.sqrt(3000 * 5 / 36)
    assert voting.random_ballot(4, 2, HostRandomness()).sum() == 2
    with pytest.raises(ValueError, match="votes=4 of 4"):
        voting.random_ballot(4, 4, SEEDED)


# ---- calibration


@pytest.mark.parametrize("noise", ["skellam", "discrete_gaussian"])
@pytest.mark.parametrize(
    ("clients", "epsilon", "missing"), [(3, 1.0, 0.0), (50, 0.25, 0.1), (250, 3.0, 0.3)]
)
def test_plan_meets_its_target_and_hardly_more(noise, clients, epsilon, missing):
    scale = 8 if noise == "discrete_gaussian" and epsilon == 3.0 else 1
    rule = voting.VoteSettings(
        clients, 100, 5, epsilon, missing_fraction=missing, noise=noise, scale=scale
    )
    plan = rule.plan()
    assert 0.999 * epsilon < plan.guarantee.epsilon(1e-5) <= epsilon
    assert plan.guarantee.relation == "replace_one"
    assert plan.local_variance == float(f"{plan.local_variance:.6g}")  # alike everywhere
    less = dataclasses.replace(plan, local_variance=0.995 * plan.local_variance)
    assert less.guarantee.epsilon(1e-5) > epsilon
    # The classic Gaussian of the same total variance is what it is compared with.
    survivors = plan.minimum_survivors
    assert survivors == math.ceil(round((1 - missing) * clients, 9))
    sigma = accounting.calibrate_vote(epsilon, 1e-5, 5, 100)
    assert plan.local_variance * survivors == pytest.approx((scale * sigma) ** 2, rel=0.03)


def test_guarantee_counts_only_the_noise_of_the_fewest_survivors():
    plan = voting.VoteSettings(50, 100, missing_fraction=0.2).plan()
    same = accounting.skellam_vote(40 * plan.local_variance, votes=5, candidates=100)
    assert plan.guarantee.epsilon(1e-5) == same.epsilon(1e-5)
    everyone = accounting.skellam_vote(50 * plan.local_variance, votes=5, candidates=100)
    assert everyone.epsilon(1e-5) < 0.95 * same.epsilon(1e-5)


@pytest.mark.parametrize("noise", ["skellam", "discrete_gaussian"])
def test_guarantee_covers_the_noise_that_is_really_drawn(noise):
    """Independent of the accounting: the drawn tables convolved, all outcomes summed."""
    scale = 1 if noise == "skellam" else 2
    plan = voting.VoteSettings(
        clients=4, candidates=3, votes=1, epsilon=2.0, delta=1e-3, missing_fraction=0.25,
        noise=noise, scale=scale,
    ).plan()  # fmt: skip
    law = integer_laws.integer_law(noise, plan.local_variance)
    halves = np.diff([0, *law.cumulative]) / 2.0**319
    halves[1:] /= 2.0
    share = np.concatenate([halves[:0:-1], halves]).astype(float)
    total = np.ones(1)
    for _ in range(plan.minimum_survivors):
        total = np.convolve(total, share)
    kept = total > 1e-40
    total = total[kept]
    # One client replaced: one count goes up by a vote, another down; the third is unchanged.
    up, down = np.append(np.zeros(scale), total), np.append(total, np.zeros(scale))
    ours, theirs = np.multiply.outer(up, down), np.multiply.outer(down, up)
    for epsilon in (0.5, 2.0):
        exact = np.maximum(ours - math.exp(epsilon) * theirs, 0.0).sum()
        assert plan.guarantee.delta(epsilon) >= exact - 1e-12
        assert plan.guarantee.delta(epsilon) == pytest.approx(exact, rel=2e-3)


# ---- the sum


def test_secret_shares_of_noise_add_up_to_the_planned_law():
    plan = RULE.plan()
    ballots = voting.ballots(*np.random.default_rng(1).normal(size=(2, 50, 100)), 5)
    noise = []
    for vote in range(20):
        total = sum(
            voting.noisy_ballot(ballot, plan, SEEDED, stream=50 * vote + client)
            for client, ballot in enumerate(ballots)
        )
        noise.append(total - ballots.sum(axis=0))
    noise = np.concatenate(noise)
    # 2000 draws: relative standard error of the variance 3.2%; five of them.
    assert noise.var() == pytest.approx(50 * plan.local_variance, rel=0.16)
    assert plan.standard_deviation == pytest.approx(math.sqrt(50 * plan.local_variance))
    assert abs(noise.mean()) < 5 * plan.standard_deviation / math.sqrt(noise.size)


def test_scale_multiplies_votes_and_not_the_noise():
    rule = dataclasses.replace(RULE, scale=8)
    plan = rule.plan()
    ballot = np.zeros(100, np.int64)
    ballot[:5] = 1
    sent = voting.noisy_ballot(ballot, plan, SEEDED, stream=9)
    assert np.array_equal(sent - plan.local_noise(SEEDED, stream=9), 8 * ballot)
    assert plan.standard_deviation == pytest.approx(RULE.plan().standard_deviation, rel=0.01)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_clip_is_a_power_of_two_that_nothing_exceeds(epsilon):
    plan = dataclasses.replace(RULE, epsilon=epsilon).plan()
    assert plan.clip & (plan.clip - 1) == 0
    reach = integer_laws.integer_law("skellam", plan.local_variance).reach
    assert reach + plan.settings.scale <= plan.clip < 2 * (reach + plan.settings.scale)
    assert 2 * plan.clip * 50 < 2**32


def test_tally_names_the_largest_count_and_the_lower_index_where_equal():
    plan = RULE.plan()
    total = np.zeros(100, np.int64)
    total[[7, 40]] = 12
    assert voting.tally(total, plan, 50) == 7
    total[40] = 13
    assert voting.tally(total, plan, plan.minimum_survivors) == 40


# ---- what everyone must agree on, and what is claimed


def test_fingerprint_tells_lists_orders_and_rules_apart():
    candidates = voting.candidate_grid()
    plan = RULE.plan()
    same = [dict(reversed(candidate.items())) for candidate in candidates]
    assert plan.fingerprint(candidates) == plan.fingerprint(same)
    others = [
        plan.fingerprint(candidates[::-1]),
        plan.fingerprint([{**candidates[0], "momentum": 0.1}, *candidates[1:]]),
        dataclasses.replace(RULE, delta=1e-6).plan().fingerprint(candidates),
    ]
    assert len({plan.fingerprint(candidates), *others}) == 4
    with pytest.raises(ValueError, match="99 candidates where the vote has 100"):
        plan.fingerprint(candidates[1:])


def test_statement_is_strict_json_and_the_cost_can_be_recomputed():
    plan = RULE.plan()
    said = json.loads(json.dumps(plan.statement(), allow_nan=False))
    assert said["epsilon"] <= 1.0 and said["unit_of_privacy"].startswith("one client")
    again = accounting.from_provenance(said["mechanism"])
    # Rounded up by one part in a million, and no higher than the target.
    assert said["epsilon"] == pytest.approx(again.epsilon(said["delta"]), rel=1.2e-5)
    assert again.epsilon(said["delta"]) < said["epsilon"]
    assert "45 of 50" in said["dropouts"]
    assert said["randomness"]["secret"]
    assert "NOT SECRET" in plan.statement(secret=False)["randomness"]["statement"]


def test_the_grid_is_the_artifacts():
    grid = voting.candidate_grid()
    assert len(grid) == 100
    assert grid[0] == {"learning_rate": 0.5, "decay": 0.0, "momentum": 0.0}
    assert grid[19] == {"learning_rate": 0.1, "decay": 1.0, "momentum": 0.9}
    assert grid[99] == {"learning_rate": 1e-8, "decay": 1.0, "momentum": 0.9}
    spaced = voting.candidate_grid("log_spaced")
    assert spaced[0]["learning_rate"] == 0.5 and spaced[99]["learning_rate"] == 1e-8
    assert len(voting.candidate_grid([0.3])) == 10
    printed = {row["learning_rate"] for row in voting.candidate_grid("table_iii")}
    ours = {row["learning_rate"] for row in grid}
    assert len(printed) == 10 and printed - ours == {1e-3, 5e-3, 1e-5, 5e-6}
    with pytest.raises(ValueError, match="unknown rates 'table'"):
        voting.candidate_grid("table")


# ---- one malicious client


def _votes_decided(plan, vectors_of):
    """Of 20 votes with one strange vector each: how many it decides, all others being agreed.

    `vectors_of(others, stream)` is its vector, given the sum of the others'.
    """
    rule, decided = plan.settings, 0
    agreed = np.repeat([1, 0], [rule.votes, rule.candidates - rule.votes])
    for vote in range(20):
        streams = [1000 * vote + client for client in range(rule.clients)]
        others = sum(voting.noisy_ballot(agreed, plan, SEEDED, stream) for stream in streams[1:])
        total = others + vectors_of(others, streams[0])
        decided += voting.tally(total, plan, rule.clients) == rule.candidates - 1
    return decided


@pytest.mark.parametrize(
    ("clients", "clip", "decided"), [(3, 256, 20), (10, 128, 20), (50, 128, 20), (250, 64, 0)]
)
def test_one_client_that_sends_anything_decides_the_vote(clients, clip, decided):
    """The page's numbers: nobody can check a vector under masks, so this is said, not prevented."""
    plan = voting.VoteSettings(clients=clients, candidates=100, epsilon=1.0).plan()
    assert plan.clip == clip and plan.settings.scale == 1
    towards = np.where(np.arange(100) == 99, 1, -1)
    wish = (np.arange(100) >= 95).astype(np.int64)

    assert _votes_decided(plan, lambda others, stream: clip * towards) == decided
    honest = lambda others, stream: voting.noisy_ballot(wish, plan, SEEDED, stream)  # noqa: E731
    assert _votes_decided(plan, honest) == 0
    # Beyond `clip` it always does: the server can check no more than the sum.
    most = lambda others, stream: (clients * clip - np.abs(others).max()) * towards  # noqa: E731
    assert _votes_decided(plan, most) == 20


def test_a_malicious_client_counts_as_missing():
    """With 3 clients and the default fraction none may be missing; 0.34 allows one."""
    assert voting.VoteSettings(clients=3, candidates=100).plan().minimum_survivors == 3
    rule = voting.VoteSettings(clients=3, candidates=100, missing_fraction=0.34)
    assert rule.plan().minimum_survivors == 2
