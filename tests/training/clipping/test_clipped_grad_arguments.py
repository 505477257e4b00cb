"""`clipped_grad` under transformations, its arguments and refusals, and its explanations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipped_problem import METHODS, ROWS
from clipped_problem import compiled as _compiled
from clipped_problem import grad_fn as _grad_fn
from clipped_problem import loss as _loss
from clipped_problem import norm as _norm
from clipped_problem import problem as _problem
from clipped_problem import row as _row
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import models
from dpjax.training import clipped_grad
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

# Transformations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_vmapped_candidates_equal_unbatched_ones(method):
    params, batch = _problem()
    stretch = jnp.asarray([0.5, 1.0, 2.0])
    candidates = jax.tree.map(lambda leaf: jnp.stack([leaf * s for s in stretch]), params)
    batches = jax.tree.map(lambda leaf: jnp.stack([jnp.roll(leaf, i, 0) for i in range(3)]), batch)
    clip_norms, masks = jnp.asarray([0.1, 1.0, jnp.inf]), jnp.arange(18).reshape(3, 6) % 4 != 0
    alone = _grad_fn(method)
    together = _compiled(jax.vmap(clipped_grad(_loss, method=method)))(
        candidates, batches, clip_norms, masks
    )
    for i in range(3):
        want = alone(*_row((candidates, batches, clip_norms, masks), i))
        got = _row(together, i)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), got, want)


def test_inside_a_scan_with_a_traced_clip_norm_it_is_traced_once():
    params, batch = _problem()
    traces = []

    def loss(p, e):
        traces.append(1)
        return _loss(p, e)

    grad_fn = clipped_grad(loss)

    def step(p, clip_norm):
        summed, aux = grad_fn(p, batch, clip_norm)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, summed), aux.values.mean()

    clip_norms = jnp.linspace(0.1, 1.0, 20)
    _, losses = jax.jit(lambda p: jax.lax.scan(step, p, clip_norms))(params)
    assert losses[-1] < losses[0]
    assert len(traces) <= 4  # the check, the trace, and those of scan itself


def test_a_loss_may_close_over_traced_values_and_print():
    params, batch = _problem()

    def total(offset):
        def loss(p, e):
            jax.debug.callback(lambda _: None, e[1][0, 0])
            return _loss(p, e) * offset

        return clipped_grad(loss)(params, batch, 0.5)[0]

    got, want = _compiled(total)(jnp.float32(0.3)), _compiled(lambda: total(0.3))()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


# Arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_auxiliary_output_and_keys(method):
    params, batch = _problem()

    def loss(p, e, key):
        noise = jax.random.normal(key)
        return _loss(p, e) + noise, {"noise": noise, "tokens": e[0]}

    grad_fn = _compiled(clipped_grad(loss, has_aux=True, with_rng=True, method=method))
    _, aux = grad_fn(params, batch, 0.5, None, jax.random.key(1))
    assert len(np.unique(aux.aux["noise"])) == ROWS
    np.testing.assert_array_equal(aux.aux["tokens"], batch[0])
    want = jax.vmap(_loss, (None, 0))(params, batch) + aux.aux["noise"]
    np.testing.assert_allclose(aux.values, want, rtol=1e-5)
    _, again = grad_fn(params, batch, 0.5, None, jax.random.key(2))
    assert not np.any(again.aux["noise"] == aux.aux["noise"])


def test_norms_are_of_masked_rows_too():
    params, batch = _problem()
    grad_fn = _grad_fn("auto")
    masked = grad_fn(params, batch, 0.5, jnp.zeros(ROWS, bool))
    np.testing.assert_array_equal(masked[1].norms, grad_fn(params, batch, 0.5)[1].norms)
    assert _norm(masked[0]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"params": {"w": 3}}, "parameter w has type int32: pass floating-point parameters only"),
        ({"batch": {"a": np.ones((2, 3)), "b": np.ones((3, 3))}}, "same leading batch axis"),
        ({"batch": np.float32(1)}, "same leading batch axis"),
        ({"mask": np.ones(3, bool)}, r"mask has shape \(3,\): pass one entry for each of 2 rows"),
        ({"clip_norm": -1.0}, "pass a number >= 0"),
        ({"clip_norm": float("nan")}, "pass a number >= 0"),
        ({"clip_norm": np.ones(2)}, r"clip_norm has shape \(2,\): pass a scalar"),
        ({"clip_norm": {"w": 1.0}}, "pass a scalar, or clipping='per_leaf'"),
        ({"rng": 0}, "this loss takes no key"),
        ({"loss": lambda p, e: e * p["w"]}, r"real scalar .* not float32 of shape \(3,\)"),
        ({"loss": lambda p, e: ((e * p["w"]).sum(), 1)}, "not tuple: .* pass has_aux=True"),
        ({"has_aux": True}, "needs a loss that returns a pair"),
        ({"with_rng": True}, "this loss takes a key: pass rng="),
        ({"method": "fast"}, "unknown method 'fast': pass one of auto, factored, materialised"),
        ({"clipping": "layer"}, "unknown clipping 'layer': pass one of global, per_leaf"),
        ({"clipping": "per_leaf", "clip_norm": {"v": 1.0}}, "clip_norm differs from params"),
    ],
)
def test_bad_input_gets_one_line_that_says_what_to_pass(arguments, message):
    defaults = {
        "loss": lambda p, e: (e * p["w"]).sum(),
        "params": {"w": jnp.float32(1)},
        "batch": jnp.ones((2, 3)),
        "clip_norm": 1.0,
    }
    arguments = defaults | arguments
    options = {
        k: arguments.pop(k)
        for k in ("has_aux", "with_rng", "method", "clipping") & arguments.keys()
    }
    with pytest.raises(ValueError, match=message) as raised:
        clipped_grad(arguments.pop("loss"), **options)(**arguments)
    assert "\n" not in str(raised.value)


# Explanations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.LogisticRegression(10), (784,)),
        (models.LinearSVM(2), (123,)),
        (models.MLP((1000,), 10), (784,)),
        (models.MLP((128, 64), 10), (784,)),
    ],
)
def test_shipped_dense_models_hold_no_kernel_gradient(model, shape):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *shape)))

    def loss(p, e):
        return models.cross_entropy(model.apply(p, e[0][None])[0], e[1])

    batch = (jax.ShapeDtypeStruct((256, *shape), "float32"), jax.ShapeDtypeStruct((256,), "int32"))
    explanation = clipped_grad(loss).explain(params, batch)
    for path, each in explanation.items():
        if path.endswith("kernel"):
            assert (each.rule, each.form, each.held) == ("dense", "outer", 0), str(explanation)
        else:
            assert each.rule == "small"


def test_shipped_convolutional_net_forms_only_products_that_are_cheaper():
    model = AllConvNet(10)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))

    def loss(p, e):
        return models.cross_entropy(model.apply(p, e[0][None])[0], e[1])

    batch = (
        jax.ShapeDtypeStruct((256, 28, 28, 1), "float32"),
        jax.ShapeDtypeStruct((256,), "int32"),
    )
    explanation = clipped_grad(loss).explain(params, batch)
    kernels = {path: each for path, each in explanation.items() if path.endswith("kernel")}
    assert len(kernels) == 6
    for each in kernels.values():
        assert each.rule in ("dense", "convolution"), str(explanation)
        assert "cost" in each.reason or each.form == "outer"


def test_gram_is_chosen_for_short_sequences_of_wide_layers_and_the_product_for_long_ones():
    params = {"kernel": jax.ShapeDtypeStruct((256, 512), "float32")}

    def form(positions):
        batch = jax.ShapeDtypeStruct((8, positions, 256), "float32")
        grad_fn = clipped_grad(lambda p, e: jnp.square(e @ p["kernel"]).sum())
        return grad_fn.explain(params, batch)["kernel"]

    assert [form(t).form for t in (1, 2, 32, 128, 512)] == [
        "outer", "gram", "gram", "product", "product"
    ]  # fmt: skip
    assert (form(32).held, form(512).held) == (0, 256 * 512)


def test_an_explanation_prints_as_a_table():
    params, batch = _problem()
    text = str(clipped_grad(_loss).explain(params, batch))
    lines = text.splitlines()
    assert len(lines) == 1 + len(params)
    assert lines[0].split() == ["parameter", "shape", "rule", "norm", "by", "held", "because"]
    assert "one position: 5 + 2 numbers for 5 x 2" in text
    asked = clipped_grad(_loss, method="materialised").explain(params, batch)
    assert {each.rule for each in asked.values()} == {"materialised"}


# Random graphs of dense maps ---------------------------------------------------------------------

_STEPS = ("left", "right", "transposed", "both", "scaled", "branch", "looped", "sliced", "penalty")


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 2)), min_size=1, max_size=5),
    st.floats(0.05, 20.0),
)
def test_random_graphs_equal_their_per_example_gradients(steps, clip_norm):
    draws = np.random.default_rng(len(steps))
    params = [jnp.asarray(draws.normal(size=(3, 3)), jnp.float32) for _ in range(3)]
    batch = jnp.asarray(draws.normal(size=(4, 2, 3)), jnp.float32)

    def loss(params, example):
        hidden, penalty = example, 0.0
        for name, which in steps:
            kernel = params[which]
            match name:
                case "left":
                    hidden = jnp.tanh(hidden @ kernel)
                case "right":
                    hidden = hidden @ jnp.flip(kernel, 0)
                case "transposed":
                    hidden = jnp.tanh(hidden @ kernel.T)
                case "both":
                    hidden = jnp.tanh(hidden @ kernel @ params[0])
                case "scaled":
                    hidden = hidden @ (-0.5 * kernel) / 3
                case "branch":
                    hidden = hidden + jnp.sin(hidden) @ kernel
                case "looped":
                    hidden, _ = jax.lax.scan(
                        lambda h, _, k=kernel: (jnp.tanh(h @ k), None), hidden, None, length=2
                    )
                case "sliced":
                    hidden = jnp.concatenate([hidden @ kernel[:, :1], hidden @ kernel[:, 1:]], -1)
                case "penalty":
                    penalty = penalty + 0.1 * jnp.square(kernel).sum()
        return jnp.square(hidden).sum() + penalty

    @_compiled
    def compute(params, batch):
        return [clipped_grad(loss, method=m)(params, batch, clip_norm) for m in METHODS]

    *ours, (want, want_aux) = compute(params, batch)
    for got, aux in ours:
        np.testing.assert_allclose(aux.norms, want_aux.norms, rtol=1e-4)
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * _norm(want))
    for each in clipped_grad(loss).explain(params, batch).values():
        assert each.rule in ("dense", "shared", "unused")
