"""The sending state of one session. Pacing lives here, so no crash, restart, hand-over or next campaign can make a burst."""

from datetime import timedelta

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from campaigns.models import Campaign
from sessions_app.models import Session


class Lane(models.Model):
    session = models.OneToOneField(Session, primary_key=True, on_delete=models.CASCADE, related_name="lane")
    campaign = models.ForeignKey(Campaign, null=True, on_delete=models.SET_NULL, related_name="lanes")
    is_open = models.BooleanField(default=False)  # false: the claim need not look; next_send_at outlives it, and so does a cool-down
    next_send_at = models.DateTimeField(db_default=Now())
    open_until = models.DateTimeField(null=True)  # end of the safe hours; null: no end
    configured_from = models.DateTimeField(null=True)  # the edit of campaign or session that the columns below were taken from
    origin = models.CharField(max_length=300, blank=True, default="")  # where its calls go, for the cap per origin
    rate = models.FloatField(null=True)  # messages per second; null: human
    burst = models.PositiveIntegerField(default=1)  # human: 1, one message in flight
    longest_wait = models.DurationField(default=timedelta(0))  # human: what a claim keeps it shut for beyond the lease
    in_flight = models.IntegerField(default=0)  # always the number of its SENDING rows
    epoch = models.IntegerField(default=-1)  # of the campaign when it last claimed; differs: warm up again
    attempts_in_run = models.PositiveIntegerField(default=0)
    attempts_in_batch = models.PositiveIntegerField(default=0)
    consecutive_failures = models.PositiveIntegerField(default=0)
    consecutive_invalid = models.PositiveIntegerField(default=0)
    consecutive_rate_limits = models.PositiveIntegerField(default=0)
    day = models.DateField(null=True)
    day_count = models.PositiveIntegerField(default=0)
    # Why the settle shut it, until the campaign was paused for it: a pause that was lost in a crash is made up for.
    trouble = models.CharField(max_length=500, blank=True, default="")
    trouble_code = models.CharField(max_length=30, blank=True, default="")
    token = models.BigIntegerField(default=0)
    owner = models.UUIDField(null=True)
    lease_expires_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(in_flight__gte=0, in_flight__lte=F("burst")), name="lane_in_flight_within_burst"),
            models.CheckConstraint(
                condition=Q(owner__isnull=True, lease_expires_at__isnull=True) | Q(owner__isnull=False, lease_expires_at__isnull=False),
                name="lane_owner_has_a_lease",
            ),
            models.CheckConstraint(condition=Q(rate__isnull=False) | Q(burst=1), name="lane_human_has_one_in_flight"),
        ]
        indexes = [
            models.Index(fields=["next_send_at"], condition=Q(is_open=True), name="lane_due"),  # the claim
            models.Index(fields=["lease_expires_at"], condition=Q(owner__isnull=False), name="lane_expired"),  # recovery, each pass
            models.Index(fields=["session"], condition=~Q(trouble=""), name="lane_troubled"),  # pauses to make up for, each pass
        ]

    def __str__(self) -> str:
        return f"Lane of {self.session}"
