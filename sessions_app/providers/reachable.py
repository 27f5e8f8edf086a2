"""Whether an address that somebody typed leads out into the public internet, and not back into our own network. Pure.

`why_not_public` judges what is written, in forms and before a call. A name can still be resolved to anything: whoever opens the connection
asks `is_public_address` about the address it is really made to.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

LONGEST = 2000
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
# The last part of names that exist inside a network only, and of public names that lead back to the machine that asks.
_LOCAL_ENDINGS = frozenset({"local", "localhost", "localdomain", "internal", "intranet", "private", "lan", "home", "corp", "svc"})
_LOCAL_NAMES = ("home.arpa", "metadata.goog", "localtest.me", "lvh.me", "nip.io", "sslip.io", "xip.io")
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")  # all that is given out; what lies outside is local, reserved, or a wrapped IPv4 address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Not global, or not meant for everybody, whatever the running Python's tables say.
_CLOSED: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments; metadata of one cloud
    ipaddress.IPv4Network("192.88.99.0/24"),  # the relays of 6to4, given up
    ipaddress.IPv4Network("168.63.129.16/32"),  # public by its number, the inside of another cloud by its use
    ipaddress.IPv6Network("2001::/23"),  # protocol assignments, Teredo among them
    ipaddress.IPv6Network("3fff::/20"),  # documentation
)


def why_not_public(url: str, *, allow: frozenset[str] = frozenset()) -> str:
    """A sentence on what is wrong with the URL; "" for one that may be called.

    `allow` names hosts, in lower case and without brackets, that may be called although they are local.
    """
    if not url:
        return "The address is empty."
    if len(url) > LONGEST:
        return f"The address is longer than {LONGEST} characters."
    if not re.fullmatch(r"[\x21-\x7e]+", url) or "\\" in url:
        return (
            "The address has blanks, backslashes or letters with accents in it. Write it in plain ASCII (a name with accents as xn--...)."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "The address cannot be read. It looks like https://example.org/path."
    return _why_not_form(url, parts) or _why_not_port(port) or _why_not_host(parts, allow)


def is_public_address(ip: str | _Address) -> bool:
    """Whether everybody on the internet reaches the same machine under it. An IPv4 address inside an IPv6 one is judged by itself."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        wrapped = address.ipv4_mapped or (ipaddress.IPv4Address(address.packed[12:]) if address in _NAT64 else None)
        if wrapped is not None:
            return is_public_address(wrapped)
        if address not in _GLOBAL_V6 or (address.sixtofour is not None and not is_public_address(address.sixtofour)):
            return False
    return address.is_global and not address.is_multicast and not any(address in closed for closed in _CLOSED)


def _why_not_form(url: str, parts: SplitResult) -> str:
    if parts.scheme not in ("http", "https"):
        return "The address must begin with https:// or http://."
    if "@" in parts.netloc:
        return "There is a user name or a password in the address. Leave it out; secrets have a field of their own."
    if "#" in url:
        return "There is a # in the address. Leave it out, with all that follows."
    if not parts.hostname:
        return "There is no host in the address. It looks like https://example.org/path."
    return ""


def _why_not_port(port: int | None) -> str:
    if port is None or port in (80, 443) or port >= 1024:
        return ""
    return f"Port {port} belongs to another kind of server. Use 443, 80, or one from 1024 up."


def _why_not_host(parts: SplitResult, allow: frozenset[str]) -> str:
    host = (parts.hostname or "").lower()
    if host in allow:
        return ""
    if "[" in parts.netloc:
        return "" if is_public_address(host) else _not_public(host)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # what a name server is never asked for: an IPv4 address, in one of its many spellings
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            return "Write the IP address in its usual form: four decimal numbers without leading zeros."
        return "" if is_public_address(address) else _not_public(host)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return "The host is not a name such as example.org. Check it for missing letters and dots, also at its end."
    if len(labels) == 1 or labels[-1] in _LOCAL_ENDINGS or any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES):
        return f'"{host}" is a name of this machine or of a local network. Only public addresses are called.'
    return ""


def _not_public(host: str) -> str:
    return f"{host} is not a public address: it belongs to this machine, to a local network or to a reserved range."
