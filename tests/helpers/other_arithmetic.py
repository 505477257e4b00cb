"""The arithmetic of another machine: library functions whose results differ in their last bits.

Processors, compilers and versions of NumPy and SciPy disagree about the last bits of exp, log, erf
or a Fourier transform, never about a sum of two numbers. So what is not correctly rounded by
IEEE 754 is replaced, while `jittered` is active, by itself times 1 + a random unit or two.
"""

import contextlib
import math
import types

import numpy as np
from scipy import fft, signal, special

UNIT = 2.0**-53

EXACT = {
    *("absolute", "add", "ceil", "copysign", "divide", "fabs", "floor", "floor_divide", "fmod"),
    *("fmax", "fmin", "frexp", "ldexp", "maximum", "minimum", "modf", "multiply", "negative"),
    *("nextafter", "positive", "reciprocal", "remainder", "rint", "sign", "spacing", "sqrt"),
    *("square", "subtract", "trunc", "conjugate", "heaviside", "divmod", "float_power"),
    *("matmul", "vecdot", "matvec", "vecmat"),
}
"""Functions of NumPy that every machine rounds alike, or that take no `float64` here."""


def jittered(seed):
    """A context in which inexact functions return what another machine might.

    Args:
      seed: of the errors.
    """

    def noisy(value, name):
        if isinstance(value, tuple):
            return tuple(noisy(part, name) for part in value)
        if not isinstance(value, float | np.floating | np.ndarray):
            return value
        array = np.asarray(value)
        if array.dtype != np.float64:
            return value
        # One machine gives one answer to one question: the error follows from the answer.
        bits = array.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * (seed + 7 * len(name)))
        units = (bits >> np.uint64(40)).astype(np.int64) % 5 - 2
        # Whole numbers, zeros and infinities among them, are exact on every machine.
        with np.errstate(invalid="ignore"):
            moved = np.where(array == np.round(array), array, array * (1.0 + units * UNIT))
        return moved if isinstance(value, np.ndarray) else type(value)(moved)

    def spread(value, name):
        """A transform's errors are of the size of its largest numbers everywhere."""
        random = np.random.default_rng([seed, *np.ascontiguousarray(value).view(np.uint8)[:256]])
        scale = 4.0 * UNIT * float(np.sqrt(np.mean(np.abs(value) ** 2)))
        moved = value + scale * random.standard_normal(value.shape)
        return moved.astype(value.dtype)

    def wrapped(function, name, error):
        def call(*args, **kwargs):
            if "out" in kwargs or "where" in kwargs:
                return function(*args, **kwargs)
            return error(function(*args, **kwargs), name)

        for method in ("reduce", "accumulate", "outer", "at"):
            if hasattr(function, method):
                setattr(call, method, getattr(function, method))
        return call

    replaced = []
    for module, functions, error in (
        (np, _ufuncs(np), noisy),
        (np, ["sum", "interp", "geomspace"], noisy),
        (math, _of_floats(math), noisy),
        (special, _ufuncs(special), noisy),
        (special, ["logsumexp"], noisy),
        (signal, ["lfilter"], noisy),
        (fft, ["rfft", "irfft", "fft", "ifft"], spread),
        (np.fft, ["rfft", "irfft", "fft", "ifft"], spread),
    ):
        for name in functions:
            replaced.append((module, name, getattr(module, name), error))

    @contextlib.contextmanager
    def active():
        try:
            for module, name, function, error in replaced:
                setattr(module, name, wrapped(function, name, error))
            yield
        finally:
            for module, name, function, _ in replaced:
                setattr(module, name, function)

    return active()


def _ufuncs(module):
    names = [name for name in dir(module) if isinstance(getattr(module, name), np.ufunc)]
    of_floats = [n for n in names if any("->d" in kind for kind in getattr(module, n).types)]
    return [name for name in of_floats if getattr(module, name).__name__ not in EXACT]


def _of_floats(module):
    exact = {"ceil", "floor", "trunc", "fabs", "copysign", "fsum", "isclose", "isfinite", "isinf"}
    exact |= {"isnan", "ldexp", "frexp", "modf", "fmod", "remainder", "nextafter", "ulp", "sqrt"}
    exact |= {"isqrt", "gcd", "lcm", "comb", "perm", "factorial", "prod", "fma", "sumprod"}
    return [
        name
        for name in dir(module)
        if isinstance(getattr(module, name), types.BuiltinFunctionType) and name not in exact
    ]
