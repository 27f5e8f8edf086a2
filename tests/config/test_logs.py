import logging

import pytest

from config.logs import FactsFormatter


def line(message="sent", *arguments, **facts):
    record = logging.getLogger("paceline.test").makeRecord("paceline", logging.INFO, __file__, 1, message, arguments, None, extra=facts)
    return FactsFormatter().format(record).split(" ", 2)[2]


def test_facts_follow_the_message_in_their_order():
    assert line("sent", session="Sales", address="+55119****0101", attempt=2) == "INFO sent session=Sales address=+55119****0101 attempt=2"


def test_a_line_without_facts_is_the_message():
    assert line("pass %s of %s", 1, 2) == "INFO pass 1 of 2"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two words", "'two words'"),
        ("", "''"),
        ("a\nINFO forged", r"'a\nINFO forged'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("a=b", "'a=b'"),
        (None, "None"),
    ],
)
def test_a_fact_stays_one_word_on_one_line(value, shown):
    assert line(reason=value) == f"INFO sent reason={shown}"


def test_the_request_that_django_adds_is_left_out():
    assert line("Not Found: %s", "/x", request=object(), status_code=404) == "INFO Not Found: /x status_code=404"


def test_a_traceback_comes_after_the_facts():
    try:
        raise ValueError("broken")
    except ValueError as error:
        record = logging.getLogger("paceline.test").makeRecord(
            "paceline", logging.ERROR, __file__, 1, "failed", (), (ValueError, error, error.__traceback__), extra={"session": 7}
        )
    first, *rest = FactsFormatter().format(record).splitlines()
    assert first.endswith("ERROR failed session=7")
    assert rest[-1] == "ValueError: broken"
