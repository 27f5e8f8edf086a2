"""How statuses are shown, and how the end of an action is answered: shared by the admin pages of every package."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.text import Truncator

from sessions_app.models import Session

STATUS_COLOURS = {
    Session.Status.CONNECTED: "success",
    Session.Status.CONNECTING: "info",
    Session.Status.NEEDS_PAIRING: "warning",
    Session.Status.DISCONNECTED: "danger",
    Session.Status.RESTRICTED: "danger",
}
SPOKEN = {
    Session.Status.CONNECTED: "is connected",
    Session.Status.CONNECTING: "is connecting",
    Session.Status.NEEDS_PAIRING: "needs pairing",
    Session.Status.DISCONNECTED: "is disconnected",
    Session.Status.RESTRICTED: "is restricted",
}
SHOWN_OF_A_REASON = 120  # characters; the cards of a phone have room for three lines


def badge(colour: str, text: str, detail: str = "", *, room: int | None = SHOWN_OF_A_REASON) -> str:
    """A status label with a line of explanation under it, escaped. Beyond `room` characters it is cut; the whole stands in its tooltip."""
    label = render_to_string("unfold/helpers/label.html", {"type": colour, "text": text})
    if not detail:
        return label
    short = Truncator(detail).chars(room) if room else detail
    return format_html(
        '{}<div class="mt-1 text-xs whitespace-normal min-w-40 max-w-xs break-words" title="{}">{}</div>', label, detail, short
    )


def back_to(request: HttpRequest, url: str) -> HttpResponse:
    """The end of an action in a dialog: htmx wants a header, a browser without scripts a redirect."""
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Redirect": url})
    return redirect(url)
