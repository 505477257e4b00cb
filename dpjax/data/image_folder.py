"""A folder of images, `folder:PATH`: one subfolder for each class, PNG or JPEG files in it.

The subfolders' names are the names of the classes. They count as public, as do their number and the
size and colours that every image is converted to. The number and the names of the files are
private: no message shows a file's name.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import checks
from dpjax.data import dataset, user_arrays

FOLDER = "folder:"
ENDINGS = (".png", ".jpg", ".jpeg")
_DEEP = ("I", "F")  # Pillow's modes of more than 8 bits a pixel; "I;16" is one.


def pixels(file: Any, image_size: Sequence[int] | None, channels: int) -> np.ndarray:
    """Returns a PNG or JPEG image as (height, width, channels) uint8, resized if a size is given.

    Raises:
      ValueError: if it is no PNG or JPEG image of 8 bits per pixel.
    """
    from PIL import Image  # Imported here, so that nobody else waits for it.

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as opened:
            if opened.mode.startswith(_DEEP):
                raise ValueError("more than 8 bits a pixel")
            image = opened.convert("L" if channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError("is no PNG or JPEG image of 8 bits a pixel") from None
    if image_size is not None:
        image = image.resize((image_size[1], image_size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)


def scaled(found: Sequence[np.ndarray]) -> np.ndarray:
    """Returns images (n, height, width, channels), float32 in [0, 1]."""
    return np.stack(found).astype(np.float32) / np.float32(255.0)


def checked_form(image_size: Any, channels: Any) -> tuple[tuple[int, int], int]:
    """Checks and returns the public size (height, width) and number of channels of the images."""
    size = [checks.whole("each of image_size", one) for one in image_size or ()]
    if len(size) != 2:
        words = ", the height and the width that all images are brought to, such as 64,64"
        raise checks.Refused("pass ", ("image_size", ...), words)
    if channels not in (1, 3):
        raise checks.Refused(("channels", channels), ": pass 3 for colours or 1 for grey")
    return (size[0], size[1]), channels


def load_folder(
    path: str | os.PathLike[str],
    *,
    public_size: int | None = None,
    image_size: Sequence[int] | None = None,
    channels: int = 3,
    size_bound: int | None = None,
    test_folder: str | None = None,
    identified_by: str | None = None,
) -> dataset.Dataset:
    """Returns a data set of the images in a folder, pixels divided by 255.

    Args:
      path: of the folder, which has a subfolder for each class, named after it.
      public_size: a public, nominal number of training records.
      image_size: the public height and width that every image is resized to.
      channels: 3 for colours, 1 for grey.
      size_bound: a public upper bound on the number of records; `public_size` unless given.
      test_folder: path of a folder of test images, with the same subfolders.
      identified_by: as in `from_arrays`.

    Raises:
      FileNotFoundError: if there is no such folder.
    """
    root = pathlib.Path(checks.path("path", path)).expanduser()
    form = checked_form(image_size, channels)
    names = _subfolders(root)
    if len(names) < 2:
        raise ValueError(f"{root} has {len(names)} subfolder(s): pass a folder with one per class")
    test = None
    if test_folder is not None:
        held = pathlib.Path(checks.path("test_folder", test_folder)).expanduser()
        if _subfolders(held) != names:
            raise ValueError(f"{held} has other subfolders than {root}: pass one with these names")
        test = _images(held, names, *form)
    made = user_arrays.from_arrays(
        *_images(root, names, *form),
        public_size=public_size,
        classes=len(names),
        size_bound=size_bound,
        test=test,
        identified_by=identified_by,
        name=str(root),
    )
    words = f"{root}, images brought to {form[0]} pixels, divided by 255"
    return dataclasses.replace(made, description=words, class_names=names)


def _subfolders(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the names of the classes, sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: pass one with a subfolder for each class")
    return tuple(sorted(one.name for one in folder.iterdir() if one.is_dir() and _shown(one)))


def _shown(path: pathlib.Path) -> bool:
    return not path.name.startswith(".")  # Such as .DS_Store.


def _images(
    folder: pathlib.Path, names: Sequence[str], image_size: tuple[int, int], channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads all images, class by class: (n, height, width, channels) float32 and labels (n,)."""
    found, labels = [], []
    for label, name in enumerate(names):
        files = sorted(filter(_shown, (folder / name).iterdir()))
        for place, file in enumerate(files, 1):
            try:
                if file.suffix.lower() not in ENDINGS:
                    raise ValueError(f"does not end in {', '.join(ENDINGS)}")
                found.append(pixels(file, image_size, channels))
            except ValueError as error:
                raise ValueError(
                    f"{folder / name}: file {place} by name {error}: move it elsewhere (this "
                    "message is for the curator only)"
                ) from None
            labels.append(label)
    if not found:
        raise ValueError(f"{folder} has no image in its subfolders: pass PNG or JPEG files there")
    return scaled(found), np.array(labels, np.int32)
