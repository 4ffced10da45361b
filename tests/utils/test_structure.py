from __future__ import annotations

from typing import Any

import pytest

from minerva.utils.structure import StructureError, check


@pytest.mark.parametrize("values", [[0.5, -1.0], [0, 7], [True, False], ["a", "b"], [None, 0.5]])
def test_a_list_of_values_of_the_same_types_has_the_form(values: list[Any]) -> None:
    check(values, values[::-1] if type(values[0]) is type(values[1]) else values, "space.low")


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.0, True, None])
def test_one_wrong_value_in_a_long_list_is_found(wrong: Any) -> None:
    with pytest.raises(StructureError, match=r"^space\.low\[999\]: must "):
        check([*range(999), wrong], list(range(1000)), "space.low")


def test_whole_numbers_may_be_negative_where_the_forms_are() -> None:
    check([-5, 3], [-1, 0], "start")
    with pytest.raises(StructureError, match=r"^start\[1\]: must lie between 0 and "):
        check([-5, -3], [-1, 0], "start")
