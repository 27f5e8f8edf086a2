import ipaddress
import socket

import pytest

from sessions_app.providers.reachable import is_public_address, why_not_public

PUBLIC = [
    "https://example.org",
    "https://example.org/hooks/a?b=c&d=%40e",
    "http://example.org:80/",
    "https://example.org:443",
    "https://example.org:8443/x",
    "https://EXAMPLE.org",
    "https://a-b.c_d.example.co.uk",
    "https://xn--mller-kva.example",
    "https://8.8.8.8/x",
    "http://1.1.1.1:8080",
    "https://[2606:4700:4700::1111]/x",
    "https://[::ffff:8.8.8.8]/",
    "https://[64:ff9b::808:808]/",
    "https://10.example.org",
    "https://127.0.0.1.example.org",
    "https://localhost.example.org",
    "https://0xbad.example.org",
    "https://local.example.org",
    "https://example.org/@path",
]
MALFORMED = [
    "",
    "not an address",
    "example.org",
    "//example.org",
    "ftp://example.org",
    "file:///etc/passwd",
    "gopher://example.org",
    "javascript:alert(1)",
    "https://",
    "https:///path",
    "https://:443",
    "https://user@example.org",
    "https://user:secret@example.org",
    "https://example.org@127.0.0.1",
    "https://@example.org",
    "https://example.org#fragment",
    "https://example.org/#",
    "https://example.org#@127.0.0.1",
    "https://example.org\\@127.0.0.1",
    "https://127.0.0.1\\@example.org",
    "https://example.org/a\\b",
    "https://exam ple.org",
    "https://example.org/a b",
    "https://example.org/\r\nHost:x",
    "https://example.org\t",
    "https://example.org\0",
    "https://example.org.",
    "https://example..org",
    "https://-example.org",
    "https://exa%6dple.org",
    "https://127.0.0.1%2f.example.org",
    "https://[::1",
    "https://[v1.x]/",
    "https://example.org:port",
    "https://example.org:99999",
    "https://müller.example",
    "https://\u2460\u2461\u2466.0.0.1",
    "https://\uff11\uff12\uff17.0.0.1",
    "https://127\u30020\u30020\u30021",
    "https://example.org/" + "x" * 2000,
    "https://" + "a" * 64 + ".org",
]
PORTS = [f"https://example.org:{port}" for port in (0, 1, 22, 25, 53, 111, 389, 445, 993)]
LOCAL = [
    "http://localhost",
    "http://LOCALHOST:8000",
    "http://app.localhost",
    "http://localhost.localdomain",
    "http://printer.local",
    "http://db.internal:8080",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://metadata",
    "http://metadata.goog",
    "http://instance-data",
    "http://host.docker.internal",
    "http://postgres:5432",
    "http://kubernetes.default.svc",
    "http://x.svc.cluster.local",
    "http://router.lan",
    "http://nas.home",
    "http://nas.home.arpa",
    "http://localtest.me",
    "http://a.lvh.me",
    "http://127.0.0.1.nip.io",
]
ADDRESSES = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.5",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2001:0:a9fe:a9fe::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:c0a8:101::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
SPELLINGS = [  # of 127.0.0.1 and 169.254.169.254, as C's inet_aton and browsers read them
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0X7F.0.0.1",
    "017700000001",
    "0177.0.0.1",
    "127.0.0.01",
    "127.0.0.0x1",
    "0",
    "0x",
    "127.0.0.1.",
    "2852039166",
    "0xa9fea9fe",
    "169.254.43518",
    "256.256.256.256",
    "1.2.3.4.5",
    "example.0x1",
    "example.1",
]


def _ids(values: list[str]) -> list[str]:
    return [f"{at}-{ascii(value)[1:40]}" for at, value in enumerate(values)]


@pytest.mark.parametrize("url", PUBLIC, ids=_ids(PUBLIC))
def test_public(url: str) -> None:
    assert why_not_public(url) == ""


REFUSED = [*MALFORMED, *PORTS, *LOCAL, *(f"http://{spelling}/" for spelling in SPELLINGS)]
REFUSED += [f"http://[{one}]/" if ":" in one else f"http://{one}:8080/" for one in ADDRESSES]


@pytest.mark.parametrize("url", REFUSED, ids=_ids(REFUSED))
def test_refused_with_a_sentence(url: str) -> None:
    assert why_not_public(url).endswith(".")


def test_a_refusal_repeats_no_password_and_no_path() -> None:
    for url in ("https://ana:hunter2@example.org/token", "http://localhost/token", "http://10.0.0.1/token", "https://example.org:22/token"):
        assert not {"hunter2", "token"} & set(why_not_public(url).replace("/", " ").split())


@pytest.mark.parametrize("ip", ADDRESSES, ids=_ids(ADDRESSES))
def test_an_address_that_is_not_public(ip: str) -> None:
    assert not is_public_address(ip)
    assert not is_public_address(ipaddress.ip_address(ip))


@pytest.mark.parametrize(
    "ip",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_a_public_address(ip: str) -> None:
    assert is_public_address(ip)


@pytest.mark.parametrize("ip", ["", "example.org", "fe80::1%eth0", "2606:4700::1%1", "127.1"])
def test_what_is_no_address_is_not_public(ip: str) -> None:
    assert not is_public_address(ip)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_spellings_are_those_the_resolver_takes(spelling: str) -> None:
    """Each of them either is an address to the system's own resolver, or is refused all the same."""
    try:
        address = socket.inet_ntoa(socket.inet_aton(spelling))
    except OSError:
        return
    assert not is_public_address(address)


def test_what_is_allowed_may_be_local_and_keeps_the_other_rules() -> None:
    allow = frozenset({"127.0.0.1", "::1", "hooks.internal"})
    for url in ("http://127.0.0.1:8000/x", "http://[::1]:8000", "https://hooks.internal", "https://HOOKS.internal"):
        assert why_not_public(url) and not why_not_public(url, allow=allow)
    for url in (
        "http://127.0.0.2",
        "http://127.0.0.1:22",
        "ftp://127.0.0.1",
        "http://a@127.0.0.1",
        "http://x.hooks.internal",
        "http://127.1",
    ):
        assert why_not_public(url, allow=allow)
