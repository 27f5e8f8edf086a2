"""The form of a session: the fields that every session has, and those that its channel asks for."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from unfold import widgets

from sessions_app import addresses
from sessions_app import credentials as sealing
from sessions_app.models import Session
from sessions_app.providers import registry
from sessions_app.providers.base import ChannelProvider

# The channel's own forms are bound with these prefixes, so a field here and its twin there read the same posted value.
SETTING, CREDENTIAL, CLEAR = "setting", "credential", "clear"
BASE_FIELDS = ["name", "time_zone", "daily_limit"]


def channel_label(key: str) -> str:
    try:
        return registry.provider_class(key).label
    except registry.UnknownChannel:
        return f"{key} (unknown channel)"


def channel_class(key: str) -> type[ChannelProvider] | None:
    """None: a key that stands in no line of settings.CHANNELS, as after a channel was taken out."""
    try:
        return registry.provider_class(key)
    except registry.UnknownChannel:
        return None


class _BaseForm(forms.ModelForm):
    def clean_daily_limit(self) -> int | None:
        limit = self.cleaned_data["daily_limit"]
        if limit == 0:
            raise forms.ValidationError("A limit of 0 would send nothing. Use 1 or more, or leave it empty for no limit.")
        return limit


class NewSessionForm(_BaseForm):
    channel = forms.ChoiceField(help_text="How this identity sends. It cannot be changed later; its own fields come on the next page.")

    class Meta:
        model = Session
        fields = ["name", "channel", "time_zone", "daily_limit"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "channel" in self.fields:
            self.fields["channel"].widget = widgets.UnfoldAdminSelectWidget()
            self.fields["channel"].choices = [("", "Select a channel"), *registry.choices()]  # type: ignore[attr-defined]


class SessionForm(_BaseForm):
    """Change an existing session. `session_form` makes the subclass that has the channel's fields.

    Secrets go in and never come out: no stored value is rendered, an empty field keeps what is stored, a ticked box removes it.
    """

    provider: type[ChannelProvider] | None = None

    class Meta:
        model = Session
        fields = BASE_FIELDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.secrets, self.unreadable = stored_secrets(self.instance)
        for name in self._names(SETTING):
            self.initial.setdefault(name, self.instance.settings.get(_plain(name), self.fields[name].initial))
        for name in self._names(CREDENTIAL):
            self.fields[name].help_text = self._state_of(_plain(name)) + f" {self.fields[name].help_text or ''}".rstrip()

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self.fields if name.startswith(f"{prefix}-")]

    def _state_of(self, secret: str) -> str:
        if self.unreadable:
            return "Stored, but not readable with this instance's keys: enter it again."
        return "Set. Leave empty to keep it." if self.secrets.get(secret) else "Not set."

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.provider is not None:
            self.channel_settings = self._clean_settings(self.provider)
            self.new_secrets = self._clean_secrets(self.provider, cleaned)
        return cleaned

    def _clean_settings(self, provider: type[ChannelProvider]) -> dict[str, Any]:
        inner = provider.settings_form(data=self.data, prefix=SETTING)
        inner.is_valid()
        self._take_errors(inner, SETTING)
        return {**self.instance.settings, **inner.cleaned_data}

    def _clean_secrets(self, provider: type[ChannelProvider], cleaned: Mapping[str, Any]) -> dict[str, str] | None:
        """What to store, or None when nothing was typed or cleared: then the sealed text stays as it is, readable or not."""
        names = [_plain(name) for name in self._names(CREDENTIAL)]
        typed = {name: cleaned[f"{CREDENTIAL}-{name}"] for name in names if cleaned.get(f"{CREDENTIAL}-{name}")}
        cleared = {name for name in names if cleaned.get(f"{CLEAR}-{name}") and name not in typed}
        if self.unreadable and not typed and not cleared:
            return None
        merged = {name: value for name, value in self.secrets.items() if name not in cleared} | typed
        inner = provider.credentials_form(data={f"{CREDENTIAL}-{name}": value for name, value in merged.items()}, prefix=CREDENTIAL)
        if not inner.is_valid():
            self._take_errors(inner, CREDENTIAL, except_for=cleared)
        return merged if typed or cleared else None

    def _take_errors(self, inner: forms.Form, prefix: str, except_for: set[str] | frozenset[str] = frozenset()) -> None:
        for name, errors in inner.errors.as_data().items():
            field = f"{prefix}-{name}" if f"{prefix}-{name}" in self.fields else None
            if name not in except_for and (field is None or field not in self.errors):
                self.add_error(field, errors)

    def save(self, commit: bool = True) -> Any:
        if self.provider is not None:
            self.instance.settings = self.channel_settings
            if self.new_secrets is not None:
                self.instance.credentials = self.new_secrets
        return super().save(commit)


class PairingForm(forms.Form):
    """What the pairing page posts to itself: what it shows, and a phone that a code is wanted for."""

    shown = forms.ChoiceField(choices=Session.Status.choices, error_messages={"invalid_choice": "Load this page again."})
    code = forms.RegexField(r"\A[A-Za-z0-9-]{4,20}\Z", required=False)
    phone = forms.CharField(required=False, max_length=40)

    def clean_phone(self) -> str:
        typed = self.cleaned_data["phone"]
        try:
            return addresses.canonical("phone", typed, region=settings.DEFAULT_REGION).value if typed else ""
        except addresses.InvalidAddress as error:
            raise forms.ValidationError(str(error)) from None


def stored_secrets(session: Session) -> tuple[dict[str, str], bool]:
    """What is stored, and whether it is there but unreadable."""
    try:
        return session.credentials, False
    except sealing.CredentialsUnreadable:
        return {}, True


def session_form(session: Session) -> type[SessionForm]:
    """SessionForm with the fields of the session's channel."""
    provider = channel_class(session.channel)
    attributes: dict[str, Any] = {"provider": provider, "Meta": SessionForm.Meta, "__module__": __name__}
    if provider is not None:
        for name, field in provider.settings_form().fields.items():
            attributes[f"{SETTING}-{name}"] = _dressed(field)
        for name, field in provider.credentials_form().fields.items():
            attributes[f"{CREDENTIAL}-{name}"] = _secret(name, field)
            attributes[f"{CLEAR}-{name}"] = forms.BooleanField(
                required=False, label=f"Remove the stored {_spoken(name, field)}", widget=widgets.UnfoldBooleanWidget()
            )
    return type("SessionForm", (SessionForm,), attributes)


def field_names(session: Session, *prefixes: str) -> list[str]:
    return [name for name in session_form(session).base_fields if name.startswith(tuple(f"{prefix}-" for prefix in prefixes))]


def _plain(name: str) -> str:
    return name.split("-", 1)[1]


def _spoken(name: str, field: forms.Field) -> str:
    return str(field.label or name.replace("_", " "))


def _secret(name: str, field: forms.Field) -> forms.Field:
    field.required = False  # the channel's form asks for it, over what is stored and what was typed
    field.initial = None
    field.label = _spoken(name, field)
    field.widget = widgets.UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}, render_value=False)
    return field


def _dressed(field: forms.Field) -> forms.Field:
    """The field in the admin's clothes. A field of a kind we do not know keeps its widget."""
    widget = field.widget
    dresses: list[tuple[type[forms.Widget], type[forms.Widget]]] = [
        (forms.Textarea, widgets.UnfoldAdminTextareaWidget),
        (forms.CheckboxInput, widgets.UnfoldBooleanSwitchWidget),
        (forms.Select, widgets.UnfoldAdminSelectWidget),
        (forms.NumberInput, widgets.UnfoldAdminIntegerFieldWidget),
        (forms.URLInput, widgets.UnfoldAdminURLInputWidget),
        (forms.EmailInput, widgets.UnfoldAdminEmailInputWidget),
        (forms.TextInput, widgets.UnfoldAdminTextInputWidget),
    ]
    for plain, dress in dresses:
        if isinstance(widget, plain):
            field.widget = dress(attrs=widget.attrs)
            if isinstance(field, forms.ChoiceField):
                field.widget.choices = field.choices
            break
    return field
