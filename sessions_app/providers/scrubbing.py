"""What a vendor said, without what nobody else may read: for details in the ledger and for logs. Pure."""

import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

DETAIL_AT_MOST = 500
_HIDDEN = "[hidden]"


def scrub(text: str, secrets: Iterable[str]) -> str:
    """`text` in one line of at most 500 characters, without the secrets: nor percent-encoded, escaped for JSON or HTML, or cut short."""
    text = _one_line(text[:20_000])
    forms = {form for secret in secrets for form in _forms(_one_line(secret)) if form}
    for form in sorted(forms, key=len, reverse=True):
        text = _hide(text, form)
    return text[:DETAIL_AT_MOST]


def _one_line(text: str) -> str:
    return " ".join(text.replace("\0", "").split())


def _forms(secret: str) -> set[str]:
    as_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    percent = {write(secret, safe="", errors="replace") for write in (quote, quote_plus)}
    return {secret, html.escape(secret), *as_json, *percent}


def _hide(text: str, secret: str) -> str:
    if len(secret) < 4:  # a text of "Hi" must not eat the middle of other words
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
    text = text.replace(secret, _HIDDEN)
    start = secret[:16]
    if len(secret) == len(start):
        return text
    while (begin := text.find(start)) >= 0:  # a vendor who quotes only the beginning
        rest = text[begin:]
        length = next((at for at, pair in enumerate(zip(secret, rest, strict=False)) if pair[0] != pair[1]), min(len(secret), len(rest)))
        text = text[:begin] + _HIDDEN + rest[length:]
    return text
