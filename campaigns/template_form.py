"""The part of a step's form where a template is chosen from those that were synced, and filled."""

from typing import Any

from django import forms
from django.db.models import prefetch_related_objects
from django.utils.html import escape
from django.utils.text import Truncator
from unfold import widgets

from campaigns import rendering
from campaigns.models import Campaign, CampaignStep
from campaigns.template_filling import components, lines_of, needs_of, tidy, why_lines_do_not_fit
from campaigns.wall_clock import spoken_moment, zone_named
from sessions_app.forms import channel_class
from sessions_app.models import MessageTemplate
from sessions_app.template_sync import has_templates

ONLY_ASKED = ("template", "parameters")  # in the form, and no columns
FOLLOW_THE_CHOICE = ("template_name", "template_language")
NOT_LISTED = "is not among the synced templates. Sync them on the session's page, or choose another."
OTHER_TYPE = "A step of this type sends no template. Choose the type Template, or leave this empty."


def templates_of(campaign: Campaign) -> list[MessageTemplate]:
    """Those of its session, read once; none where the channel has none or nobody synced them."""
    if not campaign.session_id or not has_templates(channel_class(campaign.session.channel)):
        return []
    prefetch_related_objects([campaign.session], "templates")
    return list(campaign.session.templates.all())


def key_of(name: str, language: str) -> str:
    return f"{language}:{name}" if name else ""


class LinesField(forms.CharField):
    """Texts, one a line. Blanks around them and empty lines do not make a difference."""

    def to_python(self, value: Any) -> str:
        return "\n".join(tidy(super().to_python(value) or ""))


class TemplateForm(forms.ModelForm):
    template = forms.ChoiceField(
        required=False,
        widget=widgets.UnfoldAdminSelectWidget(),
        error_messages={"invalid_choice": f"This template {NOT_LISTED}"},
    )
    parameters = LinesField(required=False, widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 4}))
    instance: CampaignStep

    def offer_templates(self, campaign: Campaign) -> None:
        """The admin lists `template` among the fields where there are some to choose from; elsewhere name and language are typed."""
        self.chooses = "template" in (self._meta.fields or ())
        if not self.chooses:
            for name in ONLY_ASKED:
                del self.fields[name]
            if campaign.session_id and has_templates(channel_class(campaign.session.channel)) and "template_name" in self.fields:
                self.fields["template_name"].help_text = 'To choose it from a list, press "Sync templates" on the session\'s page first.'
            return
        for name in FOLLOW_THE_CHOICE:  # on no page, unless it was opened before the first sync
            self.fields[name].disabled = not (self.is_bound and self.add_prefix(name) in self.data)
        self.templates = {key_of(one.name, one.language): one for one in templates_of(campaign)}
        self.stored = key_of(self.instance.template_name, self.instance.template_language)
        self.initial["template"] = self.stored
        self.stored_lines = lines_of(self.instance.template_components)
        self.initial["parameters"] = "\n".join(self.stored_lines or [])
        self.fields["template"].choices = [("", "Choose a template"), *self._choices()]  # type: ignore[attr-defined]
        self.fields["template"].help_text = self._about_the_template(campaign)
        self.fields["parameters"].help_text = self._about_the_parameters()
        expert = "As the vendor's API takes them. Once you change something here, it is sent as it stands, and not the parameters above."
        self.fields["template_components"].help_text = expert

    def _choices(self) -> list[tuple[str, str]]:
        choices = []
        for key, one in self.templates.items():
            storable = all(len(getattr(one, column)) <= most for column, most in (("name", 200), ("language", 20)))
            if one.can_be_sent and storable:
                choices.append((key, f"{one}, {needs_of(one.components).spoken()}"))
            elif key == self.stored:
                choices.append((key, f"{one}, {one.spoken_status}: cannot be sent"))
        if self.stored and self.stored not in self.templates:
            choices.append((self.stored, f"{self._stored_name()}, not in the list"))
        return choices

    def _stored_name(self) -> str:
        return f"{self.instance.template_name} ({self.instance.template_language})"

    def _about_the_template(self, campaign: Campaign) -> str:
        chosen = self.templates.get(self.stored)
        if self.stored and chosen is None:
            return escape(f'"{self._stored_name()}" {NOT_LISTED}')
        if chosen is not None and not chosen.can_be_sent:
            return escape(f'"{chosen}" is {chosen.spoken_status} and cannot be sent now. Choose another, or sync once that has changed.')
        if not self.templates:  # the session was changed on the very page that is posted
            return ""
        moment = spoken_moment(max(one.synced_at for one in self.templates.values()), zone_named(campaign.time_zone))
        return escape(f'The approved ones of "{campaign.session}" as of {moment}. Its page has a button that syncs them.')

    def _about_the_parameters(self) -> str:
        said = "One text a line, in the order of the template: heading, text, buttons. Each may hold {{ name }}."
        if self.stored_lines is None:
            said += " Now its components are written by hand (below, for experts); what you type here replaces them."
        chosen = self.templates.get(self.stored)
        body = next((one for one in chosen.components if isinstance(one, dict) and one.get("type") == "BODY"), {}) if chosen else {}
        if body.get("text"):
            said += f' The text of "{self.instance.template_name}": {Truncator(str(body["text"])).chars(400)}'
        return escape(said)

    def take_template(self) -> None:
        """The choice and the lines become columns. What was left as it was stays as it is stored, and components changed by hand win."""
        if not self.chooses or self.add_prefix("template") not in self.data:
            return
        for problem in rendering.check(self.cleaned_data.get("parameters") or ""):
            self.add_error("parameters", str(problem))
        if {*ONLY_ASKED, "template_components"} & set(self.errors):
            return
        cleaned, changed = self.cleaned_data, set(self.changed_data)
        if cleaned.get("message_type") != CampaignStep.Type.TEMPLATE:
            for name in [name for name in ONLY_ASKED if name in changed and cleaned[name]]:
                self.add_error(name, OTHER_TYPE)
        if set(ONLY_ASKED) & set(self.errors):
            return
        if "template" in changed:
            self._take_choice(cleaned["template"])
        if "template_components" not in changed and self._is_to_be_filled(changed) and not self.errors:
            self._fill()

    def _take_choice(self, key: str) -> None:
        chosen = self.templates.get(key)
        for column, value in zip(FOLLOW_THE_CHOICE, (chosen.name, chosen.language) if chosen else ("", ""), strict=True):
            self.cleaned_data[column] = value
            setattr(self.instance, column, value)  # Django takes an empty one, of a field on no page, for not posted

    def _is_to_be_filled(self, changed: set[str]) -> bool:
        """Also when the file above the text changed, unless its address was written by hand."""
        if changed.intersection(ONLY_ASKED):
            return True
        chosen, step = self.templates.get(self.stored), self.instance
        if chosen is None or not changed & {"media_url", "filename", "upload"}:
            return False
        needs, before = needs_of(chosen.components), {name: self.initial.get(name, "") for name in ("media_url", "filename")}
        lines = self.stored_lines
        fits = lines is not None and len(lines) == len(needs.places)
        return fits and components(needs, lines or [], **before) == step.template_components

    def _fill(self) -> None:
        cleaned = self.cleaned_data
        lines, chosen = tidy(cleaned["parameters"]), self.templates.get(cleaned["template"])
        if not cleaned["template"]:
            if lines:
                self.add_error("template", "Choose the template that the parameters are for, or empty them too.")
            cleaned["template_components"] = []
            return
        if chosen is None:
            self.add_error("parameters", f'"{self._stored_name()}" {NOT_LISTED} Until then its parameters stay as they are.')
            return
        needs = needs_of(chosen.components)
        if sentence := why_lines_do_not_fit(needs, lines):
            self.add_error("parameters", sentence)
        elif needs.media and not cleaned.get("media_url"):
            self.add_error(
                "media_url", f"The template has {needs.media_spoken} above its text: give the address of that file, or upload it."
            )
        else:
            filled = components(needs, lines, media_url=cleaned.get("media_url", ""), filename=cleaned.get("filename", ""))
            cleaned["template_components"] = filled
