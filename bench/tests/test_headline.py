"""What README.md shows is what docs/headline.json has."""

from __future__ import annotations

import copy
import json
from xml.etree import ElementTree

import pytest

from bench import headline

FOUND = json.loads(headline.RAW.read_text())


def test_picture_and_text_are_those_of_the_figures() -> None:
    assert headline.PICTURE.read_text() == headline.picture(FOUND)
    assert headline.text(FOUND) in headline.README.read_text()


def test_the_picture_is_small_and_whole() -> None:
    drawn = headline.picture(FOUND)
    ElementTree.fromstring(drawn)
    assert len(drawn) < headline.PICTURE_BYTES_MAX and drawn.count("<rect") == 1 + 8 * len(headline.SHAPES)


def test_every_shape_is_there_with_every_server() -> None:
    assert list(FOUND["shapes"]) == list(headline.SHAPES)
    for shape in FOUND["shapes"].values():
        assert [each["label"] for each in shape["servers"]] == ["shardd", *headline.OTHERS, "shardd again"]


def test_another_figure_is_another_text() -> None:
    """The canary: the comparison above sees a figure that has changed."""
    changed = copy.deepcopy(FOUND)
    first = next(iter(changed["shapes"].values()))
    for each in first["servers"][0]["rounds"]:
        each["producers: messages/s"] *= 2
    assert headline.text(changed) != headline.text(FOUND) and headline.picture(changed) != headline.picture(FOUND)


def test_a_missing_figure_is_no_picture() -> None:
    changed = copy.deepcopy(FOUND)
    next(iter(changed["shapes"].values()))["servers"].clear()
    with pytest.raises(StopIteration):
        headline.picture(changed)
