"""Lines of text -> what is sent of a template, and back."""

import pytest

from campaigns.template_filling import Needs, Place, components, lines_of, mismatches, needs_of, tidy, why_lines_do_not_fit

BODY = {"type": "BODY", "text": "Dear {{1}}, parcel {{2}} is ready, {{1}}."}
HEADING = {"type": "HEADER", "format": "TEXT", "text": "Parcel {{1}}"}
PHOTO = {"type": "HEADER", "format": "IMAGE", "example": {}}
PAPER = {"type": "HEADER", "format": "DOCUMENT"}
BUTTONS = {
    "type": "BUTTONS",
    "buttons": [
        {"type": "QUICK_REPLY", "text": "Stop"},
        {"type": "URL", "text": "Site", "url": "https://example.com/"},
        {"type": "URL", "text": "Track", "url": "https://example.com/{{1}}"},
    ],
}
NAMED = {"type": "BODY", "text": "Dear {{ first_name }}, {{city}}"}
CAROUSEL = {"type": "CAROUSEL", "cards": []}


def text(value, **more):
    return {"type": "text", **more, "text": value}


def body(*values):
    return {"type": "body", "parameters": [text(value) for value in values]}


def test_every_part_becomes_what_the_api_takes():
    needs = needs_of([HEADING, BODY, BUTTONS, {"type": "FOOTER", "text": "{{9}}"}])
    assert components(needs, ["4711", "{{ name }}", "Box", "t/4711"]) == [
        {"type": "header", "parameters": [text("4711")]},
        body("{{ name }}", "Box"),
        {"type": "button", "sub_type": "url", "index": "2", "parameters": [text("t/4711")]},
    ]
    assert needs.spoken() == "4 parameters (1 in the heading, 2 in the text, 1 in a button)"


def test_a_file_above_the_text():
    assert components(needs_of([PHOTO, BODY]), ["Ana", "1"], media_url="https://example.com/a.png", filename="x.pdf") == [
        {"type": "header", "parameters": [{"type": "image", "image": {"link": "https://example.com/a.png"}}]},
        body("Ana", "1"),
    ]
    document = components(needs_of([PAPER]), [], media_url="https://example.com/a.pdf", filename="bill.pdf")
    content = {"link": "https://example.com/a.pdf", "filename": "bill.pdf"}
    assert document == [{"type": "header", "parameters": [{"type": "document", "document": content}]}]
    assert needs_of([PAPER]).spoken() == "0 parameters, a document"


def test_named_parameters_keep_their_names():
    needs = needs_of([NAMED])
    parameters = [text("Ana", parameter_name="first_name"), text("Rio", parameter_name="city")]
    assert components(needs, ["Ana", "Rio"]) == [{"type": "body", "parameters": parameters}]
    assert list(mismatches(needs, components(needs, ["Ana", "Rio"]))) == []
    assert list(mismatches(needs, [body("Ana", "Rio")])) == [
        "its parameters have names, and city, first_name is not among those of the step"
    ]


@pytest.mark.parametrize(
    "listed", [[], [None, 3, {}], [{"type": "BODY"}], [{"type": "BUTTONS", "buttons": None}], [{"type": "HEADER", "text": None}]]
)
def test_what_asks_for_nothing(listed):
    assert needs_of(listed) == Needs()
    assert components(needs_of(listed), []) == []


ALL = [[HEADING, BODY, BUTTONS], [PHOTO, BODY], [NAMED], []]


@pytest.mark.parametrize("listed", ALL, ids=range(len(ALL)))
def test_what_was_made_from_lines_reads_as_those_lines_and_fits(listed):
    needs = needs_of(listed)
    lines = [f"line {number} {{{{ name }}}}" for number in range(len(needs.places))]
    made = components(needs, lines, media_url="https://example.com/a.png")
    assert lines_of(made) == lines
    assert list(mismatches(needs, made)) == []


@pytest.mark.parametrize(
    "parameter",
    [
        {"type": "currency", "currency": {"fallback_value": "1 EUR"}},
        {"type": "text", "text": "two\nlines"},
        {"type": "text", "text": " blank "},
        {"type": "text", "text": ""},
        {"type": "text", "text": 3},
    ],
)
def test_what_lines_cannot_say_is_not_read_as_lines(parameter):
    assert lines_of([body("Ana"), {"type": "body", "parameters": [parameter]}]) is None


def test_lines_are_read_whatever_the_browser_sends():
    assert tidy(" a \r\n\r\nb\rc\n") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("listed", "lines", "sentence"),
    [
        ([BODY], ["a", "b"], ""),
        ([BODY], [], "This template takes 2 parameters, one a line; there is none. Write the missing ones."),
        ([BODY], ["a"], "This template takes 2 parameters, one a line; there is 1 line. Write the missing ones."),
        ([], ["a", "b"], "This template takes 0 parameters, one a line; there are 2 lines. Take out what is too much."),
        ([CAROUSEL], [], "This template has a carousel, which lines cannot fill. Write its components below, for experts."),
        ([{"type": "HEADER", "format": "LOCATION"}], [], "This template has a place on the map, which lines cannot fill."),
    ],
)
def test_lines_that_do_not_fit(listed, lines, sentence):
    said = why_lines_do_not_fit(needs_of(listed), lines)
    assert said.startswith(sentence) and bool(said) == bool(sentence)


@pytest.mark.parametrize(
    ("listed", "sent", "problems"),
    [
        ([BODY], [body("a")], ["its text takes 2 parameters and gets 1"]),
        ([BODY], [], ["its text takes 2 parameters and gets 0"]),
        ([], [body("a")], ["its text takes no parameters and gets 1"]),
        ([PHOTO], [], ["it needs an image above its text"]),
        ([PHOTO], [{"type": "header", "parameters": [{"type": "video", "video": {}}]}], ["it needs an image above its text"]),
        ([BUTTONS], [], ["its button 3 takes 1 parameter and gets 0"]),
        ([BUTTONS], [{"type": "button", "index": 2, "parameters": [text("x")]}], []),
        ([CAROUSEL, BODY], [{"type": "carousel", "cards": []}, body("a")], ["its text takes 2 parameters and gets 1"]),
        ([BODY], ["odd", {"type": "body", "parameters": "odd"}], ["its text takes 2 parameters and gets 0"]),
    ],
)
def test_what_the_vendor_would_refuse_for_everybody(listed, sent, problems):
    assert list(mismatches(needs_of(listed), sent)) == problems


def test_a_place_knows_its_part():
    assert Place("button", button="2").key == ("button", "2")
