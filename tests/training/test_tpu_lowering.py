"""The sweeps lower for TPU, with the sums that privacy rests on at full precision."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from dpjax import models, training
from dpjax.training.lots import family_of
from dpjax.training.sweep.slots import SlotProgram
from experiments.benchmarks.zoo import ZOO

LANES, ROWS, LAYERS = 3, 600, 2
MODEL = models.functional(models.MLP((8,), 5), np.zeros(12, np.float32))
CONFIG = training.TrainConfig(
    loss_fn=MODEL.example_loss(models.cross_entropy),
    lots=training.PoissonLots(ROWS, 0.05, 60),
    steps=3,
    expected_lot_size=30,
    optimizer=training.adam(),
)
DATA = (
    jax.ShapeDtypeStruct((ROWS, 12), jnp.float32),
    jax.ShapeDtypeStruct((ROWS,), jnp.int32),
)
GIVEN = {
    name: jax.ShapeDtypeStruct((LANES,), jnp.float32)
    for name in ("clip_norm", "noise_multiplier", "learning_rate")
}


def whole_runs():
    train = training.make_train(CONFIG)

    def run(key, hyperparameters, data):
        return train(key, hyperparameters, MODEL.init(training.stream(key, "initial")), data)

    keys = jax.eval_shape(lambda: training.candidate_keys(LANES, seed=0))
    return training.Placement(LANES).mapped(run, (0, 0, None)), (keys, GIVEN, DATA)


def slots_of_a_mixed_sweep():
    program = SlotProgram(
        CONFIG, MODEL.init, lambda params, extra: params, np.zeros(ROWS), (), ROWS, [CONFIG.lots]
    )
    family = family_of(CONFIG.lots)
    mapped = training.Placement(LANES).mapped
    fed = {
        "key": jax.ShapeDtypeStruct((LANES, 2), jnp.uint32),
        "hyperparameters": GIVEN,
        "expected_lot_size": jax.ShapeDtypeStruct((LANES,), jnp.float32),
        "total_steps": jax.ShapeDtypeStruct((LANES,), jnp.uint32),
        "lots": jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((LANES, *leaf.shape), leaf.dtype),
            family.numbers_of(CONFIG.lots),
        ),
    }
    state = jax.eval_shape(mapped(program.begin, (0,)), fed)
    done = jax.ShapeDtypeStruct((LANES,), jnp.uint32)
    advance = mapped(lambda *rest: program.advance(family, *rest), (0, 0, 0, None, None))
    return advance, (
        state,
        fed,
        done,
        jax.ShapeDtypeStruct((), jnp.uint32),
        (DATA, jax.ShapeDtypeStruct((), jnp.int32)),
    )


@pytest.mark.parametrize("program", [whole_runs, slots_of_a_mixed_sweep])
def test_the_sweep_lowers_for_tpu_with_exact_clipped_sums(program):
    function, shapes = program()
    exported = export.export(jax.jit(function), platforms=["tpu"])(*shapes)
    assert exported.platforms == ("tpu",)
    products = re.findall(r"stablehlo\.dot_general .*", exported.mlir_module())
    exact = [line for line in products if "precision = [HIGHEST, HIGHEST]" in line]
    # The clipped sums of a kernel and a bias for every layer; the others are the model's own
    # products, forwards and backwards, whose rounding one example shares with no other.
    assert len(exact) == 2 * LAYERS
    assert len(products) == len(exact) + LAYERS + (LAYERS - 1)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize(
    ("name", "loops"),
    [("mlp_784_128_64_10", 0), ("text_convolution", 0), ("mixture_of_experts", 0), ("gpt", 2)],
)
def test_a_step_lowers_without_wide_numbers_or_serial_loops(name, loops, platform, monkeypatch):
    """Loops: of places that are equal, steps, micro-batches, and the model's scans both ways."""
    problem = ZOO[name](True, ROWS)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (problem.params, problem.records)
    )
    config = dataclasses.replace(CONFIG, loss_fn=problem.loss, micro_batch_size=4)
    key = jax.eval_shape(lambda: training.candidate_keys(1, seed=0)[0])
    given = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in GIVEN}
    train = jax.jit(training.make_train(config))
    if platform == "tpu" and name == "text_convolution":
        monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
        with pytest.raises(NotImplementedError, match="no proven sum on a TPU.*jax.nn.one_hot"):
            export.export(train, platforms=[platform])(key, given, *shapes)
        return
    module = export.export(train, platforms=[platform])(key, given, *shapes).mlir_module()
    wide = re.findall(r"tensor<(?:\d+x)*(?:f64|i64|ui64)>", module)
    # On a GPU places are sorted by words of 64 bits, and tables are summed in float64.
    assert platform == "cuda" or not wide
    assert len(re.findall(r"stablehlo\.while", module)) == 3 + loops
