"""The training of docs/bridges.md as a candidate, and whose noise and lots it has.

Left out where Opacus is not installed; `make test_opacus` installs it and runs this file.
"""

import dataclasses
import functools
import hashlib
import importlib
import re

import flax.serialization
import numpy as np
import pytest

from dpjax import accounting, bridges, tuning
from dpjax.bridges.opacus import make_private

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")
schedulers = importlib.import_module("opacus.schedulers")
distributed = importlib.import_module("opacus.distributed")
memory = importlib.import_module("opacus.utils.batch_memory_manager")
data = importlib.import_module("torch.utils.data")

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]

NUMBER, NOISE = 200, 0.8
_SOURCE = np.random.default_rng(0)
FEATURES = torch.tensor(_SOURCE.normal(size=(NUMBER, 5)), dtype=torch.float32)
LABELS = (FEATURES[:, 0] > 0).long()
LOADER = data.DataLoader(data.TensorDataset(FEATURES, LABELS), batch_size=20)
SEEDS = (5, 5 + 2**32, 5 + 2**62)
"""Their lowest 32 bits, all that `manual_seed` keeps, are the same."""


def _module():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def _begun(seed=1, module=None, loader=LOADER, engine=None, rate=0.5, **more):
    """What `make_private` returns, and the engine."""
    module = _module() if module is None else module
    engine = opacus.PrivacyEngine() if engine is None else engine
    given = dict(optimizer=torch.optim.SGD(module.parameters(), lr=rate), data_loader=loader)
    given |= dict(noise_multiplier=NOISE, max_grad_norm=1.0)
    return *make_private(engine, seed, module=module, **given | more), engine


def _stepped(module, optimizer, lots):
    for features, labels in lots:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        optimizer.step()


@pytest.fixture
def example(request):
    """The page's example, as written."""
    text = (request.config.rootpath / "docs" / "bridges.md").read_text()
    text = text[text.index("\n## An Opacus training") : text.index("\n## A jax-privacy training")]
    (found,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(found.splitlines()) <= 40
    return found


def test_the_pages_release_is_priced_verified_and_read_by_pytorch(example, tmp_path):
    exec(compile(example, "docs/bridges.md", "exec"), known := {})
    result = known["result"]
    base = accounting.dp_sgd(1 / 20, 1.0, 40)
    alone = accounting.best_of(base, accounting.Geometric(3)).epsilon(1e-5)
    # The count on records of their own adds next to nothing.
    assert alone <= result.guarantee.epsilon(1e-5) < 1.01 * alone
    assert result.release.statement["one_run"]["epsilon"] == base.epsilon(1e-5)
    result.release.save(tmp_path / "release")
    read = tuning.verify_release(tmp_path / "release")
    assert read.epsilon == result.guarantee.stated_epsilon(1e-5)
    content = (tmp_path / "release" / "model.msgpack").read_bytes()
    weights = flax.serialization.msgpack_restore(content)
    assert list(weights) == ["bias", "weight"]
    tensors = {name: torch.as_tensor(value.copy()) for name, value in weights.items()}
    torch.nn.Linear(5, 2).load_state_dict(tensors)


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("noise_multiplier=noise_multiplier", "noise_multiplier=0.9"),
        ("1 / len(loader)", "1 / 21"),
        ("for _ in range(2)", "for _ in range(1)"),
        ("for _ in range(2)", "for _ in range(3)"),
    ],
)
def test_the_page_releases_nothing_if_the_history_is_not_what_is_charged(example, line, changed):
    assert example.count(line) == 1
    with pytest.raises(bridges.ContradictionError, match="steps of a run are not those of base"):
        exec(example.replace(line, changed), {})


def _zero_gradients(seed, kept):
    """Weights that only noise moves; what one step adds to them is kept."""
    records = data.TensorDataset(torch.zeros(103, 2000))
    module, optimizer, lots, engine = _begun(
        seed, torch.nn.Linear(2000, 1), data.DataLoader(records, batch_size=11), rate=1.0,
        max_grad_norm=0.5)  # fmt: skip
    for (features,) in lots:
        before = module._module.weight.detach().clone()
        optimizer.zero_grad()
        (0 * module(features)).mean().backward()
        optimizer.step()
        kept.append((module._module.weight.detach() - before).numpy().ravel())
    assert engine.accountant.history == [(NOISE, 1 / 10, 10)]


def test_every_step_adds_the_declared_noise_and_each_seed_has_its_own():
    kept = []
    for seed in SEEDS:
        _zero_gradients(seed, kept)
    noise = np.stack(kept) * 11  # The batch size, not 103 // 10.
    np.testing.assert_allclose(noise.std(axis=1), NOISE * 0.5, rtol=0.1)
    correlated = np.corrcoef(noise) - np.eye(30)
    assert np.abs(correlated).max() < 6 / np.sqrt(2000)
    _zero_gradients(SEEDS[0], again := [])
    np.testing.assert_allclose(again, kept[:10], atol=1e-6)  # Initial weights round it.


def test_noise_and_lots_are_the_mersenne_twisters_of_all_bits_of_the_seed():
    states = set()
    for seed in SEEDS:
        _, optimizer, lots, _ = _begun(seed)
        drawn = {"noise": optimizer.generator, "lots": lots.batch_sampler.generator}
        for purpose, generator in drawn.items():
            given = b"dpjax.bridges.seeds\0" + purpose.encode() + b"\0" + seed.to_bytes(8, "big")
            words = np.frombuffer(hashlib.shake_256(given).digest(4 * 624), dtype="<u4")
            twister = np.random.MT19937()
            state = {"key": words, "pos": 624}
            twister.state = {"bit_generator": "MT19937", "state": state}
            wanted = (twister.random_raw(1000) & (2**24 - 1)) / 2.0**24
            states.add(generator.get_state().numpy().tobytes())
            np.testing.assert_array_equal(torch.rand(1000, generator=generator).numpy(), wanted)
    assert len(states) == 6


def test_lots_are_poisson_sampled_at_the_rate_of_the_history():
    """Sizes of lots, whether records come together, and that the lots of two seeds differ."""
    number, rate, drawn = 4000, 0.1, []
    records = data.TensorDataset(torch.arange(number))
    for seed in SEEDS[:2]:
        known = torch.Generator().manual_seed(0)  # A user's, which decides nothing.
        loader = data.DataLoader(records, batch_size=400, shuffle=True, generator=known)
        lots = _begun(seed, torch.nn.Linear(1, 1), loader)[2]
        drawn.append([np.isin(np.arange(number), one) for _ in range(20) for (one,) in lots])
    inside = np.array(drawn)
    assert inside.shape == (2, 200, number)
    sizes = inside.sum(axis=2)
    deviation = np.sqrt(number * rate * (1 - rate))
    assert abs(sizes.mean() - number * rate) < 5 * deviation / np.sqrt(sizes.size)
    assert 0.8 < sizes.std() / deviation < 1.2  # Shuffled lots are all of one size.
    assert not np.array_equal(inside[0], inside[1])
    together = (inside[0] & inside[1]).mean()
    assert abs(together - rate**2) < 5 * rate / np.sqrt(inside[0].size)


def test_a_record_is_drawn_with_a_number_of_53_bits():
    """Of 2^24 records float32, whose least number is 0 with a chance of 2^-24, draws one a lot."""
    sampler = _begun()[2].batch_sampler
    few = dataclasses.replace(sampler, records=2**24, sample_rate=2.0**-30, lots=5)
    assert sum(map(len, few)) == 0


def test_split_lots_are_one_step_each():
    weights = []
    for split in (False, True):
        torch.manual_seed(0)
        module, optimizer, lots, engine = _begun(7)
        for _ in range(2):
            if not split:
                _stepped(module, optimizer, lots)
                continue
            with memory.BatchMemoryManager(
                data_loader=lots, max_physical_batch_size=6, optimizer=optimizer
            ) as parts:
                _stepped(module, optimizer, parts)
        assert engine.accountant.history == [(NOISE, 0.1, 20)]
        weights.append(module._module[0].weight.detach().numpy())
    np.testing.assert_allclose(*weights, atol=1e-5)


@pytest.mark.parametrize("more", [{"grad_sample_mode": "functorch"}, {"loss_reduction": "sum"}])
def test_what_opacus_is_handed_trains(more):
    module, optimizer, lots, engine = _begun(**more)
    before = module._module[0].weight.detach().clone()
    _stepped(module, optimizer, lots)
    assert engine.accountant.history == [(NOISE, 0.1, 10)]
    assert not torch.equal(before, module._module[0].weight)


def test_a_rate_that_opacus_rounds_is_the_lower_one():
    """93 lots have a history of 1 / 92, since int(1 / (1 / 93)) is 92, and are drawn at 1 / 93."""
    loader = data.DataLoader(data.TensorDataset(FEATURES[:93]), batch_size=1)
    module, optimizer, lots, engine = _begun(loader=loader)
    for (features,) in lots:
        optimizer.zero_grad()
        module(features).mean().backward()
        optimizer.step()
    assert engine.accountant.history == [(NOISE, 1 / 92, 92)]
    assert lots.batch_sampler.sample_rate == 1 / 93


def test_a_schedule_of_the_noise_stands_in_the_history():
    module, optimizer, lots, engine = _begun()
    schedule = schedulers.ExponentialNoise(optimizer, gamma=0.9)
    for _ in range(2):
        _stepped(module, optimizer, lots)
        schedule.step()
    assert engine.accountant.history == [(NOISE, 0.1, 10), (0.9 * NOISE, 0.1, 10)]


def _several_processes():
    processes = torch.distributed
    processes.init_process_group("gloo", store=processes.HashStore(), rank=0, world_size=1)
    try:
        return _begun(module=distributed.DifferentiallyPrivateDistributedDataParallel(_module()))
    finally:
        processes.destroy_process_group()


def _used_engine():
    module, optimizer, lots, engine = _begun()
    _stepped(module, optimizer, lots)
    return _begun(engine=engine)


def _on_two_devices():
    return _begun(module=_module().append(torch.nn.Linear(2, 2, device="meta")))


def _without_parameters():
    given = dict(optimizer=torch.optim.SGD(_module().parameters(), lr=1.0), data_loader=LOADER)
    given |= dict(noise_multiplier=NOISE, max_grad_norm=1.0)
    return make_private(opacus.PrivacyEngine(), 1, module=torch.nn.Tanh(), **given)


_BATCHES = data.BatchSampler(data.SequentialSampler(LOADER.dataset), 20, False)


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (_several_processes, "trained in several processes is not covered: unwrap it"),
        (_used_engine, "has accounted for steps: make a PrivacyEngine() in each run"),
        (_on_two_devices, "on a CPU or one CUDA GPU"),
        (_without_parameters, "on a CPU or one CUDA GPU"),
        (dict(module=torch.nn.Linear(5, 2, device="meta")), "on a CPU or one CUDA GPU"),
        (dict(loader=data.DataLoader(LOADER.dataset, batch_sampler=_BATCHES)), "with batch_size="),
        (dict(grad_sample_mode="ghost"), "grad_sample_mode='ghost' is not covered: pass one of"),
        (dict(loss_reduction="none"), "loss_reduction='none' is not covered: pass one of"),
        (dict(noise_multiplier=0.0), "noise_multiplier must be"),
        (dict(max_grad_norm=[0.5] * 4), "max_grad_norm must be"),
        (
            dict(module=torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))),
            "make_private refuses this training .*BatchNorm",
        ),
    ],
)
def test_what_is_not_covered_ends_the_tuning_in_the_first_run(run, line):
    ran = []

    def called(seed, hyperparameters):
        ran.append(1)
        return functools.partial(_begun, **run)() if isinstance(run, dict) else run()

    line = line if ".*" in line else re.escape(line)
    with pytest.raises(bridges.ContradictionError, match=line) as raised:
        bridges.tune(
            called,
            tuning.Space(rate=0.1),
            base=accounting.gaussian(2.0),
            score=bridges.CountedScore("public", 10),
            repetitions=accounting.Fixed(2),
        )
    message = str(raised.value)
    assert len(ran) == 1 and message.endswith("; nothing is released") and "\n" not in message
