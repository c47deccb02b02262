"""The paper's rates, as published."""

import pytest

from ellp import InputError
from ellp.presets import default_name, share_kept

PUBLISHED = {
    "roberta": {"re-base": 15, "re-small": 28, "re-tiny": 41},
    "xlnet": {"re-base": 15, "re-small": 21, "re-tiny": 28},
    "bert": {"re-base": 15, "re-small": 21, "re-tiny": 28},
    "distilbert": {"re-base": 15},
}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_rates(model_type: str) -> None:
    for preset, removed in PUBLISHED[model_type].items():
        assert share_kept(model_type, preset) == pytest.approx(1 - removed / 100)


def test_rates_that_were_not_published_are_not_invented() -> None:
    with pytest.raises(InputError, match="re-base for distilbert"):
        share_kept("distilbert", "re-tiny")
    with pytest.raises(InputError, match="--keep"):
        share_kept("t5", "re-base")


def test_the_folder_is_named_after_model_and_size() -> None:
    assert default_name("bert-base-uncased", "re-tiny") == "RE-bert-base-uncased-tiny"
