"""What public functions refuse of what their types allow: one line each, and its words.

Accounting and data have tables of their own, with the types; what needs a run, a federation or a
search to be refused stands beside that.
"""

import dataclasses
from fractions import Fraction
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_tasks

from dpjax import models, pareto, training, tuning
from dpjax.federated import VoteSettings, voting
from dpjax.pareto import fronts
from dpjax.randomness import exact_samplers, integer_laws, keys, threefry
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training import (
    BallsInBinsLots,
    CyclicPoissonLots,
    FixedLots,
    PoissonLots,
    optimizers,
    users,
)
from dpjax.training.clipping import clip_rules
from dpjax.training.gradient_scales import scale_of
from dpjax.training.sweep import hosts
from dpjax.training.sweep.placement import Placement, named_placement
from dpjax.training.sweep.schedule import plan_buckets
from dpjax.tuning.problem.run_settings import RunShape
from experiments.federation import data_split, partitioners

KEY = jax.random.key(0, impl="threefry2x32")
SEEDED = HostRandomness(seed=7)
BELOW = SEEDED.uniform_integers(0)
IDS, VALUES = np.array([7, 3, 7, 9]), np.arange(4.0)
PARAMS = {"bias": jnp.ones(2), "body": {"kernel": jnp.ones(3)}}
CONFIG = training.TrainConfig(
    loss_fn=lambda params, row: jnp.sum(params["bias"]) * row + jnp.sum(params["body"]["kernel"]),
    lots=PoissonLots(4, 0.5, 4),
    steps=1,
    expected_lot_size=2,
    optimizer=training.sgd(),
)


BANDS = training.BandedNoise(2)


def _with(**changes):
    return dataclasses.replace(CONFIG, **changes)


def _halves(**factors):
    return training.Stages((0.5, 0.5), **factors)


def _staged(stages=None, **changes):
    return _with(steps=4, stages=stages or _halves(), **changes)


def _clipped(rule):
    return training.clipped_grad(CONFIG.loss_fn, clipping=rule)(PARAMS, jnp.ones(2), 1.0)


def _of_divisor(divisor):
    rule = type("Own", (training.ClipRule,), {"name": "own", "divisor": divisor})
    return _clipped(dataclasses.dataclass(frozen=True)(rule)())


def _scheduled(*arguments, **settings):
    return training.scheduled(training.sgd, *arguments, **settings)


def _shapes(*arguments):
    return pareto.TrainingCost(pareto.RunShapes(*arguments))


LOTS = {
    "there are more than 4 records": lambda: training.padded(np.ones(5), 4),
    "there are more than 3 records": lambda: training.LotMesh().put_records(
        np.ones(5), by_all=True, rows=3
    ),
    r"sampling_probability is 0.0: pass a number in \(0, 1\]": lambda: PoissonLots(10, 0.0, 5),
    r"sampling_probability is 1.5: pass a number in \(0, 1\]": lambda: PoissonLots(10, 1.5, 5),
    r"sampling_probability must be in \(0, 1\], not nan": lambda: PoissonLots(10, np.nan, 5),
    "dataset_size_bound is 0": lambda: PoissonLots(0, 0.5, 5),
    r"dataset_size_bound is 2147483648: .*2\^31": lambda: PoissonLots(2**31, 0.5, 5),
    "capacity is 2.5": lambda: PoissonLots(10, 0.5, 2.5),
    "lot_size=11 .* at most 10": lambda: FixedLots(10, 11),
    "lot_size is 0": lambda: FixedLots(10, 0),
    "a dataset_size_bound that the data never exceeds": lambda: PoissonLots(10, 0.5, 5).draw(
        KEY, 11
    ),
    "made for exactly 10": lambda: FixedLots(10, 5).draw(KEY, 9),
    "cycle=11: pass at most dataset_size_bound, 10": lambda: CyclicPoissonLots(10, 0.5, 1, 11),
    "cycle must be a whole number >= 1, not 0": lambda: CyclicPoissonLots(10, 0.5, 1, 0),
    "sampling_probability is 0.0: pass a number in .0, 1": lambda: CyclicPoissonLots(10, 0.0, 5, 2),
    "capacity is 0": lambda: CyclicPoissonLots(10, 0.5, 0, 2),
    "11 records, but these lots": lambda: CyclicPoissonLots(10, 0.5, 5, 2).check_number(11),
    "steps_per_epoch must be a whole number >= 1, not 0": lambda: BallsInBinsLots(10, 0, 5),
    "steps_per_epoch=4194305: pass at most 4194304": lambda: BallsInBinsLots(10, 2**22 + 1, 5),
    "steps must be a whole number >= 1, not 0": lambda: BallsInBinsLots(10, 2, 5).epochs(0),
    "capacity is -1": lambda: BallsInBinsLots(10, 2, -1),
    "dataset_size_bound is 1.5": lambda: BallsInBinsLots(1.5, 2, 5),
    "dataset_size_bound=715827883: pass less than 715827883": lambda: BallsInBinsLots(
        715827883, 2, 5
    ),
    "12 records, but these lots": lambda: BallsInBinsLots(10, 2, 5).check_number(12),
}
RUNS = {
    "steps=.*at least 1": lambda: _with(steps=0),
    "steps=2.0: pass": lambda: _with(steps=2.0),
    "public lot size": lambda: _with(expected_lot_size=0),
    "expected_lot_size is inf": lambda: _with(expected_lot_size=np.inf),
    "PoissonLots or FixedLots": lambda: _with(lots=64),
    "bands must be a whole number >= 1, not 0": lambda: training.BandedNoise(0),
    "bands must be a whole number >= 1, not 2.5": lambda: training.BandedNoise(2.5),
    "noise must be a BandedNoise, such as training.BandedNoise.8., or None, not 4": lambda: _with(
        noise=4
    ),
    "bands=2 has no proven cost .*cycle=2": lambda: _with(noise=BANDS),
    "bands=2 has no proven cost": lambda: _with(
        noise=BANDS, lots=FixedLots(4, 2), relation="replace_one"
    ),
    "bands=2 has no proven cost.": lambda: _with(noise=BANDS, lots=CyclicPoissonLots(4, 0.5, 4, 1)),
    "correlated noise lies on one device: pass": lambda: _with(
        noise=BANDS, lots=CyclicPoissonLots(4, 0.5, 2, 2), mesh=training.LotMesh()
    ),
    "CyclicPoissonLots has no accounting under 'replace_one'": lambda: _with(
        lots=CyclicPoissonLots(4, 0.5, 2, 2), relation="replace_one"
    ),
    "bands=2 has no proven cost unless": lambda: _with(noise=BANDS, lots=BallsInBinsLots(4, 2, 4)),
    "BallsInBinsLots has no accounting under 'replace_one'": lambda: _with(
        lots=BallsInBinsLots(4, 2, 4), relation="replace_one"
    ),
    "bands=4 has a proven cost with poisson lots alone.*sampling='poisson'": lambda: (
        tuning.RunOptions(bands=4, sampling="fixed")
    ),
    "bands=1001: pass at most 1000, the records": lambda: RunShape(
        1, 10, "poisson", 1000, 1100, bands=1001
    ),
    "lot_size=400, and a lot is drawn of one of 4 parts .* at most 250, or fewer bands": lambda: (
        RunShape(400, 10, "poisson", 1000, 1100, bands=4)
    ),
    "scale must be a tree like the parameters, of positive numbers, not .*-1": lambda: (
        training.public_scale({"a": [0.5, -1.0]})
    ),
    "scale must be .*, not inf": lambda: training.public_scale(np.inf),
    "scale must be .*, not nan": lambda: training.public_scale(np.nan),
    "scale must be .*, not 0.0": lambda: training.public_scale(0.0),
    "scale must be .*, not {}": lambda: training.public_scale({}),
    "scale must be .*, not 'a'": lambda: training.public_scale("a"),
    "scale must be .*1j": lambda: training.public_scale(1j),
    "scale must be numbers within a factor of 1e.06": lambda: training.public_scale([1.0, 1e-50]),
    "scale is no tree like the trained parameters .*: pass a number": lambda: training.public_scale(
        {"other": 1.0}
    ).init({"w": jnp.zeros(3)}),
    "scale is no tree like the trained parameters .*4.*: pass a number": lambda: (
        training.public_scale(np.ones((4, 3))).init(jnp.zeros(3))
    ),
    "scales gradients 2 times: chain one scale, as the first": lambda: scale_of(
        optax.chain(*[training.public_scale(1.0)] * 2).init(jnp.zeros(3))
    ),
    "stages must be a Stages, such as": lambda: _with(stages=(0.5, 0.5)),
    "shares=.0.5, 0.4.: pass one number a stage, which sum to 1": lambda: training.Stages(
        (0.5, 0.4)
    ),
    "shares=\\(\\): pass one number": lambda: training.Stages(()),
    "each of shares must be finite and > 0, not 0": lambda: training.Stages((1.0, 0.0)),
    "shares must be a list of numbers": lambda: training.Stages(1.0),
    "noise=.1.0,.: pass 2 factors, one a stage of shares": lambda: _halves(noise=(1.0,)),
    "clip_norm=.*: pass 2 factors, one a stage": lambda: _halves(clip_norm=(1.0,) * 3),
    "lot_size=.*: pass 2 factors, one a stage": lambda: _halves(lot_size=[2]),
    "each of noise must be finite and > 0, not 0": lambda: _halves(noise=(1.0, 0.0)),
    "each of clip_norm must be finite and > 0, not -1": lambda: _halves(clip_norm=(1.0, -1)),
    "each of lot_size must be finite and > 0, not nan": lambda: _halves(lot_size=(1.0, np.nan)),
    "noise=.*: pass factors from 0.001 to 1000": lambda: _halves(noise=(1.0, 1e-4)),
    "clip_norm=.*: pass factors from 0.001 to 1000": lambda: _halves(clip_norm=(1.0, 2e3)),
    "steps=1 leave a stage without a step: pass larger shares": lambda: _with(stages=_halves()),
    "steps=4 leave a stage without a step": lambda: training.Stages((0.05, 0.95)).of_run(
        4, FixedLots(9, 3)
    ),
    "stages have no proven cost with correlated noise": lambda: _staged(
        lots=CyclicPoissonLots(4, 0.5, 2, 2)
    ),
    "fixed lots are of one size: pass poisson lots, or drop lot_size=.1.0, 2.0.": lambda: _staged(
        _halves(lot_size=(1.0, 2.0)), lots=FixedLots(4, 2), relation="replace_one"
    ),
    "lot_size=.1.0, 3.0.: pass factors of at most 2, as": lambda: _staged(
        _halves(lot_size=(1.0, 3.0))
    ),
    "stages have no proven cost with BallsInBinsLots: drop them, or pass": lambda: _staged(
        lots=training.BallsInBinsLots(4, 2, 4)
    ),
    "stages are of runs on one device": lambda: _staged(mesh=training.LotMesh()),
    "stages have no proven cost with correlated noise: drop": lambda: RunShape(
        20, 10, "poisson", 100, 110, bands=2, stages=_halves()
    ),
    "fixed lots are of one size: pass poisson lots": lambda: RunShape(
        20, 10, "fixed", 100, 100, stages=_halves(lot_size=(1.0, 2.0))
    ),
    "lot_size=.*: pass factors of at most 1.66667, as": lambda: RunShape(
        60, 10, "poisson", 100, 110, stages=_halves(lot_size=(1.0, 2.0))
    ),
    "stages must be a Stages, such as training": lambda: tuning.RunOptions(stages=2),
    "unknown clipping None: pass one of": lambda: _with(clipping=None),
    "average is 0.9: pass training": lambda: _with(average=0.9),
    "average is .*TailAverage.*: pass training": lambda: _with(
        average=(training.TailAverage(0.5),)
    ),
    "average is 0.8: pass training": lambda: dataclasses.replace(small_tasks.linear(), average=0.8),
    "decay must be in": lambda: training.ExponentialAverage(1.0),
    "decay must be .*'slow'": lambda: training.ExponentialAverage("slow"),
    "share must be in .*0.0": lambda: training.TailAverage(0.0),
    "share must be in .*1.5": lambda: training.TailAverage(1.5),
    "pass a training.LotMesh": lambda: _with(mesh=[jax.devices()[0]]),
    "pass different ones": lambda: training.LotMesh(()),
    "pass different ones.": lambda: training.LotMesh((jax.devices()[0],) * 2),
    "groups of 2 devices, but there are 1: pass as model": lambda: training.LotMesh(
        tuple(jax.devices()[:1]), model=2
    ),
    "3 candidates on 1 groups of devices": lambda: training.LotMesh(
        tuple(jax.devices()[:1]), candidates=3
    ),
    "of several processes: pass jax.local_devices": lambda: training.LotMesh(
        tuple(mock.Mock(process_index=index) for index in range(2)), candidates=2
    ),
    "one candidate on each set of a mesh": lambda: Placement(2, mesh=training.LotMesh()),
    "of this process: pass numbers whose": lambda: named_placement("2x2x2", 8),
    "random numbers at once: train fewer": lambda: training.LotMesh(
        tuple(jax.devices()[:1])
    ).dithered_normal(KEY, [(2**16, 2**15)], np.float32(1.0)),
}
OPTIMISERS = {
    "sgd needs the hyperparameter learning_rate": lambda: optimizers.sgd()({"clip_norm": 1.0}),
    "momentum needs the hyperparameter momen": lambda: optimizers.momentum()(
        {"learning_rate": 1.0}
    ),
    "adam needs the hyperparameter learning_rate.*none so far": lambda: optimizers.adam()({}),
    "unknown schedule 'sine': pass one of": lambda: _scheduled("sine"),
    "no setting end: pass end_fac": lambda: _scheduled("linear", end=1),
    "no setting drops": lambda: _scheduled("cosine", drops=1),
    "end_factor must": lambda: _scheduled("linear", end_factor=2.0),
    "share": lambda: _scheduled("warmup_cosine", warmup_share=1.0),
    "make must be": lambda: training.scheduled("sgd", "cosine"),
    "steps": lambda: _scheduled("cosine")({"learning_rate": 1.0}),
    "schedule 'cosine' is registered already": lambda: training.register_schedule("cosine")(
        lambda: None
    ),
}
CLIPPING = {
    "unknown clipping 'grouped': pass one of global, per_l": lambda: _clipped("grouped"),
    "share of 'a' must be finite and > 0": lambda: training.PerLeafClipping({"a": 0.0}),
    "shares must be a mapping": lambda: training.PerLeafClipping([1.0]),
    "groups_of is empty: pass a prefix": lambda: training.GroupedClipping([]),
    "groups_of must be a list of prefixes": lambda: training.GroupedClipping("body"),
    "stability must be finite and >= 0": lambda: training.AutomaticClipping(-1.0),
    "bias is in no group: pass a prefix": lambda: _clipped(training.GroupedClipping(["body"])),
    "'tail', which holds no trained": lambda: _clipped(training.GroupedClipping(["", "tail"])),
    "shares and groups differ in body/": lambda: _clipped(training.PerLeafClipping({"bias": 1.0})),
    "Undecorated has no name: put @training.register_clip_rule above": lambda: _clipped(
        type("Undecorated", (training.ClipRule,), {})()
    ),
    "'no_fields' states no settings: put @dataclasses.dataclass.frozen=True. above": lambda: (
        _clipped(type("Bare", (training.ClipRule,), {"name": "no_fields"})())
    ),
    "Own.divisor must return one number for a norm, by jax.numpy, not None": lambda: _of_divisor(
        lambda rule, norm: None
    ),
    "Own.divisor must .*, not ShapeDtypeStruct.shape=.2,.": lambda: _of_divisor(
        lambda rule, norm: jnp.stack([norm, norm])
    ),
    "Own.divisor must .*with jnp.where in the place of if: TracerBool": lambda: _of_divisor(
        lambda rule, norm: norm if norm > 1 else 1.0
    ),
    "clipping 'global' is registered already": lambda: clip_rules.register_clip_rule("global")(
        training.GlobalClipping
    ),
}
USERS = {
    "one id for each": lambda: users.group(VALUES, IDS[:3], 2),
    "integers or fixed-length bytes": lambda: users.group(VALUES, IDS.astype(str), 2),
    "most_records": lambda: users.group(VALUES, IDS, 0),
    "one length": lambda: users.group((VALUES, VALUES[:2]), IDS, 2),
    "at least one record": lambda: users.group(VALUES[:0], IDS[:0], 2),
    "1 to 64 bytes": lambda: users.group(VALUES, IDS, 2, key=3),
    "loss_fn": lambda: users.per_user(3),
    "training.users.group": lambda: users.per_user(lambda params, record: 0.0)({}, VALUES),
}
SWEEPS = {
    "pass one of rule, vmap": lambda: named_placement("pmap", 8),
    "a placement of width 0: pass at least 1": lambda: Placement(0),
    "local_devices": lambda: Placement(1, ()),
    r"fraction in \(0, 1\]": lambda: plan_buckets(["a"], [1], [1], slots=1, useful_work=0.0),
    "one for each device": lambda: plan_buckets(["a"], [1], [1], slots=3, slots_multiple=4),
    "go together": lambda: hosts.join("localhost:1234", 2),
    "pass 0 to 1": lambda: hosts.join("localhost:1234", 2, 2),
    "coordinator='somewhere': pass host:port": lambda: hosts.join("somewhere", 2, 0),
    "coordinator_bind_address=':1': pass host:port": lambda: hosts.join(
        "localhost:1234", 2, 0, coordinator_bind_address=":1"
    ),
    "share 3 of 3": lambda: hosts.own_share(5, 3, 3),
}
RANDOMNESS = {
    r"seed=.*-1.*0 to 2\^32 - 1": lambda: keys.candidate_keys(2, seed=-1),
    r"seed=.*4294967296.*0 to 2\^32 - 1": lambda: keys.candidate_keys(2, seed=2**32),
    "0 or more": lambda: keys.candidate_keys(-1),
    "initial, loss, lots, noise": lambda: keys.stream(KEY, "nois"),
    "pass threefry2x32 keys": lambda: threefry.dithered_normal(
        jax.random.key(0, impl="rbg"), 3, 1.0
    ),
    "typed key": lambda: threefry.dithered_normal(np.zeros(2, np.uint32), 3, 1.0),
    r"fewer than 2\^31": lambda: jax.eval_shape(
        lambda key: threefry.random_bits(key, (2**31,)), KEY
    ),
    "scale .*0.* above 0": lambda: exact_samplers.discrete_laplace(Fraction(0), BELOW),
    "scale .*-1.* above 0": lambda: exact_samplers.discrete_laplace(Fraction(-1), BELOW),
    "at least one score": lambda: exact_samplers.exponential_choice([], Fraction(1), BELOW),
    "at least one score.": lambda: exact_samplers.exponential_choice([1], Fraction(0), BELOW),
    "standard_deviation .*0.0.* pass a finite number": lambda: integer_laws.discrete_gaussian(
        0.0, 1, SEEDED
    ),
    "standard_deviation .*-1.0.* pass a finite number": lambda: integer_laws.discrete_gaussian(
        -1.0, 1, SEEDED
    ),
    "standard_deviation .*inf.* pass a finite number": lambda: integer_laws.discrete_gaussian(
        np.inf, 1, SEEDED
    ),
    "standard_deviation .*nan.* pass a finite number": lambda: integer_laws.discrete_gaussian(
        np.nan, 1, SEEDED
    ),
    "variance 0.0: pass a finite number above 0": lambda: integer_laws.integer_law("skellam", 0.0),
    "variance nan": lambda: integer_laws.integer_law("skellam", np.nan),
    "unknown noise 'poisson': pass one of skellam, discrete_gaussian": lambda: (
        integer_laws.integer_law("poisson", 1.0)
    ),
    "scale the votes less": lambda: integer_laws.integer_law("skellam", 1e12),
}
MODELS = {
    "unknown model 'resnet': pass one of": lambda: models.build_module("resnet", 2),
    "model 'resnet': pass one of .*linear_svm": lambda: models.default_loss("resnet"),
    "classes=.*at least 2": lambda: models.build_module("mlp", 1),
    "positive hidden widths": lambda: models.build_module("mlp", 2, widths=(4, 0)),
}
VOTES = {
    "votes=5 of 4 candidates": lambda: voting.ballots(np.zeros(4), np.zeros(4), 5),
    "a client that names all says": lambda: voting.ballots(np.zeros(4), np.zeros(4), 4),
    "pass one of each per candidate": lambda: voting.ballots(np.zeros(4), np.zeros(5), 1),
    "votes=101 of 100 candidates": lambda: VoteSettings(50, 100, votes=101),
    "votes must be a whole number": lambda: VoteSettings(50, 100, votes=2.5),
    r"1 client\(s\): pass at least 3": lambda: VoteSettings(1, 100),
    r"2 client\(s\): pass at least 3": lambda: VoteSettings(2, 100),
    "epsilon must be finite": lambda: VoteSettings(50, 100, epsilon=np.inf),
    "delta must be in": lambda: VoteSettings(50, 100, delta=0.0),
    "missing_fraction": lambda: VoteSettings(50, 100, missing_fraction=1.0),
    "unknown noise 'laplace'": lambda: VoteSettings(50, 100, noise="laplace"),
    "scale must be": lambda: VoteSettings(50, 100, scale=0),
    "smaller scale|scale the votes less|probabilities": lambda: VoteSettings(
        50, 100, epsilon=0.1, scale=1 << 16
    ).plan(),
    "not a ballot": lambda: voting.noisy_ballot(
        np.ones(100, int), VoteSettings(50, 100).plan(), SEEDED
    ),
    "not a ballot.": lambda: voting.noisy_ballot(
        np.zeros(100), VoteSettings(50, 100).plan(), SEEDED
    ),
    "99 records do not give 10 clients 10 each": lambda: partitioners.iid(99, 10, 0),
    "clients must be": lambda: partitioners.iid(99, 0, 0),
    "concentration must be finite": lambda: partitioners.dirichlet(np.arange(600) % 10, 10, 0.0, 0),
    "concentration must be .* not nan": lambda: partitioners.dirichlet(
        np.arange(600) % 10, 10, np.nan, 0
    ),
    "10000 Dirichlet divisions": lambda: partitioners.dirichlet(np.zeros(100, int), 10, 0.05, 0),
    "fewer clients": lambda: data_split.divided_as({"dataset": "digits", "clients": 1000}),
}
SEARCHES = {
    "delta": lambda: pareto.TrainingCost(pareto.RunShapes(10), delta=0.0),
    "rdp_classic": lambda: pareto.TrainingCost(pareto.RunShapes(10), method="moments"),
    "poisson": lambda: _shapes(10, "bernoulli"),
    "dataset_size": lambda: _shapes(0),
    "size_bound 9: pass dataset_size or more": lambda: _shapes(10, "poisson", 9),
    "for poisson lots only": lambda: _shapes(10, "fixed", 12),
    "512, above the 100 training records": lambda: pareto.RunShapes(100).check(
        pareto.Domain(epochs=pareto.Integer(1, 4), lot_size=pareto.LogInteger(8, 512))
    ),
    "lacks epochs": lambda: pareto.RunShapes(100).check(
        pareto.Domain(lot_size=pareto.LogInteger(8, 64))
    ),
    r"loguniform\(1.0,0.1\).*low < high": lambda: pareto.parse_domain(["rate=log(1,0.1)"]),
    r"loguniform\(1.0,1.0\).*low < high": lambda: pareto.parse_domain(["rate=log(1,1)"]),
    "finite": lambda: pareto.parse_domain(["rate=real(0,inf)"]),
    r"loguniform\(0.0,1.0\): pass low above 0": lambda: pareto.parse_domain(["rate=log(0,1)"]),
    "whole numbers": lambda: pareto.parse_domain(["lot=integer(1,2.5)"]),
    r"log_integer\(0,8\): pass low above 0": lambda: pareto.parse_domain(["lot=log_integer(0,8)"]),
    "log_integer": lambda: pareto.parse_domain(["rate=normal(0,1)"]),
    "cannot read": lambda: pareto.parse_domain(["rate=log(1)"]),
    "NAME=RANGE": lambda: pareto.parse_domain(["rate"]),
    "nothing to search": lambda: pareto.parse_domain(["rate=1"]),
    "twice": lambda: pareto.parse_domain(["rate=log(1,2)", "rate=1"]),
    "pairs": lambda: fronts.non_dominated([[1.0, 2.0, 3.0]]),
}
REFUSED = [
    (words, call)
    for room in (
        LOTS,
        RUNS,
        OPTIMISERS,
        CLIPPING,
        USERS,
        SWEEPS,
        RANDOMNESS,
        MODELS,
        VOTES,
        SEARCHES,
    )
    for words, call in room.items()
]


@pytest.mark.parametrize(("words", "call"), REFUSED, ids=[words for words, _ in REFUSED])
def test_it_is_refused_in_one_line(words, call):
    with pytest.raises(ValueError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)
