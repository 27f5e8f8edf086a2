import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaigns.rendering import (
    LONGEST_TEXT,
    MalformedText,
    MissingVariable,
    RenderError,
    TextTooLong,
    Variable,
    check,
    is_blank,
    render,
    render_message,
    texts_of,
    variable_name,
    variables,
)
from sessions_app.providers.base import Message, MessageType


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("Olá {{ nome }}!", {"nome": "Bia"}, "Olá Bia!"),
        ("{{nome}}{{ nome }}{{\tnome\n}}", {"nome": "Bia"}, "BiaBiaBia"),
        ("{{\u00a0nome\u2003}} {{\u200bnome\ufeff}}", {"nome": "Bia"}, "Bia Bia"),  # pasted from a word processor
        ("{{ NOME }} {{ Nome }}", {"nome": "Bia"}, "Bia Bia"),
        ("{{ preço }}", {"prec\u0327o": "10"}, "10"),  # composed or not
        ("{{ First Name }} {{ first-name }} {{ first_name }}", {"First Name": "Bia"}, "Bia Bia Bia"),
        ("{{ नाम }}", {"नाम": "बिया"}, "बिया"),
        ("{{ 1 }}", {"1": "x"}, "x"),
        ('{{ a|default:"you" }}', {}, "you"),
        ("{{ a|default:'you' }}", {"a": " \u00a0\n"}, "you"),
        ("{{ a | default : “you” }}", {"a": None}, "you"),
        ("{{ a|default:‘it’ }}", {}, "it"),
        ("{{ a|default:„du“ }}", {}, "du"),
        ("{{ a|default:«toi» }}", {}, "toi"),
        ('{{ a|DEFAULT:"it\'s | ok: yes" }}', {}, "it's | ok: yes"),
        ('{{ a|default:"" }}.', {}, "."),
        ('{{ a|default:"you" }}', {"a": "Ana"}, "Ana"),
        ("{{ n }} {{ m }}", {"n": "0", "m": 0}, "0 0"),
        ("{{ yes }}", {"yes": False}, "False"),
        ("{{ a }}", {"a": "{{ b }}", "b": "secret"}, "{{ b }}"),  # what was filled in is never rendered
        ("{{ a }}{{ b }}", {"a": "{", "b": "{ c }}"}, "{{ c }}"),
        ('{{ a|default:"x" }}', {"a": "\\1 \\g<0> $1 %s {0}"}, "\\1 \\g<0> $1 %s {0}"),
        ("{{ a }} & co", {"a": "O'Neil & Sons <VIP>"}, "O'Neil & Sons <VIP> & co"),
        ("{single} {a} }{", {}, "{single} {a} }{"),
        ("one\r\ntwo\rthree", {}, "one\ntwo\nthree"),
        ("{{ a }}", {"a": "one\r\ntwo\x00"}, "one\ntwo"),
        ("one\\ntwo", {}, "one\\ntwo"),  # two typed characters, not a line break
        ("می\u200cدانم 👨\u200d👩\u200d👧 {{ a }}", {"a": "👩🏽\u200d🚀"}, "می\u200cدانم 👨\u200d👩\u200d👧 👩🏽\u200d🚀"),
        ("", {}, ""),
    ],
)
def test_a_text_is_filled(text, values, result):
    assert check(text) == []
    assert render(text, values) == result


@pytest.mark.parametrize(
    "values", [{}, {"nome": None}, {"nome": ""}, {"nome": " \t\r\n"}, {"nome": "\u00a0\u3000"}, {"nome": "\u200b\ufeff"}, {"nome": "\x00"}]
)
def test_no_value_and_no_default_is_an_error_and_never_a_hole(values):
    with pytest.raises(MissingVariable) as missing:
        render("Olá {{ Nome }}!", {"x": "1", **values})
    assert missing.value.name == "nome"
    assert isinstance(missing.value, RenderError)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("Promo {{ nome", "Line 1, character 7", "never closed"),
        ("Oi\nPromo {{ nome }", "Line 2, character 7", "never closed"),
        ("Promo nome }}", "Line 1, character 12", "closes nothing"),
        ("{{ a {{ b }}", "Line 1, character 1", "not closed before"),
        ("Código {{{x}}}", "Line 1, character 8", "3 braces"),
        ("Código {{x}}}", "Line 1, character 11", "3 braces"),
        ("{{{{ x }}}}", "Line 1, character 1", "4 braces"),
        ("{{ a.b }}", "Line 1, character 1", "part of a value"),
        ("{{ nome.__class__.__mro__ }}", "Line 1, character 1", "part of a value"),
        ("{{ a[0] }}", "Line 1, character 1", "part of a value"),
        ("{{ a() }}", "Line 1, character 1", "part of a value"),
        ("{{ }}", "Line 1, character 1", "empty"),
        ("{{}}", "Line 1, character 1", "empty"),
        ("{{ ___ }}", "Line 1, character 1", "not the name"),
        ("{{ a+b }}", "Line 1, character 1", "not the name"),
        ("{{ a|upper }}", "Line 1, character 1", '"upper" is not known'),
        ('{{ a|default:"x"|upper }}', "Line 1, character 1", "quotes"),
        ("{{ a|default }}", "Line 1, character 1", "quotes"),
        ("{{ a|default:x }}", "Line 1, character 1", "quotes"),
        ("{{ a|default:\"x' }}", "Line 1, character 1", "quotes"),
        ('{{ a|default:" }}', "Line 1, character 1", "quotes"),
        ('{{ a|default:"x" y" }}', "Line 1, character 1", "quotes"),
        ("{% if a %}x{% endif %}", "Line 1, character 1", "tags"),
    ],
)
def test_what_is_wrong_is_found_when_it_is_saved_and_never_sent(text, where, what):
    problems = check(text)
    assert any(problem.startswith(f"{where}: ") and what in problem for problem in problems), problems
    assert all(problem.endswith(".") for problem in problems)
    with pytest.raises(MalformedText):
        render(text, {"a": "1", "b": "2", "x": "3", "nome": "4"})


def test_the_variables_of_a_text():
    assert variables('{{ A }} {{ a }} {{ b|default:"x" }} {{ b }} {{ C d }}') == {
        Variable("a"),
        Variable("b", "x"),
        Variable("b"),
        Variable("c_d"),
    }
    assert variables("nothing {here}") == set()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Nome", "nome"),
        (" First  Name ", "first_name"),
        ("E-mail", "e_mail"),
        ("user.id", "user_id"),
        ("meta__x", "meta_x"),
        ("Preço (R$)", "preço_r"),
        ("Prec\u0327o", "preço"),
        ("\ufeffphone", "phone"),
        ("a\u00a0b", "a_b"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("***", ""),
        ("", ""),
    ],
)
def test_a_header_gives_one_name(header, name):
    assert variable_name(header) == name
    assert variable_name(name) == name


def test_the_result_has_a_limit():
    assert len(render("{{ a }}", {"a": "x" * LONGEST_TEXT})) == LONGEST_TEXT
    with pytest.raises(TextTooLong, match="65537"):
        render("{{ a }}", {"a": "x" * (LONGEST_TEXT + 1)})
    with pytest.raises(TextTooLong):
        render("{{ a }}" * 10_000, {"a": "x" * 10})


def test_every_text_of_a_message_is_filled_for_one_person_only():
    message = Message(
        MessageType.TEMPLATE,
        text="Olá {{ nome }}",
        caption="{{ nome }}, veja",
        media_url="https://example.com/{x}.png",
        template_components=({"type": "body", "parameters": [{"type": "text", "text": "{{ pedido }}"}, 3, None]}, "{{ nome }}"),
    )
    ana = render_message(message, {"nome": "Ana", "pedido": "7"})
    bia = render_message(message, {"nome": "Bia", "pedido": "8"})
    assert (ana.text, ana.caption, ana.media_url) == ("Olá Ana", "Ana, veja", "https://example.com/{x}.png")
    assert ana.template_components == ({"type": "body", "parameters": [{"type": "text", "text": "7"}, 3, None]}, "Ana")
    assert bia.template_components == ({"type": "body", "parameters": [{"type": "text", "text": "8"}, 3, None]}, "Bia")
    assert set(texts_of(message)) >= {"Olá {{ nome }}", "{{ nome }}, veja", "{{ pedido }}"}
    with pytest.raises(MissingVariable, match="pedido"):
        render_message(message, {"nome": "Caio", "pedido": " \n\t "})


@given(st.text("{}|:%\"' abdefault.\n“”é0_", max_size=30), st.text(max_size=10))
def test_a_text_that_passes_the_check_renders_once_its_values_are_there(text, value):
    value = f"v{value}"
    names = {variable.name for variable in variables(text)}
    if check(text):
        with pytest.raises(MalformedText):
            render(text, dict.fromkeys(names, value))
    else:
        render(text, dict.fromkeys(names, value))
        for name in {variable.name for variable in variables(text) if variable.default is None}:
            with pytest.raises(MissingVariable):
                render(text, {other: value for other in names if other != name})


@given(st.text())
def test_a_value_leaves_as_it_came_but_for_line_ends(value):
    if not is_blank(value):
        assert render("<{{ a }}>", {"a": value}) == f"<{value}>".replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def test_html_escapes_what_is_filled_in_and_nothing_else():
    message = Message(type=MessageType.TEXT, text="{{ name }}", html="<b>{{ name }}</b>", subject="For {{ name }}")
    filled = render_message(message, {"name": '<i>"A&B"</i>'})
    assert filled.html == "<b>&lt;i&gt;&quot;A&amp;B&quot;&lt;/i&gt;</b>"
    assert filled.text == '<i>"A&B"</i>'
    assert filled.subject == 'For <i>"A&B"</i>'


def test_a_subject_and_a_file_name_stay_one_line():
    message = Message(type=MessageType.TEXT, subject="For {{ name }}", filename="{{ name }}.pdf")
    filled = render_message(message, {"name": "Ana\r\nBcc: eve@example.org"})
    assert (filled.subject, filled.filename) == ("For Ana Bcc: eve@example.org", "Ana Bcc: eve@example.org.pdf")
