"""The forms of campaigns, steps and recipients: what staff type, turned into what the models hold, or refused with a sentence."""

import json
from typing import Any

import phonenumbers
from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Max
from unfold import widgets
from unfold.forms import BaseDialogForm

from campaigns import recurrence, rendering, uploading
from campaigns.models import Campaign, CampaignStep, Recipient, UploadedFile
from campaigns.template_form import ONLY_ASKED, TemplateForm
from campaigns.wall_clock import WallClockField, WallClockForm, zone_named
from sessions_app import addresses
from sessions_app.forms import channel_class
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider

TIMING = ("scheduled_at", "delay_after_previous", "time_zone")
ADDRESS_WIDTH = 320
DELETE = forms.formsets.DELETION_FIELD_NAME
FROZEN_STEP = "This step has begun and the campaign is running: its text and times are frozen. Pause the campaign to edit it."
NO_COLUMNS = (*ONLY_ASKED, "upload")
NEEDS_FILE = {CampaignStep.Type.IMAGE, CampaignStep.Type.VIDEO, CampaignStep.Type.AUDIO, CampaignStep.Type.DOCUMENT}


class CampaignForm(WallClockForm):
    scheduled_at = WallClockField(label="Start at", required=False)

    class Meta:
        model = Campaign
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = zone_named(self.instance.time_zone)
        self.show_wall_clock(zone)
        if "scheduled_at" in self.fields:
            self.fields["scheduled_at"].help_text = f"In the campaign's time zone (now {zone.key}). Empty: start by hand."
        if "unconfirmed_default" in self.fields:
            self.fields["unconfirmed_default"].label = "What happens then"  # under a heading that says when
            self.fields["unconfirmed_default"].required = False  # a page that was opened before there was such a field may still be saved

    def clean_unconfirmed_default(self) -> str:
        return self.cleaned_data["unconfirmed_default"] or self.instance.unconfirmed_default

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        if "time_zone" in self.cleaned_data:
            self.take_wall_clock(zone_named(self.cleaned_data["time_zone"]))
        return self.cleaned_data


class StepForm(TemplateForm, WallClockForm):
    """One step inside its campaign's form; the formset passes the campaign as it stands in that form."""

    upload = forms.FileField(label="or upload a file", required=False, widget=widgets.UnfoldAdminFileFieldWidget())
    scheduled_at = WallClockField(label="Send at", required=False)
    recurrence_type = forms.ChoiceField(
        label="Repeats",
        required=False,
        widget=widgets.UnfoldAdminSelectWidget(),
        error_messages={"invalid_choice": '"%(value)s" is not a recurrence. Choose one from the list.'},
    )

    class Meta:
        model = CampaignStep
        fields = "__all__"

    def __init__(self, *args: Any, campaign: Campaign, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.campaign = campaign
        self.uploaded: UploadedFile | None = None
        self.has_begun = bool(self.instance.pk and getattr(self.instance, "run_count", 0))
        self.fields["recurrence_type"].choices = [  # type: ignore[attr-defined]
            ("", "Does not repeat"),
            *((kind, recurrence.LABELS[kind]) for kind in recurrence.TYPES),
        ]
        zone = zone_named(self.instance.time_zone or campaign.time_zone)
        self.show_wall_clock(zone)
        self.fields["scheduled_at"].help_text = f"In the step's time zone (now {zone.key}). Empty: as soon as it is reached."
        self.fields["template_components"].show_hidden_initial = False
        if "upload" in self.fields:
            self.fields["upload"].help_text = uploading.help_text()
        self.offer_templates(campaign)
        self._offer_types()
        if self.is_frozen:
            self._freeze()

    def name(self) -> str:
        return str(self.instance) if self.instance.pk else "New step"

    @property
    def is_frozen(self) -> bool:
        """Its run goes out with the text it had, and an edit would look as if it did something."""
        return self.has_begun and self.campaign.status == Campaign.Status.RUNNING

    def has_changed(self) -> bool:
        """Also when the campaign's zone did: the time stays on the clock, so the moment moves."""
        follows = bool(self.instance.pk and self.instance.scheduled_at and not self.instance.time_zone)
        return super().has_changed() or (follows and zone_named(self.campaign.time_zone).key != self.shown_zone.key)

    def _freeze(self) -> None:
        """What the browser does not send back, because it was shown disabled, counts as unchanged; what it sends is compared in clean."""
        for name, field in self.fields.items():
            if name != "id" and not (self.is_bound and self.add_prefix(name) in {*self.data, *self.files}):
                field.disabled = True

    @property
    def provider(self) -> type[ChannelProvider] | None:
        """None: no session chosen yet, or its channel is not known. Asked late: the admin fills the campaign after this form is made."""
        return channel_class(self.campaign.session.channel) if self.campaign.session_id else None

    def _offer_types(self) -> None:
        if self.provider is None:
            return
        offered = {*self.provider.message_types, self.instance.message_type}
        # the widget only: what is posted is judged by clean(), with a sentence
        self.fields["message_type"].widget.choices = [pair for pair in CampaignStep.Type.choices if pair[0] in offered]

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        # asked of each field: Django's JSON field calls itself changed when it is disabled
        if self.is_frozen and any(name != DELETE and not self.fields[name].disabled for name in self.changed_data):
            raise ValidationError(FROZEN_STEP)
        self._check_message()
        self._check_times()
        return self.cleaned_data

    def _check_message(self) -> None:
        kind = self.cleaned_data.get("message_type")
        if self.provider is not None and kind and kind not in self.provider.message_types:
            names = ", ".join(label for value, label in CampaignStep.Type.choices if value in self.provider.message_types)
            self.add_error("message_type", f"{self.provider.label} cannot send this type of message. It sends: {names}.")
        for name in ("text", "caption", "subject", "html", "filename"):
            for problem in rendering.check(self.cleaned_data.get(name) or ""):
                self.add_error(name, str(problem))
        if self.cleaned_data.get("upload"):
            self._take_upload(kind or "")
        if kind in NEEDS_FILE and not self.cleaned_data.get("media_url") and not {"media_url", "upload"} & set(self.errors):
            self.add_error("media_url", "Give the address of the file to send, or upload it.")
        self.take_template()
        if kind == CampaignStep.Type.TEMPLATE and not self.cleaned_data.get("template_name"):
            self._say_that_there_is_no_template()
        if not isinstance(self.cleaned_data.get("template_components", []), list):
            self.add_error("template_components", "Write a list, as in [].")
        if self.provider is not None:
            self._check_what_the_channel_takes(self.provider)

    def _take_upload(self, kind: str) -> None:
        """It takes the place of the address that was there."""
        if "media_url" in self.changed_data:
            self.add_error("upload", "Give an address or upload a file, not both.")
        elif sentence := uploading.why_not(self.cleaned_data["upload"], kind):
            self.add_error("upload", sentence)
        else:
            self.uploaded = uploading.kept(self.cleaned_data["upload"])
            self.cleaned_data["media_url"] = self.uploaded.url

    def save(self, commit: bool = True) -> CampaignStep:
        """With the file: the admin saves a step in one transaction with all else on its page."""
        if self.uploaded is not None:
            self.uploaded.save()
        return super().save(commit)

    def _say_that_there_is_no_template(self) -> None:
        if not self.chooses:
            self.add_error("template_name", "Give the name of the template.")
        elif "template" not in self.errors:
            self.add_error("template", "Choose the template.")

    def _check_what_the_channel_takes(self, provider: type[ChannelProvider]) -> None:
        """What would be dropped in silence is refused here."""
        for name in ("subject", "html", "filename"):
            if self.cleaned_data.get(name) and name not in provider.takes:
                self.add_error(name, f"{provider.label} does not send this. Leave it empty.")
        if self.cleaned_data.get("caption") and self.cleaned_data.get("message_type") in provider.uncaptioned:
            self.add_error("caption", f"{provider.label} sends this type without a caption. Leave it empty.")

    def _check_times(self) -> None:
        if self.instance.pk and self.instance.status != CampaignStep.Status.PENDING:
            if set(TIMING) & set(self.changed_data):
                raise ValidationError("This step has its time already: when it is sent can no longer be changed. Add a new step instead.")
            self.cleaned_data["scheduled_at"] = self.instance.scheduled_at  # also when the campaign's zone changes
        elif "time_zone" in self.cleaned_data:
            self.take_wall_clock(zone_named(self.cleaned_data["time_zone"] or self.campaign.time_zone))

    def validate_constraints(self) -> None:
        """Left to the formset: the order is unique once all steps are saved, so that two of them can change places."""


class StepFormSet(forms.BaseInlineFormSet):
    forms: list[StepForm]  # type: ignore[assignment]
    deleted_forms: list[StepForm]  # type: ignore[assignment]

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        return {**super().get_form_kwargs(index), "campaign": self.instance}

    def validate_unique(self) -> None:
        """In clean(), with a sentence."""

    def save(self, commit: bool = True) -> Any:
        """The admin writes the columns that it finds among a form's fields, so what is none leaves them here."""
        saved = super().save(commit)
        for form in self.forms:
            for name in NO_COLUMNS:
                form.fields.pop(name, None)
        return saved

    def clean(self) -> None:
        super().clean()
        # The inline's template shows the formset's errors and those of fields, not those of a step as a whole.
        if whole := [f"{form.name()}: {sentence}" for form in self.forms for sentence in form.non_field_errors()]:
            raise ValidationError(whole)
        for form in self.deleted_forms:
            if form.has_begun:
                raise ValidationError(f'Step "{form.instance}" has messages in the log and cannot be deleted.')
        kept = [form for form in self.forms if form not in self.deleted_forms and "order" in getattr(form, "cleaned_data", {})]
        orders = [form.cleaned_data["order"] for form in kept if form.instance.pk or form.has_changed()]
        if twice := sorted({order for order in orders if orders.count(order) > 1}):
            raise ValidationError(f"Two steps have the order {twice[0]}. Each step needs its own.")
        begun = max((form.instance.order for form in kept if form.has_begun), default=None)
        if begun is not None and any(form.cleaned_data["order"] < begun for form in kept if not form.instance.pk and form.has_changed()):
            raise ValidationError(f"A new step cannot come before step {begun}, which has begun. Give it a higher order.")


class RecipientForm(forms.ModelForm):
    address = forms.CharField(max_length=ADDRESS_WIDTH, widget=widgets.UnfoldAdminTextInputWidget())
    metadata = forms.JSONField(
        label="Variables", required=False, widget=widgets.UnfoldAdminTextareaWidget(), help_text='For the text, as in {"city": "Recife"}.'
    )

    class Meta:
        model = Recipient
        fields = ["campaign", "address", "name", "metadata", "order"]

    def clean_metadata(self) -> dict[str, str]:
        values = self.cleaned_data["metadata"] or {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValidationError('Write names and texts, each in quotes, as in {"city": "Recife", "points": "12"}.')
        if "\\u0000" in json.dumps(values):
            raise ValidationError("There is a null character in a variable. Take it out.")
        return {name.strip().lower(): value for name, value in values.items()}

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        campaign = self.cleaned_data.get("campaign") or (self.instance.campaign if self.instance.pk else None)
        if campaign is None:
            return self.cleaned_data
        if is_frozen(campaign):
            raise ValidationError(f'"{campaign}" is being sent: its recipients are frozen until it is done. They can still be deleted.')
        if "address" in self.cleaned_data and ("address" in self.changed_data or not self.instance.pk):
            self._take_address(campaign)
        if not self.instance.pk and not self.cleaned_data.get("order"):
            last = campaign.recipients.aggregate(last=Max("order"))["last"]
            self.cleaned_data["order"] = 0 if last is None else last + 1
        return self.cleaned_data

    def _take_address(self, campaign: Campaign) -> None:
        typed = self.cleaned_data["address"]
        provider = channel_class(campaign.session.channel)
        if provider is None:
            self.add_error("address", f'The campaign is on channel "{campaign.session.channel}", which this instance does not know.')
            return
        try:
            address = addresses.canonical(provider.address_kind, typed, region=settings.DEFAULT_REGION)
        except addresses.InvalidAddress as error:
            self.add_error("address", str(error))
            return
        if address.is_group and not campaign.allow_groups:
            self.add_error("address", "This is a group or a channel. Allow them on the campaign, or give a person's address.")
        elif campaign.recipients.exclude(pk=self.instance.pk).filter(address=address.value).exists():
            self.add_error("address", f'{address.value} is in "{campaign}" already.')
        self.cleaned_data["address"] = address.value
        self.instance.address_as_imported = typed


def is_frozen(campaign: Campaign) -> bool:
    """Its recipients stand still while a run goes out. `runs` is dispatch's side of the relation."""
    return campaign.status == Campaign.Status.RUNNING or campaign.runs.live().exists()


class ImportForm(forms.Form):
    file = forms.FileField(
        label="CSV file",
        widget=widgets.UnfoldAdminFileFieldWidget(),
        allow_empty_file=True,  # the importer has the better sentence
        help_text="UTF-8, with a header: a column for the address, name, and one for each variable of the text.",
    )
    region = forms.ChoiceField(
        required=False,
        widget=widgets.UnfoldAdminSelectWidget(),
        help_text="Phone numbers without a country code are read as numbers of this country.",
    )
    dry_run = forms.BooleanField(
        label="Only look, import nothing", required=False, widget=widgets.UnfoldBooleanSwitchWidget(), help_text="Shows the same report."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        regions = sorted(phonenumbers.SUPPORTED_REGIONS)
        self.fields["region"].choices = [("", "None: every number has its country code"), *((name, name) for name in regions)]  # type: ignore[attr-defined]
        self.fields["region"].initial = settings.DEFAULT_REGION


class MoveForm(BaseDialogForm):
    session = forms.ModelChoiceField(queryset=Session.objects.none(), widget=widgets.UnfoldAdminSelectWidget(), label="To session")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        campaign = Campaign.objects.select_related("session").filter(pk=self.object_id).first()
        if campaign is not None:
            others = Session.objects.filter(channel=campaign.session.channel).exclude(pk=campaign.session_id)
            self.fields["session"].queryset = others
