"""Convolutions by implicit products are those of `jax.lax`; a loss has them if it asks for them.

Kernels are interpreted here. Numbers are whole where sums must be exact.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.extend.core import jaxprs_in_params

from dpjax import models, training
from dpjax.training import clipped_grad, users
from dpjax.training.clipping import implicit_convolution
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions, Tile
from dpjax.training.clipping.jaxpr_graph import evaluate, graph_of

IMAGES, ROWS_FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
MIXED, SEQUENCE = ("HWNC", "IHWO", "CNHW"), ("NWC", "WIO", "NWC")
EXPLICIT = ((2, 0), (1, 3))

CASES = [
    # axes, height and width, kernel, channels in and out, what else
    (IMAGES, (6, 7), (3, 3), (1, 5), {}),
    (IMAGES, (7, 6), (3, 3), (20, 18), {"window_strides": (2, 2)}),
    (IMAGES, (9, 8), (3, 2), (70, 3), {"window_strides": (2, 3)}),
    (IMAGES, (8, 8), (5, 5), (16, 17), {"window_strides": (3, 1), "padding": EXPLICIT}),
    (IMAGES, (9, 9), (3, 3), (17, 10), {"rhs_dilation": (2, 1)}),
    (ROWS_FIRST, (7, 8), (3, 3), (18, 4), {"padding": ((-1, 2), (1, -2))}),
    (MIXED, (5, 6), (3, 2), (2, 65), {"padding": ((0, 2), (3, 0)), "window_strides": (1, 2)}),
    (IMAGES, (5, 5), (1, 1), (4, 3), {"window_strides": (2, 2), "padding": "VALID"}),
    (SEQUENCE, (11,), (5,), (20, 6), {"window_strides": (2,)}),
    (IMAGES, (4, 4), (3, 3), (16, 4), {"lhs_dilation": (2, 3), "padding": ((2, 1), (1, 1))}),
]
TILES = [Tile(pixels=16, taps=2), Tile(pixels=32, taps=4)]


def _operations(specs, sizes, taps, channels, window, images=1, dtype=jnp.float32):
    """The convolutions of one example, forward and back, each with its operands and its result."""
    drawn = np.random.default_rng(0)

    def ordered(letters, spec, lengths):
        lengths = dict(zip(letters, lengths, strict=True))
        return jnp.asarray(drawn.integers(-3, 4, [lengths[letter] for letter in spec]), dtype)

    spatial = "HW" if len(sizes) == 2 else "W"
    image = ordered(f"N{spatial}C", specs[0], (images, *sizes, channels[0]))
    kernel = ordered(f"{spatial}IO", specs[1], (*taps, *channels))
    window = {"window_strides": (1,) * len(sizes), "padding": "SAME"} | window

    def convolved(image, kernel):
        return jax.lax.conv_general_dilated(image, kernel, dimension_numbers=specs, **window)

    shape = jax.eval_shape(convolved, image, kernel).shape
    out = jnp.asarray(drawn.integers(-3, 4, shape), dtype)
    graph = graph_of(
        jax.make_jaxpr(lambda out, *each: (convolved(*each), jax.vjp(convolved, *each)[1](out)))(
            out, image, kernel
        )
    )
    found = [each for each in graph.operations if each.name == "conv_general_dilated"]
    given = [out, image, kernel]
    for operation in found[-3:]:  # forward, the kernel's gradient, the image's
        operands = evaluate(graph, given, operation.inputs)
        yield operation.params, operands, evaluate(graph, given, operation.outputs)[0]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_have_the_values_of_convolutions(number):
    case, tile = CASES[number], TILES[number % 2]
    forward, of_kernel, of_image = _operations(*case)
    for params, operands, wanted in (forward, of_image):
        assert implicit_convolution.convolves(params, *operands)
        found = implicit_convolution.convolve(params, wanted.dtype, *operands, tile)
        np.testing.assert_array_equal(found, wanted)
    params, operands, wanted = of_kernel
    spread = set(params["lhs_dilation"]) != {1}
    assert implicit_convolution.forms_gradients(params, *operands) == (not spread)
    if not spread:
        found = implicit_convolution.kernel_gradient(params, *operands, tile)
        np.testing.assert_array_equal(found, wanted)


def test_several_images_are_convolved_one_by_one():
    case = (IMAGES, (5, 6), (3, 3), (3, 4), {})
    (params, operands, wanted), of_kernel, _ = _operations(*case, images=2)
    found = implicit_convolution.convolve(params, wanted.dtype, *operands)
    np.testing.assert_array_equal(found, wanted)
    assert not implicit_convolution.forms_gradients(of_kernel[0], *of_kernel[1])


def test_narrow_types_are_added_up_in_a_wide_one():
    case = (IMAGES, (1, 2), (1, 2), (3, 2), {"padding": "VALID"})
    (params, (image, kernel), _), (of_kernel, *_), _ = _operations(*case, dtype=jnp.bfloat16)
    # In bfloat16, 256 + 1 is 256.
    image, kernel = jnp.ones_like(image).at[0, 0, 0, 0].set(256), jnp.ones_like(kernel)
    found = implicit_convolution.convolve(params, jnp.bfloat16, image, kernel)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), 260.0)  # 261, rounded once
    case = (IMAGES, (1, 2), (1, 1), (3, 2), {"padding": "VALID"})
    _, (of_kernel, (_, out), _), _ = _operations(*case, dtype=jnp.bfloat16)
    found = implicit_convolution.kernel_gradient(of_kernel, image, jnp.ones_like(out))
    assert found.dtype == jnp.float32 and found[0, 0, 0, 0] == 257


def test_halves_are_finer_than_ten_bits_and_precise_products_are_whole():
    drawn = np.random.default_rng(0)
    (params, operands, wanted), (of_kernel, kernels, _), _ = _operations(*CASES[1])
    operands, kernels = (
        [jnp.asarray(drawn.normal(size=each.shape), jnp.float32) for each in given]
        for given in (operands, kernels)
    )
    split = Tile(halves=True)
    for form in (
        lambda params, tile: implicit_convolution.convolve(params, wanted.dtype, *operands, tile),
        lambda params, tile: implicit_convolution.kernel_gradient(
            of_kernel | {"precision": params["precision"]}, *kernels, tile
        ),
    ):
        whole = form(params, Tile())
        apart = np.abs(form(params, split) - whole).max() / np.abs(whole).max()
        assert 1e-8 < apart < 2**-14
        for precise in (jax.lax.Precision.HIGHEST, (None, jax.lax.Precision.HIGH)):
            given = params | {"precision": precise}
            np.testing.assert_array_equal(form(given, split), whole)
            text = str(jax.make_jaxpr(lambda: form(given, split))())  # noqa: B023
            assert "HIGHEST" in text
        assert "HIGHEST" not in str(jax.make_jaxpr(lambda: form(params, split))())  # noqa: B023


# What is refused ---------------------------------------------------------------------------------


def _shapes(*shapes, dtype=np.float32):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def test_what_kernels_do_not_take_is_refused():
    params = next(_operations(*CASES[1]))[0] | {"precision": None}
    plain = _shapes((1, 7, 6, 20), (3, 3, 20, 18))

    def refused(operands=plain, **changes):
        return not implicit_convolution.convolves(params | changes, *operands)

    assert not refused()
    assert refused(feature_group_count=2) and refused(batch_group_count=2)
    assert refused(lhs_dilation=(2, 1)) and refused(
        window_strides=(1, 1), lhs_dilation=(2, 1), rhs_dilation=(2, 1)
    )
    assert not refused(window_strides=(1, 2), lhs_dilation=(2, 1), rhs_dilation=(1, 3))
    for dtype in (np.float64, np.complex64, np.int32, np.float16):
        assert refused(_shapes((1, 7, 6, 20), (3, 3, 20, 18), dtype=dtype))
    assert refused([plain[0], *_shapes((3, 3, 20, 18), dtype=jnp.bfloat16)])
    assert refused(precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32)
    assert refused(_shapes((0, 7, 6, 20), (3, 3, 20, 18)))
    assert refused(_shapes((1, 7, 6, 0), (3, 3, 0, 18)))
    assert refused(padding=((-8, 0), (0, 0)))
    assert refused(_shapes((1, 2**14, 2**13, 20), (3, 3, 20, 18)))
    numbers = jax.lax.ConvDimensionNumbers((0, 4, 1, 2, 3), (4, 3, 0, 1, 2), (0, 4, 1, 2, 3))
    three = {name: params[name] + params[name][:1] for name in ("padding", "window_strides")}
    three |= dict.fromkeys(("lhs_dilation", "rhs_dilation"), (1, 1, 1))
    assert refused(_shapes((1, 5, 5, 5, 2), (3, 3, 3, 2, 4)), dimension_numbers=numbers, **three)


# Losses ------------------------------------------------------------------------------------------


class _Net(nn.Module):
    """Convolutions of several kinds; the grouped one is not taken."""

    @nn.compact
    def __call__(self, inputs):
        hidden = jnp.tanh(nn.Conv(6, (3, 3))(inputs))
        hidden = jnp.tanh(nn.Conv(18, (3, 3), (2, 2))(hidden))
        hidden = jnp.tanh(nn.Conv(6, (3, 3), feature_group_count=2)(hidden))
        hidden = jnp.tanh(nn.ConvTranspose(4, (2, 2), (2, 2))(hidden))
        return nn.Conv(4, (3, 3))(hidden).mean(axis=(1, 2))


TAKEN = 4 + 3 + 3
"""Forward; gradients of images, which the first needs not; of kernels, but the transposed one's."""


def _problem():
    net, drawn = _Net(), np.random.default_rng(0)
    images = drawn.normal(size=(3, 6, 6, 2)).astype(np.float32)
    params = net.init(jax.random.key(0), images[:1])

    def loss(params, example):
        return models.cross_entropy(net.apply(params, example[0][None])[0], example[1])

    return loss, params, (images, np.arange(3))


def _launches(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments)).count("pallas_call")


def _apart(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return np.sqrt(sum(np.sum(np.square(np.asarray(a, float) - b)) for a, b in pairs))


def test_a_loss_that_asks_has_the_same_clipped_sum_and_only_it_has_kernels():
    loss, params, batch = _problem()
    usual = jax.jit(lambda *given: clipped_grad(loss)(*given)[0])
    implicit = jax.jit(lambda *given: clipped_grad(ImplicitConvolutions(loss))(*given)[0])
    # Candidates side by side: parameters and clip norms differ.
    candidates = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    norms = jnp.array([0.1, 0.02])
    given = (candidates, batch, norms)
    wanted, found = (jax.vmap(form, (0, None, 0))(*given) for form in (usual, implicit))
    for number, norm in enumerate(norms):
        own = (jax.tree.map(lambda leaf: leaf[number], tree) for tree in (wanted, found))  # noqa: B023
        assert _apart(*own) < 1e-6 * norm
    assert _launches(usual, params, batch, 0.1) == 0
    assert _launches(implicit, params, batch, 0.1) == TAKEN


def test_training_hands_the_wish_on():
    loss, params, records = _problem()

    def launches(loss):
        config = training.TrainConfig(
            loss_fn=loss,
            lots=training.FixedLots(3, 2),
            steps=1,
            expected_lot_size=2,
            optimizer=training.sgd(),
        )
        given = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 1.0}
        return _launches(training.make_train(config), jax.random.key(0), given, params, records)

    assert launches(loss) == 0
    assert launches(ImplicitConvolutions(loss)) == TAKEN


def test_the_loss_of_a_user_hands_the_wish_on():
    """Kernels' gradients of several records are formed without them."""
    loss, params, records = _problem()
    grouped, _ = users.group(records, np.array([0, 0, 1]), 2)
    usual, implicit = (
        jax.jit(lambda *given, form=form: clipped_grad(training.per_user(form))(*given, 0.1)[0])
        for form in (loss, ImplicitConvolutions(loss))
    )
    assert _apart(*(form(params, grouped) for form in (usual, implicit))) < 1e-6 * 0.1
    assert _launches(usual, params, grouped) == 0
    assert _launches(implicit, params, grouped) == 4 + 3


def test_loops_have_kernels():
    """Three layers by a scan: those forward and back; kernels' gradients are formed behind it."""
    drawn = np.random.default_rng(0)
    kernels = jnp.asarray(0.3 * drawn.normal(size=(3, 3, 3, 2, 2)), jnp.float32)
    images = drawn.normal(size=(2, 5, 4, 2)).astype(np.float32)

    def loss(kernels, image):
        def layer(hidden, kernel):
            numbers = ("NHWC", "HWIO", "NHWC")
            found = jax.lax.conv_general_dilated(
                hidden, kernel, (1, 1), "SAME", dimension_numbers=numbers
            )
            return jnp.tanh(found), None

        return jax.lax.scan(layer, image[None], kernels)[0].sum()

    usual, implicit = (clipped_grad(each) for each in (loss, ImplicitConvolutions(loss)))
    wanted, found = (form(kernels, images, 0.5)[0] for form in (usual, implicit))
    assert _apart(wanted, found) < 1e-6 * 0.5
    assert _launches(usual, kernels, images, 0.5) == 0
    assert _launches(implicit, kernels, images, 0.5) == 2


# What follows entry by entry ---------------------------------------------------------------------


def _outside(jaxpr):
    """Yields (primitive, shape of its result, or of what it adds up) of what no kernel does."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            # Triton's places of more than 2^31 entries of one byte would wrap.
            assert all(each.aval.dtype.itemsize > 1 for each in equation.invars + equation.outvars)
            continue
        name = equation.primitive.name
        read = equation.invars if name == "reduce_sum" else equation.outvars
        yield name, read[0].aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from _outside(getattr(inner, "jaxpr", inner))


def _convolved(image, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def _left_of(between, dtype=jnp.float32):
    """Two convolutions to 4 features of 4 x 5 pixels: returns what of their results no kernel does.

    Clipped sums are those of the usual convolutions.
    """
    drawn = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(0.3 * drawn.normal(size=shape), jnp.float32)

    params = {"first": normal(3, 3, 2, 4), "second": normal(3, 3, 4, 4)}
    params["numbers"] = normal(1, 1, 1, 4)
    images = normal(3, 4, 5, 2)

    def loss(params, image):
        numbers = params["numbers"].astype(dtype)
        hidden = _convolved(image[None].astype(dtype), params["first"].astype(dtype))
        hidden = between(hidden, numbers)
        found = between(_convolved(hidden, params["second"].astype(dtype)), numbers, hidden)
        return jnp.sum(jnp.sin(found.astype(jnp.float32).mean((1, 2))))

    usual, implicit = (
        jax.jit(lambda *given, form=form: clipped_grad(form)(*given, 0.5)[0])
        for form in (loss, ImplicitConvolutions(loss))
    )
    allowed = 1e-6 if dtype == jnp.float32 else 2e-2
    assert _apart(*(form(params, images) for form in (usual, implicit))) < allowed * 0.5
    program = jax.make_jaxpr(implicit)(params, images).jaxpr
    return [name for name, shape in _outside(program) if shape[-3:] == (4, 5, 4)]


def _of_features(form):
    return lambda result, bias, *_: form(result + bias)


FOLLOWING = {
    # What is done, and what no kernel does of it: the mean that reads the last layer may do it.
    "tanh": (_of_features(jnp.tanh), {}),
    "relu": (_of_features(nn.relu), {"max": 1}),
    "gelu": (_of_features(nn.gelu), {"tanh": 1}),
    "a residual": (lambda result, bias, before=0.0: nn.relu(result + bias + before), {"max": 1}),
    "a mask": (lambda result, bias, *_: jnp.where(bias > 0, result, nn.relu(result)), {"max": 2}),
    "a number in all": (lambda result, bias, *_: jnp.tanh(result * bias[0, 0, 0, 0]), {"tanh": 1}),
    # One for each row is none for each feature, though there are as many.
    "rows": (lambda result, bias, *_: jnp.tanh(result + bias.reshape(1, 4, 1, 1)), {"tanh": 2}),
    "a mean": (lambda result, bias, *_: jnp.tanh(result - result.mean() + bias), {"tanh": 2}),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_follows_entry_by_entry_is_done_by_the_kernels(name):
    between, wanted = FOLLOWING[name]
    left = _left_of(between)
    assert {each: left.count(each) for each in ("tanh", "max") if each in left} == wanted
    # Biases have their gradients from the kernels; one sum is the loss's mean.
    assert name not in ("tanh", "relu") or left.count("reduce_sum") == 1
    assert "conv_general_dilated" not in left


def test_what_follows_has_the_types_of_the_loss():
    left = _left_of(_of_features(nn.relu), jnp.bfloat16)
    assert left.count("max") == 1


@pytest.mark.parametrize("number", [5, 6, 9])
def test_kernels_combine_results_with_numbers_of_entries_and_of_features(number):
    (params, operands, result), (of_kernel, kernels, _), _ = _operations(*CASES[number])
    drawn, axis = np.random.default_rng(1), params["dimension_numbers"].out_spec[1]
    lengths = [1] * result.ndim
    lengths[axis] = result.shape[axis]
    entries, features = (
        jnp.asarray(drawn.integers(-3, 4, shape), jnp.float32) for shape in (result.shape, lengths)
    )

    def combined(tile, entries, features, one):
        found = tile * features + entries
        return [found, jnp.where(found > one, entries, one)]

    given = entries, features, jnp.float32(2.0)
    following = implicit_convolution.Following(combined, [jnp.float32, jnp.float32])
    found = implicit_convolution.convolve_and(params, following, *operands, *given, tile=TILES[0])
    for each, wanted in zip(found, combined(result, *given), strict=True):
        np.testing.assert_array_equal(each, wanted)
    if set(of_kernel["lhs_dilation"]) == {1}:
        _, sums = implicit_convolution.gradient_and_sums(of_kernel, *kernels, TILES[0])
        right, axis = kernels[1], of_kernel["dimension_numbers"].rhs_spec[0]
        np.testing.assert_array_equal(
            sums, jnp.moveaxis(right, axis, -1).reshape(-1, len(sums)).sum(0)
        )
