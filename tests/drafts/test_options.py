"""What a user may choose in a draft's configuration."""

import pytest

from clover.drafts.loading import SYSTEMS, trainable_system
from clover.drafts.options import check_options
from clover.errors import UserError


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_field_that_there_is_not_is_named(name: str) -> None:
    config = SYSTEMS[name].config_class
    check_options(config, {"num_heads": 2})
    with pytest.raises(UserError, match=f"{name} has no option 'heads'; it has .*num_heads"):
        check_options(config, {"heads": 2})


@pytest.mark.parametrize("value", ["2", 2.0, True, None, [2]])
def test_a_value_of_another_type_is_named(value: object) -> None:
    with pytest.raises(UserError, match="clover2: num_heads is .*it must be of type int"):
        check_options(SYSTEMS["clover2"].config_class, {"num_heads": value})


def test_whole_numbers_are_numbers() -> None:
    check_options(SYSTEMS["clover2"].config_class, {"noise": 0, "tree": [[0]], "hidden_state": "pre_norm"})


def test_systems_by_name() -> None:
    assert trainable_system("medusa").__name__ == "MedusaDraft"
    with pytest.raises(UserError, match="no draft system 'clover3'; known are clover1, clover2"):
        trainable_system("clover3")
    with pytest.raises(UserError, match="lookup has no weights to train"):
        trainable_system("lookup")
