from __future__ import annotations

from typing import Any

import pytest

from minerva.sweeps.seeds import parse_seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1-5", (1, 2, 3, 4, 5)),
        ("1,3,7-9", (1, 3, 7, 8, 9)),
        (" 4 , 2-2 ", (4, 2)),
        ("0", (0,)),
        ([3, 1], (3, 1)),
        (range(2), (0, 1)),
    ],
)
def test_numbers_and_ranges_in_their_order(text: Any, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "seeds: must be numbers and ranges such as 1-5 or 1,3,7-9, got ''."),
        ("1,,2", "such as 1-5"),
        ("-1", "such as 1-5"),
        ("1.5", "such as 1-5"),
        ("²", "such as 1-5"),
        ("5-1", "from the smaller number to the larger one, got '5-1'"),
        ("1-3,2", "each must be given once, got 2 twice"),
        ("0-99999999999999", "at most 100,000"),
        ("9223372036854775808", "from 0 to 9223372036854775807"),
        ([], "a list of 1 to 100,000 whole numbers"),
        ([1, True], "whole number"),
        ([1, 2.0], "got 2.0"),
        (7, "got 7"),
        ([-1], "got -1"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused_in_a_sentence(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^seeds: ") as refused:  # noqa: RUF043
        parse_seeds(text)
    assert message in str(refused.value)
