"""A folder of images, a subfolder a class: read, brought to one size, and refused in one line."""

import numpy as np
import pytest
from PIL import Image

from dpjax import data

OWN = {"public_size": 6, "settings": {"image_size": (4, 5)}}


@pytest.fixture
def pets(tmp_path):
    for place, name in enumerate(("dog", "cat")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number, ending in enumerate(("png", "jpg", "JPEG")):
            shape = (8 + number, 10, 3)
            colour = np.full(shape, [200, 40 * number, 100 * place], np.uint8)
            Image.fromarray(colour).save(tmp_path / "pets" / name / f"{number}.{ending}")
    (tmp_path / "pets" / "cat" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "pets" / "notes.txt").write_text("a file beside the classes is no class")
    return tmp_path / "pets"


def load(folder, **changed):
    return data.load(f"folder:{folder}", **(OWN | changed))


def test_pixels_labels_and_names(pets):
    found = load(pets)
    assert found.class_names == ("cat", "dog") and found.classes == 2
    assert found.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.train.inputs.shape == (6, 4, 5, 3) and found.train.inputs.dtype == np.float32
    np.testing.assert_array_equal(
        found.train.inputs[0], np.float32([200, 0, 100]) / np.float32(255) * np.ones((4, 5, 1))
    )
    assert np.abs(found.train.inputs[3:, ..., 2]).max() < 0.02  # JPEG rounds.
    assert (found.train.public_size, found.train.size_bound) == (6, 6)


def test_grey_modes_and_transparency_become_the_stated_channels(pets):
    grey = load(pets, settings={"image_size": (4, 5), "channels": 1})
    assert grey.train.inputs.shape == (6, 4, 5, 1)
    Image.fromarray(np.full((3, 3), 7, np.uint8)).save(pets / "cat" / "grey.png")
    Image.fromarray(np.full((3, 3, 4), 7, np.uint8)).save(pets / "cat" / "see_through.png")
    found = load(pets, size_bound=9)
    assert found.train.inputs.shape == (8, 4, 5, 3)


def test_a_test_folder_is_read_alike_and_may_not_have_other_classes(pets, tmp_path):
    settings = {"image_size": (4, 5), "test_folder": str(pets)}
    found = load(pets, settings=settings)
    np.testing.assert_array_equal(found.test.inputs, found.train.inputs)
    (tmp_path / "other" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="other subfolders than"):
        load(pets, settings=settings | {"test_folder": str(tmp_path / "other")})


def test_an_image_falls_into_its_part_by_its_content_whatever_its_name(pets):
    before = load(pets).train.identifiers
    (pets / "cat" / "0.png").rename(pets / "cat" / "zzz.png")
    after = load(pets).train.identifiers
    assert set(before.tolist()) == set(after.tolist()) and (before != after).any()
    assert not load(pets, identified_by="slot").train.stable_under_removal


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"public_size": None}, "pass public_size=..., a number that is public knowledge"),
        ({"public_size": 5}, "there are more records than size_bound=5 promises"),
        ({"settings": {}}, "pass image_size=..., the height and the width"),
        ({"settings": {"image_size": (4,)}}, "pass image_size=..., the height and the width"),
        ({"settings": {"image_size": (4, 0)}}, "each of image_size must be a whole number"),
        ({"settings": {"image_size": (4, 5), "channels": 4}}, "channels=4: pass 3 for colours or"),
        ({"settings": {"size": 3}}, "size= is not for 'folder:.*': pass only public_size, image_"),
        ({"classes": 2}, "classes= is not for 'folder:"),
        ({"schema": "a.json"}, "schema= is not for 'folder:"),
    ],
)
def test_what_is_not_public_or_not_known_is_refused_in_one_line(pets, changed, words):
    with pytest.raises(ValueError, match=words) as refused:
        load(pets, **changed)
    assert "\n" not in str(refused.value)


def _deep(path):
    Image.fromarray(np.full((3, 3), 40_000, np.uint16)).save(path)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("ann.png", lambda path: path.write_bytes(b"\x89PNG no more"), "is no PNG or JPEG image"),
        ("ann.gif", lambda path: path.write_bytes(b"GIF89a"), "does not end in .png, .jpg, .jpeg"),
        ("ann.png", _deep, "is no PNG or JPEG image of 8 bits a pixel"),
        ("ann.png", lambda path: path.mkdir(), "is no PNG or JPEG image"),
    ],
)
def test_a_file_that_is_no_image_is_refused_by_its_place_and_not_by_its_name(
    pets, name, write, words
):
    write(pets / "cat" / name)
    with pytest.raises(ValueError, match=words) as refused:
        load(pets)
    said = str(refused.value)
    assert "file 4 by name" in said and "ann" not in said.rpartition("pets")[2]
    assert "\n" not in said


def test_folders_without_classes_or_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder: pass one with a subfolder"):
        load(tmp_path / "nowhere")
    (tmp_path / "one").mkdir()
    with pytest.raises(ValueError, match="has 1 subfolder"):
        load(tmp_path)
    (tmp_path / "two").mkdir()
    with pytest.raises(ValueError, match="has no image in its subfolders"):
        load(tmp_path)
