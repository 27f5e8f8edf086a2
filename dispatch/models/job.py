"""Work that runs one at a time in the whole installation: who runs it now, what the last run did, and answers that are given again."""

import uuid
from datetime import datetime

from django.db import models
from django.db.models.functions import Now


class Job(models.Model):
    """One row per job. The lock is the row: `locked_until` in the future means that `holder` runs it now, on the database's clock."""

    name = models.CharField(primary_key=True, max_length=50)
    holder = models.UUIDField(null=True)  # of one run, not of a process: it may only let go of what is still its own
    holder_label = models.CharField(max_length=300, blank=True, default="")  # host and pid, for people
    locked_until = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)  # of the last run, also of one that is still on its way
    finished_at = models.DateTimeField(null=True)  # the last run that came to its end, failed or not
    succeeded_at = models.DateTimeField(null=True)
    counts = models.JSONField(default=dict)  # of the last run that came to its end
    error = models.CharField(max_length=500, blank=True, default="")  # of that run; "" when it succeeded
    runs = models.PositiveBigIntegerField(default=0)
    failures = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def runs_at(self, now: datetime) -> bool:
        return self.locked_until is not None and self.locked_until > now


class JobAnswer(models.Model):
    """What a call with an Idempotency-Key was answered: the same call again gets the same answer, and runs nothing."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.CharField(max_length=50)
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64)  # of the request: the same key with another body is a mistake of the caller's
    status = models.PositiveSmallIntegerField(null=True)  # null: it is being worked on
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "key"], name="one_answer_per_job_and_key")]
        indexes = [models.Index(fields=["created_at"], name="job_answer_age")]

    def __str__(self) -> str:
        return f"{self.job}: {self.key}"
