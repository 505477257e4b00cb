"""Kernels that are functions of parameters: as per-example gradients, and no product formed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training import clipped_grad

ROWS, INPUTS, WIDTH = 6, 4, 5


def _floats(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


W, SCALE, MASK = _floats(INPUTS, WIDTH), _floats(WIDTH, seed=2), _floats(INPUTS, WIDTH, seed=3) > 0
EXPERTS = _floats(3, INPUTS, WIDTH, seed=4)


def _normalised(w):
    return w / jnp.sqrt(jnp.square(w).sum(axis=0, keepdims=True))


def _standardised(w):
    return (w - w.mean(axis=0, keepdims=True)) / jnp.sqrt(w.var(axis=0, keepdims=True) + 1e-3)


def _convolved(x, kernel):  # x (positions, inputs) as an image (1, positions, 1, inputs)
    image = x.reshape(1, -1, 1, INPUTS)
    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ).reshape(-1, WIDTH)


def _in_a_loop(x, ws, function):
    def layer(hidden, w):
        return jnp.tanh(hidden @ function(w)), None

    return jax.lax.scan(layer, x, ws)[0]


SQUARES = _floats(2, INPUTS, INPUTS, seed=6)
KERNEL = _floats(3, 1, INPUTS, WIDTH, seed=7)

# name -> (parameters, function of (parameters, inputs (positions, INPUTS), the row's number))
CASES = {
    "scaled outputs": ({"w": W, "s": SCALE}, lambda p, x, _: x @ (p["w"] * p["s"][None])),
    "scaled inputs": (
        {"w": W, "s": _floats(INPUTS)},
        lambda p, x, _: x @ (p["w"] / (1 + p["s"] ** 2)[:, None]),
    ),
    "scaled by one number": ({"w": W, "s": SCALE[0]}, lambda p, x, _: x @ (p["w"] * p["s"])),
    "multiplied by a kernel": ({"w": W, "v": W[::-1]}, lambda p, x, _: x @ (p["w"] * p["v"])),
    "masked": ({"w": W}, lambda p, x, _: x @ (p["w"] * MASK)),
    "chosen by a mask": ({"w": W, "v": -W}, lambda p, x, _: x @ jnp.where(MASK, p["w"], p["v"])),
    "masked and penalised": (
        {"w": W},
        lambda p, x, _: x @ (p["w"] * MASK),
    ),
    "masked twice": (
        {"w": W},
        lambda p, x, _: x @ (p["w"] * MASK) + jnp.tanh(x) @ (p["w"] * (W + SCALE[None])),
    ),
    "masked, then turned": (
        {"w": W},
        lambda p, x, _: x @ jnp.pad((p["w"] * W)[:, 1:].T[::-1], ((1, 0), (0, 0))).T,
    ),
    "scaled by the row": ({"w": W}, lambda p, x, n: x @ (p["w"] * (1.0 + n))),
    "outputs masked by the row": (
        {"w": W},
        lambda p, x, n: x @ (p["w"] * (jnp.arange(WIDTH) > n)[None]),
    ),
    "normalised": ({"w": W, "s": SCALE}, lambda p, x, _: x @ (_normalised(p["w"]) * p["s"][None])),
    "standardised": ({"w": W}, lambda p, x, _: x @ _standardised(p["w"])),
    "low rank": (
        {"a": _floats(INPUTS, 2), "b": _floats(2, WIDTH)},
        lambda p, x, _: x @ (W + p["a"] @ p["b"]),
    ),
    "low rank, turned": (
        {"a": _floats(2, INPUTS), "b": _floats(WIDTH, 2)},
        lambda p, x, _: x @ (W.T + p["b"] @ p["a"]).T,
    ),
    "expert": ({"w": EXPERTS}, lambda p, x, n: x @ p["w"][n % 3]),
    "expert, a scaled one": (
        {"w": EXPERTS, "s": SCALE},
        lambda p, x, n: x @ (p["w"][n % 3] * p["s"][None]),
    ),
    "expert outside": (
        {"w": EXPERTS},
        lambda p, x, n: x @ p["w"].at[n].get(mode="fill", fill_value=0.0),
    ),
    "expert, the last for numbers outside": (
        {"w": EXPERTS},
        lambda p, x, n: x @ p["w"].at[n].get(mode="clip"),
    ),
    "two branches": (
        {"w": W, "v": -W},
        lambda p, x, n: jax.lax.cond(n > 2, lambda: jnp.tanh(x @ p["w"]), lambda: x @ p["v"]),
    ),
    "three branches": (
        {"w": W, "v": -W},
        lambda p, x, n: jax.lax.switch(
            n % 3, [lambda: x @ p["w"], lambda: jnp.sin(x @ p["v"]), lambda: jnp.tanh(x @ p["w"])]
        ),
    ),
    "branches within branches": (
        {"w": W, "v": -W},
        lambda p, x, n: jax.lax.cond(
            n > 2,
            lambda: jax.lax.cond(n > 4, lambda: jnp.tanh(x @ p["w"]), lambda: x @ p["v"]),
            lambda: jnp.square(x @ p["w"]),
        ),
    ),
    "branches in a loop": (
        {"w": SQUARES},
        lambda p, x, n: jax.lax.scan(
            lambda h, w: (
                jax.lax.cond(n > 2, lambda: jnp.tanh(h @ w), lambda: jnp.sin(h @ w) * 2),
                None,
            ),
            x,
            p["w"],
        )[0],
    ),
    "scaled in a loop": (
        {"w": SQUARES, "s": _floats(INPUTS)},
        lambda p, x, _: _in_a_loop(x, p["w"], lambda w: w * p["s"][None]),
    ),
    "table of scaled entries": (
        {"w": EXPERTS[0], "s": SCALE, "v": EXPERTS[1]},
        lambda p, x, n: (p["w"] * p["s"][None] * p["v"])[jnp.stack([n % 3, n % 2, n % 3])],
    ),
    "convolution scaled": (
        {"w": KERNEL, "s": SCALE},
        lambda p, x, _: _convolved(x, p["w"] * p["s"].reshape(1, 1, 1, -1)),
    ),
    "convolution masked": (
        {"w": KERNEL},
        lambda p, x, _: _convolved(x, p["w"] * (KERNEL > 0)),
    ),
    "convolution of one of two branches": (
        {"w": KERNEL},
        lambda p, x, n: jax.lax.cond(
            n > 2, lambda: _convolved(x, p["w"]), lambda: _convolved(jnp.sin(x), p["w"])
        ),
    ),
}


def _loss(name):
    function = CASES[name][1]

    def loss(params, example):
        inputs, number, target = example
        penalty = jnp.square(params["w"] * SCALE[None]).sum() if "penalised" in name else 0.0
        return jnp.square(jnp.sin(function(params, inputs, number)) - target).sum() + penalty

    return loss


@functools.cache
def _results(name, positions):
    params, loss = CASES[name][0], _loss(name)
    batch = (
        _floats(ROWS, positions, INPUTS, seed=11),
        jnp.arange(ROWS, dtype=jnp.int32),
        _floats(ROWS, seed=12),
    )

    def compute(params, batch):
        gradients = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        norms = [
            jnp.sqrt(jnp.square(leaf).reshape(ROWS, -1).sum(1))
            for leaf in jax.tree.leaves(gradients)
        ]
        clip_norm = jnp.median(jnp.stack(norms))
        weights = [jnp.minimum(1, clip_norm / jnp.where(norm, norm, 1)) for norm in norms]
        summed = [
            jnp.tensordot(weight, leaf, 1)
            for weight, leaf in zip(weights, jax.tree.leaves(gradients), strict=True)
        ]
        ours = {}
        for method in ("auto", "factored"):
            grad_fn = clipped_grad(loss, method=method, clipping="per_leaf")
            total, aux = grad_fn(params, batch, jax.tree.map(lambda _: clip_norm, params))
            ours[method] = jax.tree.leaves(aux.leaf_norms), jax.tree.leaves(total)
        return norms, summed, ours

    explanation = clipped_grad(loss).explain(params, batch)
    return explanation, jax.tree.map(np.asarray, jax.jit(compute)(params, batch))


@pytest.mark.parametrize("method", ["auto", "factored"])
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("name", list(CASES))
def test_equals_clipped_per_example_gradients(name, positions, method):
    _, (norms, summed, ours) = _results(name, positions)
    for got, want in zip(ours[method][0], norms, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for got, want in zip(ours[method][1], summed, strict=True):
        # Rows that are clipped are shorter by what is held back, more where they cancel.
        np.testing.assert_allclose(got, want, rtol=2.0**-8, atol=2.0**-8 * np.abs(want).max())


@pytest.mark.parametrize("name", list(CASES))
def test_forms_no_product_for_one_position(name):
    explanation, _ = _results(name, 1)
    for path, each in explanation.items():
        assert each.rule != "materialised", f"{path}\n{explanation}"
        if not any(word in name for word in ("convolution", "table", "loop", "branches")):
            # What is held is no larger than a vector.
            assert each.held <= WIDTH, f"{path}\n{explanation}"


def test_a_branch_not_taken_may_hold_anything():
    """Its gradient would be NaN; the row's own is not."""
    params = {"w": W}

    def loss(params, example):
        inputs, number = example
        root = jnp.sqrt(jnp.float32(number))  # its slope at 0 is infinite

        def other():
            return (root * inputs) @ params["w"] * jnp.inf

        hidden = jax.lax.cond(number > 0, lambda: inputs @ params["w"], other)
        return hidden.sum()

    batch = (_floats(2, INPUTS), jnp.asarray([3, 4]))
    summed, aux = clipped_grad(loss)(params, batch, jnp.inf)
    assert np.isfinite(aux.norms).all()
    want = jnp.broadcast_to(batch[0].sum(0)[:, None], W.shape)
    np.testing.assert_allclose(summed["w"], want, rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_contributions_of_cancelling_terms_stay_below_the_clip_norm(size):
    """A long kernel whose length does not matter: the gradient is what two large terms leave."""
    column = np.random.default_rng(0).normal(size=(40, 1)).repeat(6, axis=1)
    params = {"w": jnp.asarray(column, jnp.float32)}

    def loss(params, example):
        # Inputs along the kernel itself, nearly: the gradient of a normalised kernel cancels.
        return jnp.square(example @ _normalised(params["w"])).sum()

    draws = np.random.default_rng(1).normal(size=(8, 40)) * 3e-2
    inputs = size * (np.asarray(params["w"])[:, :1].T + draws).astype(np.float32)
    explanation = clipped_grad(loss).explain(params, jnp.asarray(inputs))
    assert explanation["w"].form == "entrywise"
    for row in inputs:
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
            exact = np.linalg.norm(jax.grad(loss)(wide, jnp.asarray(row, jnp.float64))["w"])
        clip_norm = exact / 2
        summed, aux = jax.jit(clipped_grad(loss))(params, jnp.asarray(row)[None], clip_norm)
        np.testing.assert_allclose(aux.norms[0], exact, rtol=1e-3)
        contribution = np.linalg.norm(np.asarray(summed["w"], np.float64))
        assert 0.9 * clip_norm < contribution <= clip_norm
