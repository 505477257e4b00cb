"""Scattering against sums written out in float64, and what it must leave alone."""

import dataclasses

import numpy as np
import pytest

from dpjax.data import source
from experiments.data_sets import scattering


def _images(*shape, seed=0):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def _convolved(image, kernel, step):
    """Periodic convolution at every `step`-th pixel, by the sum that defines it."""
    height, width = image.shape
    y, x = np.mgrid[:height, :width]
    out = np.empty((height // step, width // step), complex)
    for row in range(0, height, step):
        for column in range(0, width, step):
            moved = kernel[(row - y) % height, (column - x) % width]
            out[row // step, column // step] = np.sum(image * moved)
    return out


def _written_out(image):
    """81 paths (81, height / 4, width / 4), by sums in float64."""
    sides = image.shape
    angles = [np.pi * angle / 8 for angle in range(8)]
    small, large = (
        [scattering._wavelet(sides, scale, angle) for angle in angles] for scale in (0, 1)
    )
    average = scattering._average(sides)
    first = [abs(_convolved(image, kernel, 1)) for kernel in small]
    second = [abs(_convolved(image, kernel, 2)) for kernel in large]
    both = [abs(_convolved(one, kernel, 2)) for one in first for kernel in large]
    # At half the pixels the average weighs every second one, four times as much.
    halved = 4 * average[::2, ::2]
    fine = [_convolved(one, average, 4).real for one in (image, *first)]
    return np.stack(fine + [_convolved(one, halved, 2).real for one in (*second, *both)])


def test_paths_are_the_sums_written_out():
    image = _images(8, 16)
    found = np.asarray(scattering.paths(image[None]))[0]
    np.testing.assert_allclose(found, _written_out(image.astype(np.float64)), atol=2e-6)


@pytest.mark.parametrize("scale", [0, 1])
def test_a_wavelet_is_a_wave_under_a_gaussian_less_its_mean(scale):
    kernel = scattering._wavelet((64, 64), scale, 0.0)
    assert abs(kernel.sum()) < 1e-12
    deviation, frequency = 0.8 * 2**scale, 0.75 * np.pi / 2**scale
    places = np.arange(-20, 21)
    gauss = np.exp(-(places**2) / (2 * deviation**2))
    wave = np.exp(1j * frequency * places)
    wanted = gauss * (wave - np.sum(gauss * wave) / np.sum(gauss))
    # Along the wave, and beside it, where the envelope is twice as wide.
    np.testing.assert_allclose(kernel[places, 0] / kernel[0, 0], wanted / wanted[20], atol=1e-12)
    beside = np.exp(-(places**2) / (8 * deviation**2))
    np.testing.assert_allclose(kernel[0, places] / kernel[0, 0], beside, atol=1e-12)


def test_a_constant_image_has_its_average_and_nothing_else():
    found = np.asarray(scattering.paths(np.full((1, 16, 16), 0.3, np.float32)))[0]
    np.testing.assert_allclose(found[0], 0.3, atol=1e-6)
    np.testing.assert_allclose(found[1:], 0.0, atol=1e-6)


def test_shifting_by_a_kept_pixel_shifts_the_features():
    image = _images(1, 16, 16)
    moved = np.roll(image, (4, 8), axis=(1, 2))
    wanted = np.roll(np.asarray(scattering.paths(image)), (1, 2), axis=(2, 3))
    np.testing.assert_allclose(np.asarray(scattering.paths(moved)), wanted, atol=1e-6)


def test_turning_by_a_right_angle_moves_every_angle_by_four():
    image = _images(16, 16)
    turned = image.T[::-1]  # (y, x) -> (-x, y), about a pixel of the periodic grid
    turned = np.roll(turned, 1, axis=0)
    plain, other = (np.asarray(scattering.paths(one[None]))[0] for one in (image, turned))

    def back(path):
        return np.roll(path, -1, axis=0)[::-1].T

    four = (np.arange(8) + 4) % 8
    for start in (1, 9):
        for angle in range(8):
            np.testing.assert_allclose(
                back(other[start + four[angle]]), plain[start + angle], atol=1e-5
            )
    for first in range(8):
        for second in range(8):
            np.testing.assert_allclose(
                back(other[17 + 8 * four[first] + four[second]]),
                plain[17 + 8 * first + second],
                atol=1e-5,
            )


def test_groups_are_normalised_within_each_record():
    found = np.asarray(scattering.scattering(_images(3, 28, 28, 1)))
    assert found.shape == (3, 8, 8, 81)
    groups = np.moveaxis(found, -1, 1).reshape(3, 27, -1)
    np.testing.assert_allclose(groups.mean(axis=-1), 0.0, atol=1e-5)
    planes = np.pad(_images(3, 28, 28, 1)[..., 0], ((0, 0), (2, 2), (2, 2)))
    before = np.asarray(scattering.paths(planes)).reshape(3, 27, -1).var(axis=-1)
    np.testing.assert_allclose(groups.var(axis=-1), before / (before + 1e-5), rtol=1e-3)


def test_padding_is_even_and_channels_are_apart():
    image = _images(2, 6, 8, 2)
    padded = np.pad(image, ((0, 0), (1, 1), (0, 0), (0, 0)))
    found = np.asarray(scattering.scattering(image))
    np.testing.assert_array_equal(found, np.asarray(scattering.scattering(padded)))
    assert found.shape == (2, 2, 2, 162)


def test_more_records_than_are_mapped_at_once():
    images = _images(7, 8, 8, 1)
    whole = scattering.apply(images)
    np.testing.assert_allclose(scattering.apply(images, at_once=3), whole, atol=1e-6)


def test_no_record_at_all():
    none = scattering.apply(_images(0, 28, 28, 1))
    assert none.shape == (0, *scattering.shape((28, 28, 1)))


def test_features_of_a_record_do_not_depend_on_the_others():
    images = _images(40, 8, 8, 1)
    member = np.arange(40) % 3 == 0
    np.testing.assert_array_equal(
        scattering.apply(images[member]), scattering.apply(images)[member]
    )


@pytest.mark.parametrize("name", ["mnist", "cifar10_subset"])
def test_a_data_set_keeps_everything_but_its_inputs(name):
    """Read from the same files, with the same labels, identifiers and public numbers."""
    images, mapped = source.SOURCES[name], source.SOURCES[f"{name}_scattering"]
    changed = {"name", "description", "input_shape", "encode"}
    for field in dataclasses.fields(source.Source):
        if field.name not in changed:
            assert getattr(mapped, field.name) == getattr(images, field.name), field.name
    pixels = np.random.default_rng(0).integers(0, 256, (3, *images.input_shape), np.uint8)
    found = mapped.encode(pixels)
    np.testing.assert_array_equal(found, scattering.apply(images.encode(pixels)))
    assert found.shape == (3, *mapped.input_shape)


def _slant(image):
    """The covariance of ink's row and column over the variance of its row."""
    ink = image[..., 0].astype(np.float64) / image.sum()
    y, x = np.mgrid[: ink.shape[0], : ink.shape[1]]
    down, across = y - np.sum(ink * y), x - np.sum(ink * x)
    return np.sum(ink * down * across) / np.sum(ink * down**2)


def test_upright_ink_has_no_slant():
    bar = np.zeros((28, 28, 1), np.float32)
    for row in range(6, 22):
        bar[row, row // 2 + 5 : row // 2 + 9] = 1.0  # Half a column a row.
    found = np.asarray(scattering.upright(bar[None]))[0]
    assert _slant(bar) == pytest.approx(0.5, abs=0.05)
    assert abs(_slant(found)) < 0.02
    assert found.sum() == pytest.approx(bar.sum(), rel=1e-5)
    np.testing.assert_allclose(found[6], found[21], atol=0.6)


def test_upright_leaves_what_does_not_lean():
    even = _images(1, 12, 12, 2)
    even = even + even[:, :, ::-1]
    row = np.zeros((1, 12, 12, 1), np.float32)
    row[0, 3] = 1.0
    for images in (even, row, np.zeros_like(row)):
        np.testing.assert_allclose(scattering.upright(images), images, atol=1e-5)


def test_upright_is_a_setting_of_mnist_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    mapped, images = source.SOURCES["mnist_scattering"], source.SOURCES["mnist"].encode(pixels)
    found = mapped.encode(pixels, upright=True)
    np.testing.assert_allclose(found, scattering.apply(scattering.upright(images)), atol=1e-4)
    assert not np.allclose(found, scattering.apply(images), atol=0.1)
    with pytest.raises(ValueError, match="has no upright"):
        source.SOURCES["cifar10_subset_scattering"].check_settings({"upright": True})
