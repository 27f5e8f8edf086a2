"""Who may call what an operator's cron and monitor call: whoever sends the token of the setting.

A token is compared as bytes, in constant time, and never written down.
"""

import hmac
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

REFUSALS_A_MINUTE = 30  # for one client address in one process; what comes with the right token is never counted
HOW = "send the token as 'Authorization: Bearer TOKEN' or 'x-cron-token: TOKEN'"

View = Callable[[HttpRequest], HttpResponseBase]


def answer(body: Mapping[str, Any], status: int = 200, **headers: str) -> JsonResponse:
    """JSON that nobody keeps. `Retry_After="60"` is the header Retry-After."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"} | names)


def token_from(request: HttpRequest, *, allow_query: bool) -> bytes | None:
    """The bytes the client sent: a header goes before the query string, Bearer before x-cron-token. None: there is no token."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else ""
    given = given or request.headers.get("x-cron-token", "").strip()
    if given:
        return _as_sent(given)
    return (_utf8(request.GET.get("token", "")) or None) if allow_query else None


def _as_sent(header: str) -> bytes:
    """WSGI and ASGI hand headers over as latin-1, whatever the bytes meant."""
    try:
        return header.encode("latin-1")
    except UnicodeEncodeError:
        return _utf8(header)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def is_right(request: HttpRequest, variable: str, *, allow_query: bool) -> bool:
    """Whether the request carries the token of this setting. Never, while none is set."""
    expected = _utf8(getattr(settings, variable))
    given = token_from(request, allow_query=allow_query)
    return bool(expected) and given is not None and hmac.compare_digest(given, expected)


def refusal(request: HttpRequest, variable: str, *, allow_query: bool) -> JsonResponse | None:
    """The answer to whoever may not come in, or None. Without a token in the setting nobody may, unless this is a development instance."""
    if not getattr(settings, variable):
        closed = f"closed, because no token is set: set {variable} in the environment (16 characters or more) and restart"
        return None if settings.DEBUG else answer({"error": closed}, 503)
    if is_right(request, variable, allow_query=allow_query):
        return None
    if _refused_lately(request) > REFUSALS_A_MINUTE:
        return answer({"error": "too many requests without the right token; wait a minute"}, 429, Retry_After="60")
    sentence = f"the token is missing or wrong: {HOW}"
    if not allow_query and "token" in request.GET:
        sentence += "; in the query string it is not accepted here"
    return answer({"error": sentence}, 401, WWW_Authenticate="Bearer")


def _refused_lately(request: HttpRequest) -> int:
    """With this one. By the address of the connection: what X-Forwarded-For says can be made up."""
    key = f"refused:{request.META.get('REMOTE_ADDR', '')}"
    cache.add(key, 0, timeout=60)
    try:
        return cache.incr(key)
    except ValueError:  # the minute ended between the two
        return 1


def token_required(variable: str, *, allow_query: Callable[[], bool]) -> Callable[[View], View]:
    """For a view that only those with the token may call. The token is the proof, so no cookie counts, and none has to be checked."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @wraps(view)
        def guarded(request: HttpRequest) -> HttpResponseBase:
            return refusal(request, variable, allow_query=allow_query()) or view(request)

        return guarded

    return decorate
