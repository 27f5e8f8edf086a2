"""The transport: what left, what came back, and what never shows."""

import ipaddress
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sessions_app.providers import http
from tests.providers.contract import soon
from tests.providers.scripted_server import HANG, Answer, ScriptedServer, drip, reply


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(usual=reply(200, {"fine": True})) as server:
        yield server


def test_posts_json_and_reads_the_answer(server: ScriptedServer) -> None:
    response = http.post_json(f"{server.url}/a", {"text": "olá \ud83d"}, headers={"X-Api-Key": "k"}, deadline=soon())
    request = server.requests[0]
    assert (response.status, response.json()) == (200, {"fine": True})
    assert (request.method, request.path, request.json()) == ("POST", "/a", {"text": "olá \ud83d"})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-api-key"] == "k"


def test_a_name_that_leads_into_a_local_network_is_not_connected_to(server: ScriptedServer) -> None:
    url = server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(http.NotSent, match="leads into a local network"):
        http.post_bytes(url, b"{}", deadline=soon(), public_only=True)
    assert server.connections == 0
    assert http.post_bytes(url, b"{}", deadline=soon()).status == 200


def test_a_form_is_encoded(server: ScriptedServer) -> None:
    http.post_form(f"{server.url}/a", {"To": "+1 202", "Body": "é&="}, deadline=soon())
    request = server.requests[0]
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.body == b"To=%2B1+202&Body=%C3%A9%26%3D"


def test_a_query_is_encoded(server: ScriptedServer) -> None:
    http.get_json(f"{server.url}/a", query={"filter.fromMe": "true", "chat": "1@c.us"}, deadline=soon())
    assert server.requests[0].path == "/a?filter.fromMe=true&chat=1%40c.us"


def test_proxies_of_the_environment_are_ignored(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    http.forget_connections()
    assert http.get_json(server.url, deadline=soon()).status == 200


def test_a_deadline_that_passes_while_connecting_sends_nothing(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at after the connection stands and before the first byte: here the name takes longer than there is time."""
    deadline = soon(60)
    real = socket.getaddrinfo

    def slow_and_then_late(*args, **kwargs):
        deadline._expires = 0.0  # as if the machine had been suspended in the middle of it
        return real(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow_and_then_late)
    with pytest.raises(http.NotSent) as raised:
        http.post_json(server.url, {}, deadline=deadline)
    assert raised.value.deadline_passed
    assert server.requests == []


def test_a_name_that_does_not_resolve_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(http.NotSent, match="name could not be resolved") as raised:
        http.post_json("http://waha.example.org", {}, deadline=soon())
    assert not raised.value.deadline_passed


def test_a_name_server_that_does_not_answer_does_not_outlast_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: done.wait(20) and [])
    began = time.monotonic()
    try:
        with pytest.raises(http.NotSent) as raised:
            http.post_json("http://waha.example.org", {}, deadline=soon(0.3))
    finally:
        done.set()
    assert time.monotonic() - began < 2
    assert not raised.value.deadline_passed, "a name server that is down must count as a failure, or the campaign would go round in circles"


def test_the_next_address_of_a_host_is_tried(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (closed, ("127.0.0.1", server.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: addresses)
    assert http.get_json("http://waha.example.org", deadline=soon()).status == 200


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://a..b/", "http://[::1"])
def test_an_address_that_cannot_be_called_is_not_sent(url: str) -> None:
    with pytest.raises(http.NotSent):
        http.post_json(url, {}, deadline=soon())


def test_a_header_that_cannot_be_written_is_not_sent_and_not_quoted(server: ScriptedServer) -> None:
    for key in ("top\r\nsecret", "töp–secret"):
        with pytest.raises(http.NotSent) as raised:
            http.post_json(server.url, {}, headers={"X-Api-Key": key}, deadline=soon())
        assert "secret" not in str(raised.value)
    assert server.requests == []


def test_a_server_that_stops_reading_cannot_hold_the_call(server: ScriptedServer) -> None:
    server.script(Answer(reply(200, {}).pieces, then="deaf"))
    http.get_json(server.url, deadline=soon())
    began = time.monotonic()
    with pytest.raises(http.NoAnswer, match="in time"):
        http.post_json(server.url, {"text": "x" * 16_000_000}, deadline=soon(0.6))  # more than the buffers in between hold
    assert time.monotonic() - began < 3
    assert server.connections == 1


def test_a_chunked_answer_cut_short_is_no_answer(server: ScriptedServer) -> None:
    head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.script(Answer((head, b"5\r\nhello\r\n"), then="close"))
    with pytest.raises(http.NoAnswer):
        http.post_json(server.url, {}, deadline=soon())
    server.script(Answer((head, b"5\r\nhello\r\n0\r\n\r\n")))
    assert http.post_json(server.url, {}, deadline=soon()).body == b"hello"


def test_an_answer_just_inside_the_limit_is_read(server: ScriptedServer) -> None:
    server.script(reply(200, b"x" * http.BODY_AT_MOST), reply(200, b"x" * (http.BODY_AT_MOST + 1), then="close"))
    assert len(http.get_json(server.url, deadline=soon()).body) == http.BODY_AT_MOST
    with pytest.raises(http.NoAnswer, match="too large"):
        http.get_json(server.url, deadline=soon())


def test_a_connection_that_lost_its_answer_is_not_used_again(server: ScriptedServer) -> None:
    server.script(HANG)
    with pytest.raises(http.NoAnswer, match="in time"):
        http.get_json(server.url, deadline=soon(0.2))
    http.get_json(server.url, deadline=soon())
    assert [request.connection for request in server.requests] == [1, 2]


def test_a_connection_idle_for_long_is_not_used_again(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_AT_MOST", timedelta(0))
    for _ in range(2):
        http.get_json(server.url, deadline=soon())
    assert [request.connection for request in server.requests] == [1, 2]


def test_a_connection_the_server_closed_meanwhile_is_not_used_again(server: ScriptedServer) -> None:
    server.script(reply(200, {}, then="close"))
    http.get_json(server.url, deadline=soon())
    server._threads[1].join(5)
    assert http.get_json(server.url, deadline=soon()).status == 200


def test_many_threads_share_the_pool(server: ScriptedServer) -> None:
    seen: list[int] = []

    def call() -> None:
        for _ in range(20):
            seen.append(http.post_json(server.url, {}, deadline=soon()).status)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [200] * 160
    assert server.connections <= 8


def test_a_forked_process_opens_its_own_connections(server: ScriptedServer) -> None:
    http.get_json(server.url, deadline=soon())
    mine = http._pools()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"1" if http._manager is None else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    assert answer == b"1"
    assert http._pools() is mine


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ScriptedServer(tls=context, usual=reply(200, {"fine": True})) as server:
        yield server


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    http.forget_connections()
    yield
    http.forget_connections()


def test_a_certificate_nobody_vouches_for_is_not_sent(tls_server: ScriptedServer) -> None:
    with pytest.raises(http.NotSent, match="certificate was not accepted"):
        http.post_json(tls_server.url, {}, deadline=soon())
    assert tls_server.requests == []


def test_tls_with_a_certificate_of_the_machine(tls_server: ScriptedServer, trusted: None) -> None:
    for _ in range(2):
        assert http.post_json(tls_server.url, {}, deadline=soon()).json() == {"fine": True}
    assert [request.connection for request in tls_server.requests] == [1, 1]


def test_drips_over_tls_end_at_the_deadline(tls_server: ScriptedServer, trusted: None) -> None:
    tls_server.script(drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 500))
    began = time.monotonic()
    with pytest.raises(http.NoAnswer, match="in time"):
        http.post_json(tls_server.url, {}, deadline=soon(0.4))
    assert time.monotonic() - began < 2


def test_a_handshake_that_hangs_is_not_sent(server: ScriptedServer) -> None:
    stop = threading.Event()
    server.before_reading = lambda _: stop.wait(20)
    began = time.monotonic()
    try:
        with pytest.raises(http.NotSent):
            http.post_json(server.url.replace("http:", "https:"), {}, deadline=soon(0.3))
    finally:
        stop.set()
    assert time.monotonic() - began < 2


NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("Mon, 30 Nov 2026 12:05:00 GMT", 300),
        ("Monday, 30-Nov-26 12:05:00 GMT", 300),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0),
        ("Mon, 30 Nov 2026 14:05:00 +0200", 300),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("99999999999999999999", None),
        ("٣", None),
        ("Mon, 99 Nov 2026 12:05:00 GMT", None),
    ],
)
def test_retry_after(value: str, seconds: int | None) -> None:
    assert http.parse_retry_after(value, now=NOW) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("text", "secrets", "expected"),
    [
        ("key abc/d+e= refused", ["abc/d+e="], "key [hidden] refused"),
        ("GET /?k=abc%2Fd%2Be%3D", ["abc/d+e="], "GET /?k=[hidden]"),
        ('{"text": "say \\"hi there\\""}', ['say "hi there"'], '{"text": "[hidden]"}'),
        ("&lt;b&gt;bold&lt;/b&gt;", ["<b>bold</b>"], "[hidden]"),
        ("caf\\u00e9 au lait", ["café au lait"], "[hidden]"),
        ("Hi in This is Hi", ["Hi"], "[hidden] in This is [hidden]"),
        ("cut: Dear Ana, your parc", ["Dear Ana, your parcel is ready"], "cut: [hidden]"),
        ("cut: Dear Ana, your parc... end", ["Dear Ana, your parcel is ready"], "cut: [hidden]... end"),
        ("one\ntwo   three\0four", [], "one two threefour"),
        ("line one line two", ["line one\r\nline two"], "[hidden]"),
        ("nothing", ["", " ", "\0"], "nothing"),
        ("longer first: abcdef", ["abc", "abcdef"], "longer first: [hidden]"),
        ("x" * 900, [], "x" * 500),
    ],
)
def test_scrub(text: str, secrets: list[str], expected: str) -> None:
    assert http.scrub(text, secrets) == expected


def test_a_secret_across_the_cut_does_not_show() -> None:
    assert "topsecret" not in http.scrub("x" * 495 + "topsecret-key-of-mine", ["topsecret-key-of-mine"])


def test_the_path_of_a_call_is_in_no_log(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    http.get_json(f"{server.url}/chats/12025550101", deadline=soon())
    assert "12025550101" not in caplog.text
