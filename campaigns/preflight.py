"""What would go wrong with a campaign, found before it starts. Read-only."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from campaigns import counting, rendering, template_filling
from campaigns.models import Campaign, CampaignStep
from sessions_app.providers.base import ChannelProvider, MessageType
from sessions_app.providers.registry import UnknownChannel
from sessions_app.template_sync import has_templates

_PACING_LABELS = {
    "min_interval": "Shortest interval (s)",
    "max_interval": "Longest interval (s)",
    "batch_size": "Batch size",
    "batch_pause": "Pause after a batch (s)",
}
_LEVELS = ("error", "warning", "note")
_COUNTED_OVER = 100  # recipients whose texts are filled to see how many SMS they are
# What to do about a template that cannot be sent now.
_REMEDIES = {
    "PENDING": "Wait until it is approved",
    "IN_APPEAL": "Wait until the appeal is decided",
    "REJECTED": "Change it and hand it in again, or choose another",
    "PAUSED": "People block or report it: improve it, or choose another",
}


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "warning", "note"]  # an error keeps the campaign from starting
    text: str


def examine(campaign: Campaign, *, now: datetime) -> list[Finding]:
    """Errors first. Costs one count, and one more for each variable without a default; the first recipients where SMS are counted."""
    steps = list(campaign.steps.order_by("order"))
    for step in steps:
        step.campaign = campaign
    findings = [*_channel(campaign, steps), *_recipients(campaign, steps), *_hours(campaign, now)]
    if not steps:
        findings.append(_error("The campaign has no steps. Add a step with its text."))
    for step in steps:
        findings += [*_texts(step), *_times(campaign, step, now)]
    return sorted(findings, key=lambda finding: _LEVELS.index(finding.level))


def blockers(campaign: Campaign, *, now: datetime) -> list[str]:
    """The sentences of the errors alone."""
    return [finding.text for finding in examine(campaign, now=now) if finding.level == "error"]


def _error(text: str) -> Finding:
    return Finding("error", text)


def _warning(text: str) -> Finding:
    return Finding("warning", text)


def _channel(campaign: Campaign, steps: list[CampaignStep]) -> Iterator[Finding]:
    try:
        provider = campaign.session.provider_class
    except UnknownChannel as unknown:
        yield _error(f'The session "{campaign.session}" cannot send: {unknown}')
        return
    for step in steps:
        yield from _what_the_channel_takes(step, provider)
    if provider.pacing is None:
        yield from _floors(campaign)
    if has_templates(provider):
        yield from _templates(campaign, [step for step in steps if step.message_type == MessageType.TEMPLATE and step.template_name])
    if getattr(provider, "counts_segments", False):
        yield from _sizes(campaign, [step for step in steps if step.message_type == MessageType.TEXT])


def _what_the_channel_takes(step: CampaignStep, provider: type[ChannelProvider]) -> Iterator[Finding]:
    if MessageType(step.message_type) not in provider.message_types:
        known = ", ".join(sorted(provider.message_types))
        yield _error(f"{step}: {provider.label} cannot send {step.message_type}. It can send: {known}.")
    for name, spoken in (("subject", "subject"), ("html", "HTML"), ("filename", "file name")):
        if getattr(step, name) and name not in provider.takes:
            yield _error(f"{step}: {provider.label} sends no {spoken}. Empty that field.")
    if provider.needs_subject and rendering.is_blank(step.subject):
        yield _error(f"{step}: there is no subject. Write one.")
    if step.caption and step.message_type in provider.uncaptioned:
        yield _error(f"{step}: {provider.label} sends {step.get_message_type_display().lower()} without a caption. Empty that field.")
    longest_caption = provider.max_text_length if provider.max_caption_length is None else provider.max_caption_length
    for what, text, most in (("text", step.text, provider.max_text_length), ("caption", step.caption, longest_caption)):
        if most is not None and len(text) > most:
            yield _warning(f"{step}: the {what} has {len(text)} characters, and {provider.label} takes {most}. Shorten it.")


def _templates(campaign: Campaign, steps: list[CampaignStep]) -> Iterator[Finding]:
    if not steps:
        return
    session = campaign.session
    listed = {(one.name, one.language): one for one in session.templates.filter(name__in={step.template_name for step in steps})}
    if not listed and not session.templates.exists():
        yield _warning(
            f'There are no synced templates of session "{session}", so nobody can say whether those of the steps will be taken. '
            f'Open the session and press "Sync templates".'
        )
        return
    for step in steps:
        named = f'{step}: the template "{step.template_name}" ({step.template_language or "no language"})'
        template = listed.get((step.template_name, step.template_language))
        if template is None:
            others = sorted(language for name, language in listed if name == step.template_name)
            there = f" It is there in {', '.join(others)}." if others else ""
            yield _error(f'{named} is not among those of session "{session}".{there} Sync them on the session\'s page, or choose another.')
            continue
        if not template.can_be_sent:
            remedy = _REMEDIES.get(template.status, "Choose another")
            yield _error(f"{named} is {template.spoken_status} and cannot be sent. {remedy}; after a change, sync the session's templates.")
        for problem in template_filling.mismatches(template_filling.needs_of(template.components), step.template_components):
            yield _error(f"{named} does not fit: {problem}. Open the step and fill in its parameters.")


def _sizes(campaign: Campaign, steps: list[CampaignStep]) -> Iterator[Finding]:
    people = [person.variables for person in campaign.recipients.order_by("order", "pk")[:_COUNTED_OVER]] if steps else []
    for step in steps:
        size = counting.largest(step.text, people)
        if size is not None and size.segments:
            yield Finding("warning" if size.segments > 1 else "note", f"{step}: {size.spoken()}.")


def _floors(campaign: Campaign) -> Iterator[Finding]:
    used = campaign.pacing
    for name, label in _PACING_LABELS.items():
        wanted, real = getattr(campaign, name), getattr(used, name)
        if wanted != real:
            yield _warning(f"{label}: {wanted} is outside what keeps a number safe; {real} will be used.")


def _recipients(campaign: Campaign, steps: list[CampaignStep]) -> Iterator[Finding]:
    total = campaign.recipients.count()
    if not total:
        yield _error("The campaign has no recipients. Import a list or add people.")
        return
    counted: dict[str, int] = {}
    for step in steps:
        for name in sorted(rendering.required(step.message)):
            if name not in counted:
                counted[name] = campaign.recipients.lacking(name).count()
            if counted[name]:
                remedy = f'Fill it in, or write {{{{ {name}|default:"..." }}}}.'
                if counted[name] == total:
                    remedy = f"{_known_names(campaign)} {remedy}"
                yield _error(f'{step}: {counted[name]} of {total} recipients have no value for "{name}". {remedy}')


def _known_names(campaign: Campaign) -> str:
    first = campaign.recipients.order_by("order", "pk").first()
    names = sorted(first.variables)[:20] if first else []
    return f"The first recipient has: {', '.join(names)}."


def _texts(step: CampaignStep) -> Iterator[Finding]:
    for text in rendering.texts_of(step.message):
        for problem in rendering.check(text):
            yield _error(f"{step}: {problem}")
    kind = MessageType(step.message_type)
    if kind is MessageType.TEXT and rendering.is_blank(step.text):
        yield _error(f"{step}: the text is empty. Write it.")
    elif kind is MessageType.TEMPLATE and not step.template_name.strip():
        yield _error(f"{step}: no template is named. Give the name under which the channel knows it.")
    elif kind not in {MessageType.TEXT, MessageType.TEMPLATE} and not step.media_url:
        yield _error(f"{step}: there is no file to send. Give its address (media URL).")


def _times(campaign: Campaign, step: CampaignStep, now: datetime) -> Iterator[Finding]:
    if step.runs_made:
        return
    first = step.scheduled_at or campaign.scheduled_at or now
    if step.recurrence_until and first.astimezone(step.zone).date() > step.recurrence_until:
        yield _error(f"{step}: it repeats until {step.recurrence_until}, which is before its first run. Choose a later end.")
    if step.scheduled_at and step.scheduled_at < now and step.status == CampaignStep.Status.PENDING:
        moment = f"{step.scheduled_at.astimezone(step.zone):%Y-%m-%d %H:%M} {step.zone}"
        yield _warning(f"{step}: its time ({moment}) has passed. It goes out as soon as it is reached.")


def _hours(campaign: Campaign, now: datetime) -> Iterator[Finding]:
    start = max(now, campaign.scheduled_at or now)
    window = campaign.safe_window(start)
    if window is None or window.opens_at <= start:
        return
    opens = f"{window.opens_at.astimezone(campaign.zone):%Y-%m-%d %H:%M} {campaign.zone}"
    hours = f"{campaign.safe_from:%H:%M} to {campaign.safe_until:%H:%M}"
    if campaign.safe_hours == Campaign.SafeHours.BLOCK:
        yield _warning(f"The start is outside the safe hours ({hours}): nothing is sent before {opens}.")
    else:
        yield _warning(f"The start is outside the safe hours ({hours}), which begin at {opens}. Messages at night get numbers reported.")
