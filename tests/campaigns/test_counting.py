"""How many SMS a text becomes."""

import pytest

from campaigns.counting import Size, largest, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", Size(0, 0, "GSM-7")),
        ("a" * 160, Size(1, 160, "GSM-7")),
        ("a" * 161, Size(2, 161, "GSM-7")),
        ("€" * 80, Size(1, 80, "GSM-7")),  # two places each
        ("€" * 81, Size(2, 81, "GSM-7")),
        ("ã" + "a" * 69, Size(1, 70, "UCS-2", "ã")),
        ("Ola ã" + "a" * 66, Size(2, 71, "UCS-2", "ã")),
        ("a\u200bb", Size(1, 3, "UCS-2", "U+200B")),
        ("a\u00a0ã", Size(1, 3, "UCS-2", "U+00A0")),
    ],
    ids=["empty", "one", "two", "euros", "more euros", "seventy", "seventy-one", "unseen", "blank"],
)
def test_the_size_of_a_text(text, size):
    assert size_of(text) == size


def test_it_is_spoken_with_its_reason():
    assert size_of("ã" + "a" * 70).spoken() == 'about 2 SMS for each person (UCS-2, because of "ã"; 71 characters)'
    assert size_of("Hello").spoken() == "about 1 SMS for each person (GSM-7; 5 characters)"


def test_the_longest_of_the_filled_texts_counts():
    people = [{"name": "Ana"}, {"name": "João"}, {"name": "A very long name" * 10}, {"name": ""}]
    assert largest("Hi {{ name }}", people) == size_of("Hi " + "A very long name" * 10)
    assert largest("Hi {{ name }}", people[:2]) == size_of("Hi João"), "of two that take one SMS, the one with more characters"


def test_without_people_its_defaults_count_and_what_cannot_be_filled_is_left_out():
    assert largest('Hi {{ name|default:"João" }}', []) == size_of("Hi João")
    assert largest("Hi {{ name }}", []) is None
    assert largest("Hi {{ name }}", [{}, {"name": "Ana"}]) == size_of("Hi Ana")
    assert largest("Hi {{{ name", [{"name": "Ana"}]) is None
