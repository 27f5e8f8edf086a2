"""One person of one campaign."""

from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Coalesce

from campaigns import rendering
from campaigns.models.campaign import Campaign

_BLANK = rendering.BLANK.replace("\x00", "")  # PostgreSQL has no NUL


class RecipientQuerySet(models.QuerySet["Recipient"]):
    def lacking(self, variable: str) -> "RecipientQuerySet":
        """Recipients for whom a text with this variable would have a hole. A blank value is a hole; "0" is not."""
        if variable == "address":
            return self.none()
        # A function, since a key in a lookup goes wrong for names such as "1", "len" and "a__b".
        value = F("name") if variable == "name" else Func(F("metadata"), Value(variable), function="jsonb_extract_path_text")
        text = Coalesce(value, Value(""), output_field=models.TextField())
        visible = Func(text, Value(_BLANK), function="btrim", output_field=models.TextField())
        return self.alias(visible=visible).filter(visible="")


class Recipient(models.Model):
    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="recipients")
    address = models.CharField(max_length=320)  # canonical for the channel: +5511955550101, 12025550101@c.us, ana@example.com
    address_as_imported = models.CharField(max_length=320, blank=True, default="")
    name = models.CharField(max_length=200, blank=True, default="")
    order = models.PositiveIntegerField(default=0)
    metadata = models.JSONField(default=dict, blank=True)  # variable (lower case) -> string
    created_at = models.DateTimeField(auto_now_add=True)

    objects = RecipientQuerySet.as_manager()

    class Meta:
        ordering = ["campaign", "order", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["campaign", "address"], name="recipient_address_is_unique_in_campaign"),
            models.CheckConstraint(condition=~Q(address=""), name="recipient_has_an_address"),
        ]
        indexes = [
            # making a run's rows in chunks, in sending order
            models.Index(fields=["campaign", "order", "id"], name="recipient_sending_order"),
        ]

    def __str__(self) -> str:
        return self.name or self.address

    @property
    def variables(self) -> dict[str, str]:
        """What a text may name for this person."""
        return {**self.metadata, "name": self.name, "address": self.address}
