"""Trainings with Opacus as candidates: what is trained, with whose noise, and what is refused.

Left out where Opacus is not installed; `make test_opacus` installs it and runs this file.
"""

import functools
import importlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import flax.serialization
import numpy as np
import pytest

from dpjax import accounting, bridges, tuning
from dpjax.bridges import opacus
from dpjax.bridges.runs import expanded
from dpjax.bridges.selection import RunsWarning
from dpjax.tuning import cautions, verification

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
opacus_engine = importlib.import_module("dpjax.bridges.opacus_engine")
schedulers = importlib.import_module("opacus.schedulers")
distributed = importlib.import_module("opacus.distributed")
memory = importlib.import_module("opacus.utils.batch_memory_manager")
data = importlib.import_module("torch.utils.data")

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

NUMBER, RATE, EPOCHS, NOISE = 200, 0.1, 2, 0.8
STEPS = EPOCHS * 10
SPACE = tuning.Space(rate=tuning.LogUniform(0.1, 1.0))
_SOURCE = np.random.default_rng(0)
FEATURES = torch.tensor(_SOURCE.normal(size=(NUMBER, 5)), dtype=torch.float32)
LABELS = (FEATURES[:, 0] > 0).long()
RECORDS = data.TensorDataset(FEATURES, LABELS)
LOADER = data.DataLoader(RECORDS, batch_size=20)
DECLARED = opacus_engine.DeclaredSteps(NOISE, RATE, STEPS)


def _module():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def _begun(engine, rate=0.5, module=None, loader=LOADER, **more):
    module = _module() if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    arguments = dict(module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0)
    return *engine.make_private(**arguments | more), optimizer


def _stepped(module, optimizer, lots):
    for features, labels in lots:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        optimizer.step()


def _count(module):
    return (module(FEATURES).argmax(1) == LABELS).sum()


def train(engine, hyperparameters, kept=None, **more):
    """What an Opacus user writes; `kept` is given the engine, the optimizer and the module."""
    module, optimizer, lots, _ = _begun(engine, hyperparameters["rate"], **more)
    for _ in range(EPOCHS):
        _stepped(module, optimizer, lots)
    if kept is not None:
        kept.append((engine, optimizer, module))
    return module, _count(module)


def _tune(run=train, **changed):
    given = dict(
        noise_multiplier=NOISE,
        sample_rate=RATE,
        steps=STEPS,
        score=bridges.CountedScore("training", NUMBER, noise=5.0),
        repetitions=accounting.Fixed(3),
        seed=1,
    )
    return opacus.tune(run, SPACE, **given | changed)


def _run(seed, run=train, rate=0.5):
    """One candidate, outside a tuning."""
    return opacus._Run(run, DECLARED)(seed, {"rate": rate})


def test_the_best_of_three_is_priced_released_and_verified(tmp_path):
    kept, outcomes = [], []
    result = _tune(functools.partial(train, kept=kept), on_outcome=outcomes.append)
    assert len(kept) == 3 and result.curator.winner in range(3)
    one_run = accounting.dp_sgd(RATE, NOISE, STEPS)
    with_count = accounting.compose(one_run, accounting.discrete_gaussian(5.0, 1))
    priced = accounting.best_of(with_count, accounting.Fixed(3)).epsilon(1e-5)
    assert result.guarantee.epsilon(1e-5) == priced
    assert [one.count for one in outcomes] == [int(_count(module)) for *_, module in kept]
    # The winner's weights, by the names of the module that the training made.
    result.release.save(tmp_path / "release")
    content = (tmp_path / "release" / "model.msgpack").read_bytes()
    read = flax.serialization.msgpack_restore(content)
    assert list(read) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    winner = _module()
    winner.load_state_dict({name: torch.as_tensor(value.copy()) for name, value in read.items()})
    trained = kept[result.curator.winner][2]._module.state_dict()
    assert all(torch.equal(winner.state_dict()[name], trained[name]) for name in trained)
    assert not torch.equal(
        trained["0.weight"], kept[result.curator.winner - 1][2]._module[0].weight
    )
    stated = verification.verify_release(str(tmp_path / "release" / "guarantee.json")).epsilon
    assert stated == result.guarantee.stated_epsilon(1e-5)


def test_what_a_tuning_costs_is_noted_in_its_ledger(tmp_path):
    ledger = bridges.Ledger(tmp_path / "mine", "mine", (FEATURES, LABELS))
    result = _tune(ledger=ledger)
    entry = (tmp_path / "mine" / "curator" / "ledger.jsonl").read_text().splitlines()[-1]
    assert json.loads(entry)["epsilon"] == result.guarantee.epsilon(1e-5)


def test_a_seed_reproduces_and_no_seed_does_not():
    before = torch.get_rng_state()
    first, again, secret = _tune(), _tune(), _tune(seed=None)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.release.params.items():
        np.testing.assert_array_equal(value, again.release.params[name])
        assert not np.array_equal(value, secret.release.params[name])
    assert secret.release.statement["randomness"]["secret"] is True


def test_an_interrupted_tuning_goes_on(tmp_path):
    calls = []

    def interrupted(engine, hyperparameters):
        calls.append(hyperparameters)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(engine, hyperparameters)

    job = tuning.Job(folder=str(tmp_path / "work"))
    with pytest.raises(KeyboardInterrupt):
        _tune(interrupted, job=job)
    with pytest.raises(ValueError, match="run"):
        _tune(train, job=job)
    result = _tune(interrupted, job=job)
    assert len(calls) == 4 and calls[1] == calls[2]
    np.testing.assert_array_equal(result.curator.scores, _tune().curator.scores)


def _without_gradients(engine, hyperparameters, kept):
    """Weights that only noise moves; what one step adds to them is kept."""
    module, optimizer, lots, _ = _begun(engine, 1.0, torch.nn.Linear(2000, 1), max_grad_norm=0.5,
                                        loader=_WIDE)  # fmt: skip
    for (features,) in lots:
        before = module._module.weight.detach().clone()
        optimizer.zero_grad()
        (0 * module(features)).mean().backward()
        optimizer.step()
        kept.append((module._module.weight.detach() - before).numpy().ravel())
    return module, 0


_WIDE = data.DataLoader(data.TensorDataset(torch.zeros(103, 2000)), batch_size=11)


def test_every_step_adds_the_declared_noise_and_candidates_have_their_own():
    kept = []
    _tune(functools.partial(_without_gradients, kept=kept), steps=10)
    assert len(kept) == 30
    noise = np.stack(kept) * 11  # The batch size, not 103 // 10.
    for scale in (1.0, 2 / 3, 3 / 2):
        fits = np.abs(noise.std(axis=1) / (scale * NOISE * 0.5) - 1) < 0.1
        assert fits.all() if scale == 1.0 else not fits.any()
    correlated = np.corrcoef(noise) - np.eye(30)
    assert np.abs(correlated).max() < 6 / np.sqrt(2000)


def test_noise_and_lots_have_all_bits_of_the_seed():
    kept = []
    given = (5, 5 + 2**32, 5 + 2**62)
    for seed in given:
        _run(seed, functools.partial(train, kept=kept))
    engines = [engine for engine, *_ in kept]
    fresh = [opacus_engine.generator(seed, use) for seed in given for use in ("noise", "lots")]
    states = [generator.get_state().numpy().tobytes() for generator in fresh]
    by_number = [torch.Generator().manual_seed(seed).get_state().numpy() for seed in given[:1]]
    assert by_number[0].tobytes() not in states and len(set(states)) == 6
    for index, (_, optimizer, _) in enumerate(kept):
        # What the candidate's generator will draw next is what a fresh one does after as much.
        repeated, drawn = opacus_engine.generator(given[index], "noise"), optimizer.generator
        for _ in range(STEPS):
            for parameter in optimizer.params:
                torch.normal(0.0, 1.0, parameter.shape, generator=repeated)
        assert torch.equal(repeated.get_state(), drawn.get_state())
        assert engines[index]._lots.generator is not drawn


def test_a_generator_draws_the_mersenne_twister_of_the_expanded_seed():
    made = opacus_engine.generator(3, "noise")
    words = np.frombuffer(expanded(3, "noise", 4 * 624), dtype="<u4")
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    wanted = (twister.random_raw(1000) & (2**24 - 1)) / 2.0**24
    np.testing.assert_array_equal(torch.rand(1000, generator=made).numpy(), wanted)
    assert words[:8].tobytes() != expanded(3, "lots", 32)
    with pytest.raises(ValueError, match="train on a CPU or on CUDA"):
        opacus_engine.generator(3, "noise", "meta")


def test_lots_are_poisson_sampled_at_the_declared_rate():
    """Sizes of lots, whether records come together, and that candidates' lots differ."""
    number, drawn = 4000, []
    records = data.TensorDataset(torch.arange(number))
    for seed in (1, 2):
        known = torch.Generator().manual_seed(0)  # A user's, which decides nothing.
        loader = data.DataLoader(records, batch_size=400, shuffle=True, generator=known)
        engine = opacus_engine.CandidateEngine(
            opacus_engine.DeclaredSteps(NOISE, RATE, STEPS), seed
        )
        lots = _begun(engine, module=torch.nn.Linear(1, 1), loader=loader)[2]
        drawn.append([np.isin(np.arange(number), one) for _ in range(20) for (one,) in lots])
    inside = np.array(drawn)
    assert inside.shape == (2, 200, number)
    sizes = inside.sum(axis=2)
    deviation = np.sqrt(number * RATE * (1 - RATE))
    assert abs(sizes.mean() - number * RATE) < 5 * deviation / np.sqrt(sizes.size)
    assert 0.8 < sizes.std() / deviation < 1.2  # Shuffled lots are all of one size.
    assert not np.array_equal(inside[0], inside[1])
    together = (inside[0] & inside[1]).mean()
    assert abs(together - RATE**2) < 5 * RATE / np.sqrt(inside[0].size)


def test_split_lots_are_one_step_each():
    def split(engine, hyperparameters):
        module, optimizer, lots, _ = _begun(engine)
        for _ in range(EPOCHS):
            with memory.BatchMemoryManager(
                data_loader=lots, max_physical_batch_size=6, optimizer=optimizer
            ) as parts:
                _stepped(module, optimizer, parts)
        assert engine.accountant.history == [(NOISE, RATE, STEPS)]
        return module, _count(module)

    whole, parts = _run(7)[0], _run(7, split)[0]
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, atol=1e-5)


def test_fewer_steps_than_declared_are_allowed():
    kept = []
    result = _tune(functools.partial(train, kept=kept), steps=STEPS + 5)
    assert kept[0][0].accountant.history == [(NOISE, RATE, STEPS)]
    run = accounting.dp_sgd(RATE, NOISE, STEPS + 5)
    assert result.release.statement["one_run"]["epsilon"] == run.epsilon(1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {"clipping": "per_layer", "max_grad_norm": [0.5, 0.5, 0.5, 0.5]},
        {"grad_sample_mode": "functorch"},
        {"loss_reduction": "sum"},
    ],
)
def test_what_opacus_is_handed_trains(more):
    weights, count = _run(3, functools.partial(train, **more))
    assert sum(value.size for value in weights.values()) == 34 and 0 <= count <= NUMBER


def test_the_sample_rate_is_as_opacus_counts_it():
    """Which for 93 lots is 1 / 92: int(1 / (1 / 93)) is 92."""
    loader = data.DataLoader(data.TensorDataset(FEATURES[:93]), batch_size=1)
    rate = 1 / 92
    for declared in (1 / 93, rate):
        engine = opacus_engine.CandidateEngine(opacus_engine.DeclaredSteps(NOISE, declared, 99), 1)
        if declared != rate:
            with pytest.raises(bridges.ContradictionError, match=f"pass sample_rate={rate!r}"):
                _begun(engine, loader=loader)
            continue
        module, optimizer, lots, _ = _begun(engine, loader=loader)
        for (features,) in lots:
            optimizer.zero_grad()
            module(features).mean().backward()
            optimizer.step()
        assert engine.accountant.history == [(NOISE, rate, 92)]
        assert lots.batch_sampler.sample_rate == 1 / 93


def _never_private(engine, hyperparameters):
    return _module(), NUMBER


def _twice_private(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    _stepped(module, optimizer, lots)
    return train(engine, hyperparameters)


def _another_module(engine, hyperparameters):
    train(engine, hyperparameters)
    return _module(), NUMBER


def _plain_optimizer(engine, hyperparameters):
    module, _, lots, plain = _begun(engine)
    _stepped(module, plain, lots)
    return module, NUMBER


def _second_optimizer(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    _stepped(module, optimizer, lots)
    torch.optim.Adam(module._module[2].parameters()).step()
    return module, NUMBER


def _no_step(engine, hyperparameters):
    module, *_ = _begun(engine)
    return module, NUMBER


def _too_long(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    for _ in range(EPOCHS + 1):
        _stepped(module, optimizer, lots)
    return module, NUMBER


def _less_noise(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    schedule = schedulers.ExponentialNoise(optimizer, gamma=0.9)
    for _ in range(EPOCHS):
        _stepped(module, optimizer, lots)
        schedule.step()
    return module, NUMBER


CLIP_SCHEDULES = {
    "ExponentialGradClip": lambda optimizer, by: schedulers.ExponentialGradClip(
        optimizer, gamma=by
    ),
    "StepGradClip": lambda optimizer, by: schedulers.StepGradClip(optimizer, step_size=1, gamma=by),
    "LambdaGradClip": lambda optimizer, by: schedulers.LambdaGradClip(
        optimizer, scheduler_function=lambda epoch: by**epoch
    ),
}
CLIPPINGS = {
    "flat": {"clipping": "flat", "max_grad_norm": 1.0},
    "per_layer": {"clipping": "per_layer", "max_grad_norm": [0.5, 0.5, 0.5, 0.5]},
}


def test_every_clipping_and_every_schedule_of_clip_norms_is_tried_below():
    assert set(CLIPPINGS) == set(opacus_engine._PASSED_ON["clipping"])
    assert set(CLIP_SCHEDULES) == {name for name in dir(schedulers) if name.endswith("dClip")}


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("schedule", CLIP_SCHEDULES)
@pytest.mark.parametrize("by", [0.1, 10.0])
@pytest.mark.parametrize("layers", [False, True])
def test_noise_goes_by_the_norm_that_gradients_are_clipped_to(clipping, schedule, by, layers):
    """Opacus' schedules move the norm of the noise, and with per-layer clipping not the others."""
    seen = []

    def scheduled(engine, hyperparameters):
        module, optimizer, lots, _ = _begun(engine, **CLIPPINGS[clipping])
        clips = CLIP_SCHEDULES[schedule](optimizer, by)
        for _ in range(EPOCHS):
            _stepped(module, optimizer, lots)
            seen.append(optimizer.max_grad_norm)
            clips.step()
            if layers and clipping == "per_layer":
                optimizer.max_grad_norms = [optimizer.max_grad_norm / 2] * 4
        return module, _count(module)

    if clipping == "flat" or layers:
        _run(3, scheduled)
        np.testing.assert_allclose(seen, [1.0, by])
    else:
        with pytest.raises(
            bridges.ContradictionError, match="clip norms.*pass a max_grad_norm that"
        ) as raised:
            _run(3, scheduled)
        assert len(seen) == 1 and "\n" not in str(raised.value)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("by", [0.1, 10.0])
def test_a_clip_norm_that_moves_within_a_lot_is_refused(clipping, by):
    def moved(engine, hyperparameters):
        module, optimizer, lots, _ = _begun(engine, **CLIPPINGS[clipping])
        with memory.BatchMemoryManager(
            data_loader=lots, max_physical_batch_size=3, optimizer=optimizer
        ) as parts:
            for part in parts:
                _stepped(module, optimizer, [part])
                optimizer.max_grad_norm *= by
                if clipping == "per_layer":
                    optimizer.max_grad_norms = [norm * by for norm in optimizer.max_grad_norms]
        return module, NUMBER

    with pytest.raises(bridges.ContradictionError, match="clip norms.*within a lot"):
        _run(3, moved)


def _other_hook(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    optimizer.attach_step_hook(lambda stepped: None)
    _stepped(module, optimizer, lots)
    return module, NUMBER


def _own_loader(engine, hyperparameters):
    module, optimizer, *_ = _begun(engine)
    _stepped(module, optimizer, LOADER)
    return module, NUMBER


def _lots_again(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    lots = list(lots)
    for _ in range(EPOCHS):
        _stepped(module, optimizer, lots)
    return module, NUMBER


def _two_lots_a_step(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    for index, lot in enumerate(lots):
        optimizer.signal_skip_step(do_skip=index % 2 == 0)
        _stepped(module, optimizer, [lot])
    return module, NUMBER


def _lot_left_off(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    for _ in range(EPOCHS):
        with memory.BatchMemoryManager(
            data_loader=lots, max_physical_batch_size=3, optimizer=optimizer
        ) as parts:
            for part in parts:
                _stepped(module, optimizer, [part])
                break
    return module, NUMBER


class _Averages(torch.nn.Module):
    """Keeps the mean of its inputs, without noise."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, features):
        self.mean.copy_(features.mean(0))
        return features


def _private_buffer(engine, hyperparameters):
    module = torch.nn.Sequential(_Averages(), torch.nn.Linear(5, 2))
    return train(engine, hyperparameters, module=module)


def _edited_history(engine, hyperparameters):
    returned = train(engine, hyperparameters)
    engine.accountant.history.append((NOISE, RATE, 1))
    return returned


def _corrected_history(engine, hyperparameters):
    module, optimizer, lots, _ = _begun(engine)
    optimizer.noise_multiplier = NOISE / 2
    _stepped(module, optimizer, lots)
    engine.accountant.history[:] = [(NOISE, RATE, len(lots))]
    return module, NUMBER


def _on_two_devices(engine, hyperparameters):
    module = _module()
    module.append(torch.nn.Linear(2, 2, device="meta"))
    return train(engine, hyperparameters, module=module)


def _without_parameters(engine, hyperparameters):
    optimizer = torch.optim.SGD(_module().parameters(), lr=1.0)
    engine.make_private(
        module=torch.nn.Tanh(), optimizer=optimizer, data_loader=LOADER, max_grad_norm=1.0
    )


def _several_processes(engine, hyperparameters):
    processes = torch.distributed
    processes.init_process_group("gloo", store=processes.HashStore(), rank=0, world_size=1)
    try:
        module = distributed.DifferentiallyPrivateDistributedDataParallel(_module())
        return train(engine, hyperparameters, module=module)
    finally:
        processes.destroy_process_group()


def _caught(engine, hyperparameters):
    try:
        _plain_optimizer(engine, hyperparameters)
    except RuntimeError:
        return train(_Other(engine), hyperparameters)


class _Other:
    """An engine that forgets what it refused, as a wrapper of somebody's might."""

    def __init__(self, engine):
        engine._module, engine._taken = None, 0
        self.make_private = engine.make_private


def _caught_and_raised(engine, hyperparameters):
    try:
        return _too_long(engine, hyperparameters)
    except Exception:
        raise ValueError("it did not work") from None


_BATCHES = data.BatchSampler(data.SequentialSampler(RECORDS), 20, False)


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (_never_private, "did not call make_private: train with what engine.make_private returns"),
        (_twice_private, "make_private was called twice in a run: call it once"),
        (_another_module, "a module that is not the private one: return that one"),
        (_plain_optimizer, "stepped without noise: call step of the one that make_private returns"),
        (_second_optimizer, "stepped without noise: call step of the one that make_private"),
        (_no_step, "no private step: call step of the optimizer that make_private returns"),
        (_too_long, "more than steps=20 steps: pass the most that any candidate takes"),
        (_less_noise, "leave the optimizer's noise_multiplier at 0.8 and its step hook"),
        (_other_hook, "stepped without noise"),
        (_own_loader, "more steps than lots were drawn: take one step for each lot of the loader"),
        (_lots_again, "more steps than lots were drawn"),
        (_two_lots_a_step, "gradients of several lots were summed in one step: call step after"),
        (_lot_left_off, "gradients of several lots were summed in one step"),
        (_private_buffer, "the buffer 0.mean, and adds no noise to it: freeze it"),
        (_edited_history, "history is not that of the declared steps"),
        (_corrected_history, "history is not that of the declared steps"),
        (_several_processes, "trained in several processes is not covered: unwrap it"),
        (_caught, "stepped without noise"),
        (_caught_and_raised, "more than steps=20 steps"),
        (dict(loader=data.DataLoader(RECORDS, batch_size=25)), "pass sample_rate=0.125, or anothe"),
        (dict(loader=data.DataLoader(RECORDS, batch_sampler=_BATCHES)), "with batch_size="),
        (dict(noise_multiplier=NOISE), "noise_multiplier of make_private cannot be chosen here"),
        (dict(poisson_sampling=True), "poisson_sampling of make_private cannot be chosen here"),
        (dict(noise_generator=None), "noise_generator of make_private cannot be chosen here"),
        (dict(rand_on_empty=True), "rand_on_empty of make_private cannot be chosen here"),
        (dict(clipping="adaptive"), "clipping='adaptive' is not covered: pass one of .'flat'"),
        (dict(grad_sample_mode="ghost"), "grad_sample_mode='ghost' is not covered: pass one of"),
        (dict(module=torch.nn.Linear(5, 2, device="meta")), "on a CPU or one CUDA GPU"),
        (_on_two_devices, "on a CPU or one CUDA GPU"),
        (_without_parameters, "on a CPU or one CUDA GPU"),
    ],
)
def test_a_run_that_contradicts_its_declaration_releases_nothing(run, line):
    run = functools.partial(train, **run) if isinstance(run, dict) else run
    with pytest.raises(RuntimeError, match=line) as raised:
        _tune(run, on_outcome=(seen := []).append, seed=None)
    assert not seen and type(raised.value) is bridges.ContradictionError
    message = str(raised.value)
    assert message.endswith("; nothing is released") and "\n" not in message


def test_weights_are_not_changed_by_a_step_that_is_refused():
    kept = []

    def plain(engine, hyperparameters):
        module, _, lots, plain = _begun(engine)
        kept.extend([module._module, pickle.dumps(opacus_engine.arrays(module._module))])
        _stepped(module, plain, lots)

    with pytest.raises(bridges.ContradictionError):
        _run(1, plain)
    assert pickle.dumps(opacus_engine.arrays(kept[0])) == kept[1]
    # What steps elsewhere is not looked at, nor anything once the run is over.
    optimizer = torch.optim.SGD(kept[0].parameters(), lr=1.0)
    optimizer.step()


def test_a_run_that_raises_ranks_worst(tmp_path):
    runs = []

    def sometimes(engine, hyperparameters):
        runs.append(engine)
        if len(runs) != 2:
            raise ArithmeticError("no")
        return train(engine, hyperparameters)

    with pytest.warns(RunsWarning):
        result = _tune(sometimes)
    assert result.curator.winner == 1 and len(runs) == 3
    with pytest.warns(RunsWarning), pytest.warns(cautions.UntrainedReleaseWarning):
        result = _tune(lambda engine, h: 3, default=torch.nn.Linear(2, 1, dtype=torch.bfloat16))
    assert result.release.params["weight"].dtype.name == "bfloat16"
    result.release.save(tmp_path / "release")
    verification.verify_release(str(tmp_path / "release" / "guarantee.json"))


def test_threads_draw_as_one_after_the_other_does_and_stop_alike():
    """Lots and noise, not the initial weights, which threads draw from one generator."""

    def from_zero(engine, hyperparameters):
        module = torch.nn.Linear(5, 2)
        torch.nn.init.zeros_(module.weight), torch.nn.init.zeros_(module.bias)
        return train(engine, hyperparameters, module=module)

    with ThreadPoolExecutor(3) as pool:
        result, alone = _tune(from_zero, executor=pool), _tune(from_zero)
        for name, value in alone.release.params.items():
            np.testing.assert_allclose(value, result.release.params[name], atol=1e-6)
        with pytest.raises(bridges.ContradictionError, match="stepped without noise"):
            _tune(_plain_optimizer, executor=pool)


def test_a_candidate_can_be_sent_to_another_process():
    run = opacus._Run(train, DECLARED)
    weights, count = pickle.loads(pickle.dumps(run))(4, {"rate": 0.5})
    assert isinstance(count, int) and {type(one) for one in weights.values()} == {np.ndarray}
    error = pickle.loads(pickle.dumps(bridges.ContradictionError("why")))
    assert isinstance(error, RuntimeError) and str(error) == "why"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"run": 3}, "train must be a function"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"sample_rate": 1.5}, "sample_rate must be in"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"score": 0.9}, "score must be a CountedScore"),
        ({"default": 3}, "default must be a mapping, a module's state_dict, or the module"),
        ({"default": {"w": "text"}}, "w of the module's state is not a dense tensor"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changed, line):
    with pytest.raises(ValueError, match=line) as raised:
        _tune(**changed)
    assert "\n" not in str(raised.value)


def test_a_layout_of_the_generator_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr(opacus_engine, "_OFFSET", 32)
    with pytest.raises(RuntimeError, match="in an unknown format: install the extra"):
        opacus_engine.generator(1, "noise")


@pytest.mark.parametrize("caught", [False, True])
def test_a_module_that_opacus_refuses_ends_the_tuning_in_the_first_run(caught):
    ran = []

    def with_batch_statistics(engine, hyperparameters):
        ran.append(1)
        module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
        try:
            return train(engine, hyperparameters, module=module)
        except Exception:
            if not caught:
                raise
            return _module(), 0

    with pytest.raises(bridges.ContradictionError, match="make_private refuses.*BatchNorm"):
        _tune(with_batch_statistics)
    assert len(ran) == 1
