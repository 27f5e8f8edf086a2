"""Who comes in with which token, by header and by query string; and that a token is in no log and in no event of the error tracker."""

import io
import logging

import pytest
from django.core.cache import cache
from django.test import Client, RequestFactory

from config.logs import FactsFormatter
from config.redaction import NoTokens, without_tokens
from dispatch.views import access

pytestmark = pytest.mark.django_db

URL = "/api/jobs/campaign-retry"
TOKEN = "s3cret-s3cret-s3cret"
ACCENTED = "schlüssel-für-das-tor-€"
OVER_THE_WIRE = ACCENTED.encode().decode("latin-1")  # how WSGI hands UTF-8 bytes over


@pytest.fixture(autouse=True)
def no_refusals_yet():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def token(settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = TOKEN
    return settings


REQUESTS = {
    "nothing": ({}, ""),
    "query": ({}, f"?token={TOKEN}"),
    "bearer": ({"Authorization": f"Bearer {TOKEN}"}, ""),
    "bearer in small letters": ({"Authorization": f"bearer {TOKEN}"}, ""),
    "cron header": ({"x-cron-token": TOKEN}, ""),
    "cron header beside basic": ({"Authorization": "Basic YTpi", "x-cron-token": TOKEN}, ""),
    "header, and a query that counts for nothing": ({"x-cron-token": TOKEN}, "?token=wrong"),
    "bearer wrong": ({"Authorization": f"Bearer {TOKEN}x"}, ""),
    "bearer empty": ({"Authorization": "Bearer "}, ""),
    "bearer without its word": ({"Authorization": TOKEN}, ""),
    "basic": ({"Authorization": f"Basic {TOKEN}"}, ""),
    "accented": ({"Authorization": f"Bearer {OVER_THE_WIRE}"}, ""),
    "beyond latin-1": ({"x-cron-token": "€" * 20}, ""),
    "broken bytes in the query": ({}, "?token=%ff%fe%00"),
    "query empty": ({}, "?token="),
}
RIGHT = {"bearer", "bearer in small letters", "cron header", "cron header beside basic", "header, and a query that counts for nothing"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", REQUESTS)
def test_without_a_token_set_everybody_is_refused(settings, client, name, method):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = ""
    headers, query = REQUESTS[name]
    answer = client.generic(method, URL + query, headers=headers)
    assert answer.status_code == 503
    assert "CAMPAIGN_RETRY_JOB_TOKEN" in answer.json()["error"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", REQUESTS)
def test_only_the_token_opens_and_only_in_a_header(token, client, name, method):
    headers, query = REQUESTS[name]
    answer = client.generic(method, URL + query, headers=headers)
    assert answer.status_code == (200 if name in RIGHT else 401)
    assert answer["Cache-Control"] == "no-store"
    assert TOKEN not in answer.content.decode()


@pytest.mark.parametrize(("name", "status"), [("query", 200), ("query empty", 401), ("broken bytes in the query", 401), ("nothing", 401)])
def test_the_query_string_opens_where_it_is_allowed(token, client, name, status):
    token.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN = True
    headers, query = REQUESTS[name]
    assert client.get(URL + query, headers=headers).status_code == status


def test_a_header_that_is_wrong_is_not_made_good_by_the_query(token, client):
    token.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN = True
    assert client.get(f"{URL}?token={TOKEN}", headers={"x-cron-token": "wrong"}).status_code == 401


def test_wrong_and_missing_look_the_same(token, client):
    missing, wrong = client.get(URL), client.get(URL, headers={"Authorization": "Bearer wrong"})
    assert missing.json() == wrong.json()
    assert missing["WWW-Authenticate"] == wrong["WWW-Authenticate"] == "Bearer"
    assert "query string" not in missing.json()["error"]
    right, made_up = client.get(f"{URL}?token={TOKEN}"), client.get(f"{URL}?token=x")
    assert right.json() == made_up.json()
    assert "in the query string it is not accepted" in right.json()["error"]


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        pytest.param({"Authorization": f"Bearer {OVER_THE_WIRE}"}, "", 200, id="bearer"),
        pytest.param({"x-cron-token": OVER_THE_WIRE}, "", 200, id="cron header"),
        pytest.param({}, "?token=schl%C3%BCssel-f%C3%BCr-das-tor-%E2%82%AC", 200, id="query"),
        pytest.param({}, "?token=schl%FCssel-f%FCr-das-tor-%80", 401, id="query in another coding"),
        pytest.param({"x-cron-token": "schlüssel-für-das-tor-"}, "", 401, id="another coding"),
        pytest.param({"x-cron-token": "schlussel-fur-das-tor-E"}, "", 401, id="without the accents"),
    ],
)
def test_a_token_beyond_ascii(settings, client, headers, query, status):
    settings.CAMPAIGN_RETRY_JOB_TOKEN, settings.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN = ACCENTED, True
    assert client.get(URL + query, headers=headers).status_code == status


def test_the_comparison_is_of_bytes_and_takes_the_same_time_for_all(token, monkeypatch):
    compared = []
    monkeypatch.setattr(access.hmac, "compare_digest", lambda *pair: compared.append(pair) or False)
    request = RequestFactory().get(URL, headers={"x-cron-token": "wrong"})
    assert not access.is_right(request, "CAMPAIGN_RETRY_JOB_TOKEN", allow_query=False)
    assert compared == [(b"wrong", TOKEN.encode())]


def test_a_development_instance_without_a_token_is_open_and_with_one_is_not(settings, client):
    settings.DEBUG, settings.CAMPAIGN_RETRY_JOB_TOKEN = True, ""
    assert client.get(URL).status_code == 200
    settings.CAMPAIGN_RETRY_JOB_TOKEN = TOKEN
    assert client.get(URL).status_code == 401


def test_whoever_guesses_is_told_to_wait_and_nobody_else_is(token, client):
    wrong = {"headers": {"x-cron-token": "wrong"}, "REMOTE_ADDR": "198.51.100.7"}
    assert {client.generic("POST", URL, **wrong).status_code for _ in range(access.REFUSALS_A_MINUTE)} == {401}
    refused = client.generic("POST", URL, **wrong)
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert client.get(URL, **wrong, HTTP_X_FORWARDED_FOR="203.0.113.9").status_code == 429
    assert client.get(URL, **(wrong | {"REMOTE_ADDR": "198.51.100.8"})).status_code == 401
    for _ in range(2):
        assert client.get(URL, **(wrong | {"headers": {"x-cron-token": TOKEN}})).status_code == 200


def test_the_right_token_is_never_counted(token, client):
    for _ in range(access.REFUSALS_A_MINUTE + 1):
        assert client.get(URL, headers={"x-cron-token": TOKEN}).status_code == 200
    assert client.get(URL).status_code == 401


def test_no_cookie_counts_so_nothing_is_checked_for_one(token):
    client = Client(enforce_csrf_checks=True)
    assert client.generic("POST", URL, headers={"x-cron-token": TOKEN}).status_code == 200


# -- never written down --------------------------------------------------------------------------------------------------------


def test_what_django_logs_of_a_refusal_has_no_token(token, client):
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(FactsFormatter())
    logger = logging.getLogger("django")
    logger.addHandler(handler)
    try:
        client.get(f"{URL}?token={TOKEN}", headers={"Authorization": "Bearer wrong-wrong-wrong"})
        client.put(f"{URL}?token={TOKEN}", headers={"x-cron-token": TOKEN})
    finally:
        logger.removeHandler(handler)
    assert f"Unauthorized: {URL}" in output.getvalue()
    assert f"Method Not Allowed: {URL}" in output.getvalue()
    assert TOKEN not in output.getvalue()
    assert "wrong-wrong" not in output.getvalue()


def test_the_development_server_writes_the_line_without_it():
    record = logging.LogRecord(
        "django.server", 20, "", 0, '"%s" %s %s', (f"GET {URL}?a=1&token={TOKEN}&run=true HTTP/1.1", "200", "9"), None
    )
    assert NoTokens().filter(record)
    assert record.getMessage() == f'"GET {URL}?a=1&token=[removed]&run=true HTTP/1.1" 200 9'


def test_the_filter_is_on_the_development_server():
    assert [type(one) for one in logging.getLogger("django.server").filters] == [NoTokens]


def test_an_event_for_the_tracker_has_neither_query_nor_token():
    event = {
        "request": {
            "url": f"https://example.test{URL}",
            "query_string": f"token={TOKEN}",
            "headers": {"X-Cron-Token": TOKEN, "Authorization": f"Bearer {TOKEN}", "Host": "example.test"},
        },
        "breadcrumbs": {"values": [{"message": "x", "data": {"request": f"<WSGIRequest: GET '{URL}?token={TOKEN}'>"}}]},
        "extra": {"numbers": [1, None, ("a", f"?run=true&TOKEN={TOKEN}")]},
        "contexts": {"trace": {"data": {"http.query": f"token={TOKEN}", "url.full": f"https://example.test{URL}?token={TOKEN}&run=true"}}},
    }
    kept = without_tokens(event, {})
    assert TOKEN not in repr(kept)
    assert kept["request"] == {"url": f"https://example.test{URL}", "headers": {"Host": "example.test"}}
    assert kept["contexts"]["trace"]["data"]["url.full"].endswith("?token=[removed]&run=true")
    assert kept["extra"]["numbers"][:2] == [1, None]
