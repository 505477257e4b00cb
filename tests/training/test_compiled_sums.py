"""What compiled programs add up, and what they tell of the number of records.

A sum over records that slides is one of many addends in float32: none of the compiled program may
be longer than a block. That holds for a GPU's program by the same text.
"""

import collections
import functools
import math
import re

import flax.linen as nn
import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tuners

from dpjax import training, tuning

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
SHAPE = re.compile(r"%([\w.-]+) = (\w+)\[([\d,]*)\]")
OPERATION = re.compile(
    r"%[\w.-]+ = (\w+)\[[\d,]*\]\S* (dot|convolution|reduce|scatter|reduce-window)\((.*?)\)(.*)"
)


def long_sums(text):
    """Sums in float32 or less of an optimised program: (operation, addends), and its scatters."""
    shapes = {
        name: [int(size) for size in sizes.split(",") if size]
        for name, _, sizes in SHAPE.findall(text)
    }
    found, scattered = collections.Counter(), []
    for kind, name, operands, rest in OPERATION.findall(text):
        first, *others = [shapes.get(each.strip().split("%")[-1]) for each in operands.split(",")]
        if kind not in ("f32", "bf16", "f16"):
            continue
        if name == "scatter":
            scattered.append((kind, first))
        elif name == "dot":
            axes = re.search(r"lhs_contracting_dims={([\d,]*)}", rest)[1]
            found[name, math.prod(first[int(axis)] for axis in axes.split(",") if axis)] += 1
        elif name == "reduce" and _adds(text, rest):
            axes = re.search(r"dimensions={([\d,]*)}", rest)[1]
            found[name, math.prod(first[int(axis)] for axis in axes.split(",") if axis)] += 1
        elif name == "convolution":
            labels = re.search(r"dim_labels=\w+_(\w+)->", rest)[1]
            found[name, math.prod(others[0]) // others[0][labels.index("o")]] += 1
        elif name == "reduce-window" and _adds(text, rest):
            window = re.search(r"size=([\dx]+)", rest)[1]
            found[name, math.prod(map(int, window.split("x")))] += 1
    return found, scattered


def _adds(text, rest):
    """Whether what a reduction applies is an addition, not a maximum."""
    applied = re.escape(re.search(r"to_apply=%([\w.-]+)", rest)[1])
    body = re.search(rf"%{applied} \(.*?\n}}", text, re.DOTALL)[0]
    return " add(" in body


def _dense(params, row):
    hidden = jnp.tanh(row[0] @ params["kernel"] + params["bias"])
    return jnp.sum(jnp.square(hidden @ params["out"] - row[1]))


def _positions(params, row):
    hidden = params["table"][row[0]] @ params["kernel"]
    return jnp.sum(jnp.square(hidden.mean(axis=0) - row[1]))


def _convolved(params, row):
    numbers = ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(
        row[0][None], params["kernel"], (2, 2), "SAME", dimension_numbers=numbers
    )
    return jnp.sum(jnp.square(jnp.mean(jnp.tanh(out), axis=(0, 1, 2)) - row[1]))


def _penalised(params, row):
    return jnp.sum((row[0] @ params["kernel"]) * row[1]) + jnp.sum(params["kernel"] ** 2)


ROWS = 1500
MODELS = {
    "dense": (_dense, {"kernel": (9, 7), "bias": (7,), "out": (7, 3)}, [(9,), (3,)]),
    "positions and a table": (_positions, {"table": (11, 9), "kernel": (9, 3)}, [(4,), (3,)]),
    "convolution": (_convolved, {"kernel": (3, 3, 2, 5)}, [(4, 4, 2), (5,)]),
    "shared": (_penalised, {"kernel": (8, 8)}, [(8,), (8,)]),
}


@functools.cache
def compiled(name, size, method="auto"):
    loss, shapes, rows = MODELS[name]
    config = training.TrainConfig(
        loss_fn=loss, lots=training.PoissonLots(ROWS, 0.3, 600), steps=2, expected_lot_size=450,
        optimizer=training.sgd(), micro_batch_size=size,
    )  # fmt: skip
    params = {key: jnp.ones(shape) for key, shape in shapes.items()}
    data = tuple(
        np.zeros((ROWS, *shape), np.int32 if "table" in params and not place else np.float32)
        for place, shape in enumerate(rows)
    )
    given = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1}
    if method != "auto":
        grad_fn = training.clipped_grad(loss, method=method)
        run = jax.jit(lambda p, d: grad_fn(p, d, 1.0, stored=True))
        lowered = run.lower(params, jax.tree.map(lambda leaf: leaf[:600], data))
    else:
        run = jax.jit(training.make_train(config))
        lowered = run.lower(jax.random.key(0), given, params, data, np.int32(ROWS))
    return lowered.compile(compiler_options=OPTIMISED).as_text()


@pytest.mark.parametrize(
    ("name", "size", "method"),
    [(name, None, "auto") for name in MODELS]
    + [("dense", 200, "auto"), ("convolution", 150, "auto"), ("positions and a table", 600, "mat")],
)
def test_no_sum_in_float32_is_longer_than_a_block(name, size, method):
    """600 rows of a lot; of every row less than 100 numbers are added up."""
    text = compiled(name, size, "materialised" if method == "mat" else "auto")
    found, scattered = long_sums(text)
    assert sum(found.values()) > 2  # it does see them
    most = held_back.block_rows(600) + 4
    assert max(addends for _, addends in found) <= most, found
    # What is looked up is added up in float64, by one scatter; a row's own norm has its own.
    assert not [shape for _, shape in scattered if math.prod(shape) == 11 * 9]
    if name == "positions and a table" and method == "auto":
        assert re.search(r"f64\[[\d,]*11,9\]\S* scatter\(", text)


def test_a_plain_gradients_sum_is_as_long_as_its_batch():
    """So that the test above can fail."""
    loss, shapes, rows = MODELS["dense"]

    def mean(params, data):
        return jnp.mean(jax.vmap(loss, (None, 0))(params, data))

    params = {key: jnp.ones(shape) for key, shape in shapes.items()}
    data = tuple(np.zeros((600, *shape), np.float32) for shape in rows)
    text = jax.jit(jax.grad(mean)).lower(params, data).compile(compiler_options=OPTIMISED).as_text()
    assert max(addends for _, addends in long_sums(text)[0]) >= 600


# The number of records ----------------------------------------------------------------------------


def _task(training_records, validation_records):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 90).astype(np.int32)
    inputs = (generator.normal(size=(90, 3)) + 2 * labels[:, None]).astype(np.float32)

    def part(first, number, bound):
        own = slice(first, first + number)
        return tuning.Records(
            (inputs[own], labels[own]), public_size=bound - 3, size_bound=bound,
            identifiers=np.arange(90)[own], stable_under_removal=True,
        )  # fmt: skip

    return tuning.classification(
        nn.Dense(2), part(0, training_records, 53), part(53, validation_records, 33)
    )


def programs(name, folder, *numbers):
    """All that one run of a tuner compiles, as text, constants included."""
    jax.clear_caches()
    folder.mkdir()
    jax.config.update("jax_dump_ir_to", str(folder))
    try:
        tiny_tuners.run(name, task=_task(*numbers), seed=1)
    finally:
        jax.config.update("jax_dump_ir_to", "")
    texts = (re.sub(r"loc\(.*\)|#loc.*", "", each.read_text()) for each in folder.iterdir())
    return collections.Counter(texts)


PREDICTS = re.compile(r"module @jit__(lambda|argmax)\b")
"""Predictions by the released parameters, for what the curator is warned of alone."""


@pytest.mark.parametrize("name", ["random_repetitions", "doubling"])
def test_no_program_of_a_tuner_depends_on_the_number_of_records(name, tmp_path):
    """Neither its shapes nor its constants; with one training and one validation record less."""
    more, less = (
        programs(name, tmp_path / str(number), number, number - 20) for number in (50, 49)
    )
    other = [text for text in (more - less) + (less - more) if not PREDICTS.search(text)]
    assert not other, other[0][:3000]
    assert sum("while" in text for text in more) >= 1  # training is among them
